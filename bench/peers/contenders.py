"""Who takes part, on which store, and with the settings that suit it."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from msgspec import Struct

from bench.loops import LOOP

ROOT = Path(__file__).parents[2]
SIDE = Path(__file__).parent / "side"
ENVIRONMENTS = ROOT / ".packhorse" / "peers"

Store = Literal["redis", "postgresql", "sqlite"]

NODE = "node"
OURS = ""
"""The environment this benchmark itself runs in."""


class Contender(Struct, frozen=True):
    name: str
    store: Store
    module: str
    """Of `bench.peers.side`."""
    environment: str
    worker: tuple[str, ...]
    """The command; its first word is a program of the environment."""
    crash_worker: tuple[str, ...] = ()
    """Where the number of jobs at a time is part of the command: twenty of them."""
    share: float = 1.0
    """Of the usual number of jobs. The slow ones get fewer, or one round would take an hour."""
    settings: tuple[tuple[str, str], ...] = ()
    """Variables of its environment."""
    is_nudged: bool = False
    """Whether it looks for lost jobs only when a new one arrives, and so gets one now and then."""
    is_compared: bool = True
    """Whether it stands for its library: ours has further rows that are compared with nobody."""
    appendfsync: str = "everysec"

    @property
    def is_ours(self) -> bool:
        return self.environment == OURS

    @property
    def folder(self) -> Path:
        return ENVIRONMENTS / self.environment

    @property
    def is_there(self) -> bool:
        return self.is_ours or (self.folder / "ready").exists()

    def client(self) -> list[str]:
        if self.environment == NODE:
            return [self.program("node"), str(SIDE / "bullmq.js"), "client"]
        return [self.program("python"), "-m", "bench.peers.side.client", self.module]

    def command(self, *, is_crash: bool = False) -> list[str]:
        program, *words = self.crash_worker if is_crash and self.crash_worker else self.worker
        return [self.program(program), *words]

    def program(self, name: str) -> str:
        if self.is_ours:
            return sys.executable
        own = self.folder / "bin" / name
        return str(own) if own.exists() else name

    def env(self) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("PACKHORSE_", "BENCH_"))}
        return kept | {
            "PYTHONPATH": str(ROOT),
            "PYTHONDONTWRITEBYTECODE": "1",
            "NODE_PATH": str(ENVIRONMENTS / NODE / "node_modules"),
            LOOP: os.environ.get(LOOP, "uvloop"),
            **dict(self.settings),
        }


def _python(name: str) -> tuple[str, ...]:
    return ("python", "-m", f"bench.peers.side.{name}")


def _celery(slots: int) -> tuple[str, ...]:
    quiet = ("--without-gossip", "--without-mingle", "--without-heartbeat", "-l", "ERROR")
    return ("celery", "-A", "bench.peers.side.celery:app", "worker", "-P", "prefork", "-c", str(slots), *quiet)


def _dramatiq(threads: int) -> tuple[str, ...]:
    return ("dramatiq", "bench.peers.side.dramatiq", "-p", "1", "-t", str(threads))


def _taskiq(*options: str) -> tuple[str, ...]:
    return ("taskiq", "worker", "bench.peers.side.taskiq:broker", "-w", "1", "--log-level", "ERROR", *options)


def _huey(threads: int, *options: str) -> tuple[str, ...]:
    return ("huey_consumer", "bench.peers.side.huey.huey", "-w", str(threads), "-k", "thread", "-q", *options)


POLLED = ("-d", "0.01", "-m", "0.01")
"""Huey cannot wait for SQLite, so it looks every 10 ms."""

WORKER = ("python", "-m", "bench.worker_process")


SHARED = (("PACKHORSE_QUEUES", "async=100"),)
IN_PROCESSES = (("PACKHORSE_QUEUES", "sync=2"), ("BENCH_SYNC", "1"))


def _ours(store: Store) -> list[Contender]:
    return [
        Contender("packhorse", store, "ours", OURS, WORKER, settings=SHARED),
        Contender(
            "packhorse, sync stages",
            store,
            "ours",
            OURS,
            WORKER,
            share=0.5,
            settings=IN_PROCESSES,
            is_compared=False,
        ),
    ]


CONTENDERS: Sequence[Contender] = (
    *_ours("redis"),
    Contender(
        "packhorse, AOF always",
        "redis",
        "ours",
        OURS,
        WORKER,
        settings=SHARED,
        is_compared=False,
        appendfsync="always",
    ),
    Contender("bullmq", "redis", "bullmq.js", NODE, ("node", str(SIDE / "bullmq.js"), "worker")),
    Contender("huey", "redis", "huey", "huey", _huey(4), _huey(20)),
    Contender(
        "taskiq",
        "redis",
        "taskiq",
        "taskiq",
        _taskiq("--no-parse", "--max-async-tasks", "100", "--max-prefetch", "100"),
        _taskiq("--no-parse", "--max-async-tasks", "20"),
        share=0.5,
        is_nudged=True,
    ),
    Contender("saq", "redis", "saq", "saq", _python("saq"), share=0.5),
    Contender("dramatiq", "redis", "dramatiq", "dramatiq", _dramatiq(8), _dramatiq(20), share=0.5),
    Contender("celery", "redis", "celery", "celery", _celery(2), _celery(20), share=0.3),
    *_ours("postgresql"),
    Contender("pgqueuer", "postgresql", "pgqueuer", "pgqueuer", _python("pgqueuer")),
    Contender("procrastinate", "postgresql", "procrastinate", "procrastinate", _python("procrastinate"), share=0.3),
    Contender("oban", "postgresql", "oban", "oban", _python("oban"), share=0.5),
    Contender("dbos", "postgresql", "dbos", "dbos", _python("dbos"), share=0.2),
    *_ours("sqlite"),
    Contender("huey", "sqlite", "huey", "huey", _huey(1, *POLLED), _huey(20, *POLLED)),
    Contender("dbos", "sqlite", "dbos", "dbos", _python("dbos"), share=0.2),
)
