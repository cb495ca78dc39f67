"""Runs `packhorse dev` for an example: with data of its own, on a free port, and no longer than the example runs."""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import NoReturn

import psutil

from packhorse import Client, host
from packhorse.errors import PackhorseError, PortTaken

PORT = 3003
STARTING, ENDING = 120.0, 60.0
POLL = 0.1


class Wrong(Exception):
    """The example did not do what it should; the text says what is wrong."""


class DevServer:
    """A running `packhorse dev`."""

    def __init__(self, process: subprocess.Popen[bytes], url: str) -> None:
        self.process = process
        self.url = url

    def wait_for(self, client: Client, pipelines: Collection[str]) -> None:
        """Return when its workers have published these pipelines."""
        until = time.monotonic() + STARTING
        while time.monotonic() < until:
            if self.process.poll() is not None:
                raise Wrong(f"packhorse dev ended with status {self.process.returncode}.")
            with contextlib.suppress(PackhorseError):
                if set(pipelines) <= {each["name"] for each in client.pipelines()}:
                    return
            time.sleep(POLL)
        raise Wrong(f"packhorse dev did not start within {STARTING:.0f} s.")

    def kill_workers(self) -> int:
        """Send SIGKILL to every worker; return how many there were."""
        workers = [each for each in psutil.Process(self.process.pid).children() if "worker" in each.cmdline()]
        for worker in workers:
            worker.kill()
        return len(workers)

    def stay(self) -> None:
        """Keep running until Ctrl-C."""
        with contextlib.suppress(KeyboardInterrupt):
            self.process.wait()


@contextlib.contextmanager
def dev_server(folder: Path, *apps: str, env: Mapping[str, str] | None = None) -> Iterator[DevServer]:
    port = _port()
    places = {"store": f"sqlite://{folder}/packhorse.db", "blobs": f"file://{folder}/blobs"}
    places |= {"scratch": f"{folder}/scratch", "port": str(port)}
    own = {
        "PACKHORSE_CHILD_OF": str(os.getpid()),  # it ends with the example, even if that is killed
        "PACKHORSE_HOST": "127.0.0.1",
        "PACKHORSE_SECRET_KEY": secrets.token_urlsafe(32),
    }
    command = [sys.executable, "-m", "packhorse.cli", "dev", *apps, *(f"--{name}={at}" for name, at in places.items())]
    # A process group of its own: Ctrl-C reaches only the example, which then ends the server.
    process = subprocess.Popen(command, env=os.environ | own | dict(env or {}), process_group=0)
    try:
        yield DevServer(process, f"http://127.0.0.1:{port}")
    finally:
        process.terminate()
        try:
            process.wait(ENDING)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def is_check() -> bool:
    return os.environ.get("CHECK") == "1"


def stays() -> bool:
    """Whether the example keeps running after its checks: with a terminal as its input, unless CHECK=1."""
    if not is_check() and not sys.stdin.isatty():
        say("stopping, because the input is not a terminal. Run this in a terminal to keep the web UI")
    return not is_check() and sys.stdin.isatty()


@contextlib.contextmanager
def data_folder(name: str) -> Iterator[Path]:
    """`.packhorse/NAME` in the current folder; with CHECK=1 a temporary folder."""
    if not is_check():
        yield create(Path.cwd() / ".packhorse" / name)
        return
    with tempfile.TemporaryDirectory(prefix="packhorse-") as folder:
        yield Path(folder)


def create(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def say(text: str) -> None:
    sys.stdout.write(f"example │ {text}\n")
    sys.stdout.flush()


def run(main: Callable[[], None]) -> None:
    """Exit with 0, or with 1 and a sentence; SIGTERM ends the server too."""
    signal.signal(signal.SIGTERM, _exit)
    try:
        main()
    except (Wrong, PackhorseError) as error:
        sys.exit(f"example │ {error}")


def _exit(*_: object) -> NoReturn:
    sys.exit(143)


def _port() -> int:
    if is_check():
        return host.free_port()
    try:
        host.require_free_port("127.0.0.1", PORT)
    except PortTaken:
        return host.free_port()
    return PORT
