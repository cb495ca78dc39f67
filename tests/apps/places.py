"""Where the apps run for real: embedded, and on the servers that people have."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from packhorse.client import Client
from tests.http.processes import Place, Process, Server, served, until
from tests.journey.places import Settings, bucket, embedded, postgres_and_s3
from tests.servers import valkey

READY = 90.0
"""Seconds in which a worker has loaded its app, on a machine that has much else to do."""


def redis_and_s3(_: Path) -> Settings:
    return {"store": valkey.shared().url(valkey.fresh_prefix()), **bucket()}


PLACES: dict[str, Callable[[Path], Settings]] = {
    "sqlite": embedded,
    "redis": redis_and_s3,
    "postgresql": postgres_and_s3,
}


class Stand:
    """A server and the worker of one app, which can be killed and started again."""

    def __init__(self, server: Server, client: Client) -> None:
        self.server = server
        self.client = client
        self.workers: list[Process] = []

    def work(self) -> Process:
        worker = Process("tests.http.worker", self.server.place)
        self.workers.append(worker)
        return worker

    def ready(self, pipeline: str) -> None:
        until(lambda: pipeline in [each["name"] for each in self.client.pipelines()], READY)


@contextmanager
def stand(folder: Path, app: str, place: Callable[[Path], Settings], **settings: Any) -> Iterator[Stand]:
    where = Place(folder, app=app, lease=2.0, **place(folder), **settings)
    with served(where) as server, Client(server.url) as client:
        stand = Stand(server, client)
        stand.work()
        try:
            yield stand
        finally:
            for worker in stand.workers:
                worker.stop()
