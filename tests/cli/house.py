"""Real `packhorse` processes in a folder of their own, and a way to wait for what they do."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import psutil

from packhorse.cli.__main__ import PARENT
from packhorse.client import Client
from packhorse.errors import Unreachable
from tests.servers import forks
from tests.servers.forks import Program
from tests.servers.ports import free_port

T = TypeVar("T")

MODULE = "packhorse.cli"
PACKHORSE = [sys.executable, "-m", MODULE]  # as a command, for tests that need a pipe or a terminal
FLOW = Path(__file__).with_name("flow.py")
UNLIMITED = {"PACKHORSE_DOWNLOADS_PER_10S": "0", "PACKHORSE_DOWNLOADS_PER_MINUTE": "0"}
"""Tests are quicker than people."""
LONGEST = 90.0
"""Seconds. Much more than anything takes, for a machine that is busy with other things."""


def until(condition: Callable[[], T], limit: float = LONGEST) -> T:
    """What the condition says as soon as it says yes."""
    start = time.monotonic()
    while not (found := condition()):
        waited = time.monotonic() - start
        assert waited < limit, f"not so after {limit:.0f} s: {condition}"
        time.sleep(0.02 if waited < 0.2 else 0.06)  # what takes long is asked for less often
    return found


class Said(NamedTuple):
    """What a command that has ended said."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    @property
    def last_line(self) -> str:
        return self.err.strip().splitlines()[-1]


class House:
    """A folder in which packhorse is at home: no setting of ours gets in."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.env = {name: value for name, value in os.environ.items() if not name.startswith("PACKHORSE_")}
        self.output = folder / "output.txt"
        self._started: list[Program] = []

    def run(self, *arguments: str, env: Mapping[str, str] | None = None) -> Said:
        ended = forks.run(MODULE, *arguments, cwd=self.folder, env=self.env | dict(env or {}), timeout=LONGEST)
        assert "Traceback" not in ended.stderr, ended.stderr
        return Said(ended.returncode, ended.stdout, ended.stderr)

    def ask(self, command: str, *arguments: str) -> Said:
        """The same with our server."""
        return self.run(command, *arguments, "--url", self.url)

    def start(self, *arguments: str, env: Mapping[str, str] | None = None) -> Program:
        """It ends with the tests, even if they are killed."""
        with self.output.open("ab") as output:
            process = forks.start(
                MODULE,
                *arguments,
                cwd=self.folder,
                env=self.env | dict(env or {}) | {PARENT: str(forks.forks().pid)},
                stdout=output,
                stderr=output,
            )
        self._started.append(process)
        return process

    def said(self, text: str) -> bool:
        return text in self.output.read_text()

    def end(self) -> None:
        """By pid, and only what was started here."""
        for process in self._started:
            if process.poll() is None:
                tree = psutil.Process(process.pid).children(recursive=True)
                process.terminate()
                try:
                    process.wait(LONGEST)
                finally:
                    process.kill()
                    for left in tree:
                        with contextlib.suppress(psutil.Error):
                            left.kill()


class Dev(House):
    """A house in which `packhorse dev flow.py` runs."""

    def __init__(self, folder: Path, flow: Path = FLOW) -> None:
        super().__init__(folder)
        self.app = folder / "flow.py"
        self.app.write_text(flow.read_text())
        self.process = self.start("dev", "flow.py", "--port", str(self.port), env=UNLIMITED)
        self.client = Client(self.url)
        until(self._is_up)

    def _is_up(self) -> bool:
        assert self.process.poll() is None, self.output.read_text()
        return self.said(f"runs at {self.url}") and self.answers()

    def answers(self) -> bool:
        """A server that knows the pipelines."""
        with contextlib.suppress(Unreachable):
            return bool(self.client.pipelines())
        return False

    def child(self, role: str) -> psutil.Process | None:
        """The newest process that dev has given this role."""
        found = [each for each in psutil.Process(self.process.pid).children() if role in words(each)]
        return max(found, key=lambda each: each.create_time(), default=None)

    def end(self) -> None:
        self.client.close()
        super().end()


def is_running(process: psutil.Process) -> bool:
    """A zombie is not: where a test has run a worker in this process, orphans wait for us to ask for their status."""
    with contextlib.suppress(psutil.Error):
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    return False


def words(process: psutil.Process) -> list[str]:
    """Its command line; none if it has ended."""
    with contextlib.suppress(psutil.Error):
        return process.cmdline()
    return []
