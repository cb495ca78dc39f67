"""dramatiq on Redis, without results and without its Prometheus server."""

from __future__ import annotations

import dramatiq
from dramatiq.brokers.redis import RedisBroker
from dramatiq.middleware.prometheus import Prometheus

from bench.peers.side.given import IS_SAFE, URL
from bench.peers.side.ledger import STAGES, note, take_long

SOON = {"heartbeat_timeout": 10_000, "maintenance_chance": 100_000} if IS_SAFE else {}

broker = RedisBroker(url=URL, **SOON)
broker.middleware[:] = [each for each in broker.middleware if not isinstance(each, Prometheus)]
dramatiq.set_broker(broker)


@dramatiq.actor
def noop(i: int) -> None:
    note(i)


@dramatiq.actor
def stage(i: int, name: str) -> None:
    note(i, name)


@dramatiq.actor
def long(i: int) -> None:
    take_long(i)


def put(i: int) -> None:
    noop.send(i)


def put_chain(i: int) -> None:
    dramatiq.pipeline([stage.message_with_options(args=(i, name), pipe_ignore=True) for name in STAGES]).run()


def put_long(i: int) -> None:
    long.send(i)
