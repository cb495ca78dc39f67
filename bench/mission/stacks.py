"""Who takes part: packhorse on each store, and two stacks by hand. Each is a web server and worker processes."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import psutil
from msgspec import Struct
from tests.servers import seaweed

from bench.peers.contenders import ENVIRONMENTS, ROOT, SIDE
from packhorse.host import free_port
from packhorse.settings import PREFIX

AT_ONCE = 4
"""Stages that run at the same time."""


class Stack(Struct, frozen=True):
    name: str
    module: str
    """Of `bench.peers.side`: all code that a team writes."""
    store: str = ""
    """The store of packhorse; empty for a stack by hand."""
    environment: str = ""
    workers: tuple[tuple[str, ...], ...] = ()
    """Its worker processes."""

    @property
    def is_ours(self) -> bool:
        return bool(self.store)

    @property
    def is_there(self) -> bool:
        return self.is_ours or (ENVIRONMENTS / self.environment / "ready").exists()

    def lines(self) -> int:
        """Of application code: without blank lines, comments and the docstring on top."""
        text = (SIDE / f"{self.module}.py").read_text().splitlines()[1:]
        return sum(bool(line.strip()) and not line.lstrip().startswith("#") for line in text)


CELERY = ("celery", "--app", "bench.peers.side.mission_celery:queue", "worker", "--concurrency", str(AT_ONCE))
ARQ = ("arq", "bench.peers.side.mission_arq.WorkerSettings")
PEER = Stack(
    "FastAPI + Celery + Redis + S3",
    "mission_celery",
    environment="mission-celery",
    workers=((*CELERY, "--loglevel", "WARNING"),),
)
STACKS = (
    Stack("packhorse, Redis + S3", "mission_ours", "redis"),
    PEER,
    Stack(
        "FastAPI + arq + Redis + S3", "mission_arq", environment="mission-arq", workers=(ARQ, ARQ)
    ),  # one process uses one core
    Stack("packhorse, PostgreSQL + S3", "mission_ours", "postgresql"),
    Stack("packhorse, SQLite + folder", "mission_ours", "sqlite"),
)
FREE = {
    "PACKHORSE_DOWNLOADS_PER_10S": "0",
    "PACKHORSE_DOWNLOADS_PER_MINUTE": "0",
    "PACKHORSE_DOWNLOAD_BYTES_PER_HOUR": "0",
    "PACKHORSE_DOWNLOAD_BYTES_PER_DAY": "0",
    "PACKHORSE_DOWNLOADS_AT_ONCE": "0",
}
"""The hand-written stacks have no limits."""


class Running:
    """The processes of a stack, on ports of loopback. Its servers (Redis, PostgreSQL, S3) belong to others."""

    def __init__(self, stack: Stack, folder: Path, url: str) -> None:
        """``url``: of the empty store."""
        self.stack = stack
        self.port = free_port()
        folder.mkdir(parents=True)
        self._log = folder / "log"
        self._env = {name: value for name, value in os.environ.items() if not name.startswith(PREFIX)}
        self._env |= self._our_settings(folder, url) if stack.is_ours else self._their_settings(url)
        self._web = self._start_web()
        self._workers = self._start_workers()

    @property
    def base(self) -> str:
        return f"http://127.0.0.1:{self.port}" + ("/api/v1" if self.stack.is_ours else "")

    def memory(self) -> float:
        """MiB that belong to its processes alone, and their share of what they have in common."""
        total = 0
        for process in [each for root in (self._web, *self._workers) for each in _family(root)]:
            with suppress(psutil.Error):
                total += process.memory_full_info().pss
        return total / 1024**2

    def cpu(self) -> float:
        """Seconds of processor time that its processes have used, with children that have ended."""
        total = 0.0
        for process in [each for root in (self._web, *self._workers) for each in _family(root)]:
            with suppress(psutil.Error):
                total += sum(process.cpu_times()[:4])
        return total

    def kill_workers(self) -> None:
        for worker in self._workers:
            _kill(worker)
        self._workers = self._start_workers()

    def kill_web(self) -> None:
        _kill(self._web)
        self._web = self._start_web()

    def stop(self) -> None:
        for process in (self._web, *self._workers):
            _kill(process)

    def log(self) -> str:
        return self._log.read_text(errors="replace")[-3000:]

    def _our_settings(self, folder: Path, url: str) -> Mapping[str, str]:
        blobs = f"file://{folder / 'blobs'}" if self.stack.store == "sqlite" else seaweed.running().place()
        return {
            "PACKHORSE_STORE": url,
            "PACKHORSE_BLOBS": blobs,
            "PACKHORSE_S3_ACCESS_KEY": seaweed.KEYS.access,
            "PACKHORSE_S3_SECRET_KEY": seaweed.KEYS.secret,
            "PACKHORSE_SCRATCH": str(folder / "scratch"),
            "PACKHORSE_APP": str(SIDE / f"{self.stack.module}.py"),
            "PACKHORSE_PORT": str(self.port),
            "PACKHORSE_KEYLESS": "yes",
            "PACKHORSE_SLOTS": str(AT_ONCE),
            "PACKHORSE_LOG_LEVEL": "warning",  # as the others
            **FREE,
        }

    def _their_settings(self, url: str) -> Mapping[str, str]:
        return {
            "PYTHONPATH": str(ROOT),
            "MISSION_REDIS": url.partition("?")[0],
            "MISSION_BUCKET": seaweed.BUCKET,
            "MISSION_S3": seaweed.running().endpoint,
            "MISSION_JOBS": str(AT_ONCE // 2),
            "AWS_DEFAULT_REGION": seaweed.REGION,
            **seaweed.ENV,
        }

    def _start_web(self) -> psutil.Popen:
        if self.stack.is_ours:
            return self._start(sys.executable, "-m", "packhorse.cli", "serve")
        address = ("--host", "127.0.0.1", "--port", str(self.port), "--log-level", "warning")
        return self._start(self._program("uvicorn"), f"bench.peers.side.{self.stack.module}:app", *address)

    def _start_workers(self) -> Sequence[psutil.Popen]:
        if self.stack.is_ours:
            return [self._start(sys.executable, "-m", "packhorse.cli", "worker")]
        return [self._start(self._program(program), *rest) for program, *rest in self.stack.workers]

    def _program(self, name: str) -> str:
        return str(ENVIRONMENTS / self.stack.environment / "bin" / name)

    def _start(self, *command: str) -> psutil.Popen:
        with self._log.open("ab") as log:
            return psutil.Popen(command, env=self._env, cwd=ROOT, stdout=log, stderr=log, stdin=subprocess.DEVNULL)


def _family(root: psutil.Popen) -> list[psutil.Process]:
    with suppress(psutil.Error):
        return [root, *root.children(recursive=True)]
    return []


def _kill(root: psutil.Popen) -> None:
    """With all of its children, so that nobody is left to finish what it had begun."""
    family = _family(root)
    for process in family:
        with suppress(psutil.Error):
            process.kill()
    root.wait()
    psutil.wait_procs(family[1:], timeout=10)
