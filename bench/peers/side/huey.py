"""Huey on Redis (blocking pop) or SQLite, results off. It takes a job off the queue for good before it runs it."""

from __future__ import annotations

from huey import RedisHuey, SqliteHuey

from bench.peers.side.given import URL
from bench.peers.side.ledger import STAGES, note, take_long

huey = (
    RedisHuey("bench", url=URL, results=False, blocking=True)
    if URL.startswith("redis:")
    else SqliteHuey("bench", filename=URL.removeprefix("sqlite://"), results=False, fsync=True)
)


@huey.task()
def noop(i: int) -> None:
    note(i)


@huey.task()
def stage(i: int, name: str) -> None:
    note(i, name)


@huey.task()
def long(i: int) -> None:
    take_long(i)


def put(i: int) -> None:
    noop(i)


def put_chain(i: int) -> None:
    first, second, third = STAGES
    huey.enqueue(stage.s(i, first).then(stage, i, second).then(stage, i, third))


def put_long(i: int) -> None:
    long(i)
