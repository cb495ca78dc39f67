"""Starts programs of packhorse as processes, without each of them importing everything again.

The first start brings up one process that has imported packhorse and then forks for every program: a server is up after
a tenth of the processor time that ``python -m packhorse.web`` needs. What runs is the same: the module runs as
``__main__``, with its own arguments, environment, folder and output. Only the command line and the environment in
``/proc`` are those of the process that forked; a test that reads these starts its program with ``subprocess``.
"""

from __future__ import annotations

import atexit
import faulthandler
import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import warnings
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import IO, NamedTuple

from litestar import Litestar

from tests.servers import tls

ROOT = Path(__file__).parents[2]
LONGEST_MESSAGE = 1 << 20  # bytes: arguments and environment
PRELOADED = (
    "packhorse.blobs.local",
    "packhorse.blobs.s3",
    "packhorse.cli.commands.jobs",
    "packhorse.cli.commands.processes",
    "packhorse.cli.commands.submit",
    "packhorse.client",
    "packhorse.store.postgres.store",
    "packhorse.store.redis.store",
    "packhorse.store.sqlite.store",
    "packhorse.web.app",
    "packhorse.worker.worker",
)


class Ended(NamedTuple):
    """What a program that has ended left."""

    returncode: int
    stdout: str
    stderr: str


class Program:
    """A process, with the methods of ``subprocess.Popen`` that tests use."""

    def __init__(self, pid: int, forks: Forks) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._forks = forks
        self._exit = os.pidfd_open(pid)  # it can be read once the process has ended

    def poll(self) -> int | None:
        return self._status(0)

    def wait(self, timeout: float | None = None) -> int:
        """Its exit code, or minus the signal that ended it. Raises subprocess.TimeoutExpired."""
        status = self._status(timeout)
        if status is None:
            raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0)
        return status

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def _status(self, timeout: float | None) -> int | None:
        if self.returncode is None and select.select([self._exit], [], [], timeout)[0]:
            with self._forks.lock:
                if self.returncode is None:  # no other thread was faster
                    self.returncode = self._forks.ask({"ended": self.pid})
                    os.close(self._exit)
        return self.returncode


Started = Program | subprocess.Popen[bytes]


class Forks:
    """The process that forks, as seen by the tests. It ends with them."""

    def __init__(self) -> None:
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        for end in (self._control, theirs):
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, LONGEST_MESSAGE)
        with theirs:
            command = [sys.executable, "-m", "tests.servers.forks", str(theirs.fileno())]
            self._process = subprocess.Popen(command, cwd=ROOT, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL)
        self.pid = self._process.pid
        self.lock = threading.RLock()
        atexit.register(self._close)

    def _close(self) -> None:
        self._control.close()
        self._process.wait()

    def ask(self, question: Mapping[str, object], fds: tuple[int, ...] = ()) -> int:
        with self.lock:
            socket.send_fds(self._control, [json.dumps(question).encode()], fds)
            return int(self._control.recv(64))


@cache
def forks() -> Forks:
    return Forks()


def start(
    module: str, *arguments: str, env: Mapping[str, str], cwd: Path, stdout: IO[bytes], stderr: IO[bytes]
) -> Program:
    """Run ``python -m module arguments`` with nothing to read."""
    with open(os.devnull, "rb") as nothing:
        question = {"module": module, "arguments": arguments, "env": dict(env), "cwd": str(cwd)}
        pid = forks().ask(question, (nothing.fileno(), stdout.fileno(), stderr.fileno()))
    return Program(pid, forks())


def run(module: str, *arguments: str, env: Mapping[str, str], cwd: Path, timeout: float) -> Ended:
    """The same, to the end. Raises subprocess.TimeoutExpired."""
    with tempfile.TemporaryFile() as stdout, tempfile.TemporaryFile() as stderr:
        program = start(module, *arguments, env=env, cwd=cwd, stdout=stdout, stderr=stderr)
        try:
            code = program.wait(timeout)
        finally:
            program.kill()
        return Ended(code, *(_text(each) for each in (stdout, stderr)))


def _text(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode()


# What follows runs in the process that forks.


class Asked(NamedTuple):
    module: str
    arguments: list[str]
    env: dict[str, str]
    cwd: str
    fds: list[int]


def main() -> None:
    path = sys.path[1:]  # the first is our own folder
    for name in PRELOADED:
        importlib.import_module(name)
    tls.read_authorities_once()
    _build_application_once()
    gc.collect()
    gc.freeze()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the tests, which end us
    asked = _serve(socket.socket(fileno=int(sys.argv[1])))
    _become(asked, path)
    runpy.run_module(asked.module, run_name="__main__", alter_sys=True)


def _build_application_once() -> None:
    """Servers differ in their settings, and not in their application: to build it takes most of the start of one."""
    from packhorse.http.app import prepare
    from packhorse.settings import Settings
    from packhorse.web import app as web

    application = web.build(Settings())

    def build(settings: Settings) -> Litestar:
        prepare(application, settings)
        return application

    web.build = build


def _serve(control: socket.socket) -> Asked:
    """Fork for each request. Returns in the new process only."""
    while True:
        message, fds, _, _ = socket.recv_fds(control, LONGEST_MESSAGE, 3)
        if not message:
            os._exit(0)  # the tests have ended
        question = json.loads(message)
        if "ended" in question:
            _, status = os.waitpid(question["ended"], 0)
            control.send(str(os.waitstatus_to_exitcode(status)).encode())
            continue
        pid = os.fork()
        if pid == 0:
            control.close()
            return Asked(fds=fds, **question)
        control.send(str(pid).encode())
        for fd in fds:
            os.close(fd)


def _become(asked: Asked, path: list[str]) -> None:
    for standard, fd in enumerate(asked.fds):
        os.dup2(fd, standard)
        os.close(fd)
    os.chdir(asked.cwd)
    os.environ.clear()
    os.environ.update(asked.env)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    further = asked.env.get("PYTHONPATH", "").split(os.pathsep)
    sys.path[:] = [asked.cwd, *filter(None, further), *path]
    if "PYTHONWARNINGS" in asked.env:
        warnings.simplefilter(asked.env["PYTHONWARNINGS"])  # type: ignore[arg-type]
    sys.argv[1:] = asked.arguments
    faulthandler.enable()  # a program that crashes says in its output where
    sys.modules.pop(f"{asked.module}.__main__", None)  # it runs again, now as what it is


if __name__ == "__main__":
    main()
