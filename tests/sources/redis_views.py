"""A server, and a worker that keeps a Redis view, on a Redis of their own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from packhorse.client import Client
from tests.http.processes import Place, Process, served, until
from tests.servers import valkey

SOURCES = Path(__file__).parent


class Viewed(NamedTuple):
    client: Client
    redis: Any
    """A plain client, with answers as text."""
    gate: Path
    """The stages in the middle of a job wait until it exists."""


@contextmanager
def viewed(folder: Path, app: str, views: str) -> Iterator[Viewed]:
    """``app``: a file beside this one, or a module of an installed app."""
    server = valkey.Valkey().start()
    place = Place(
        folder,
        app=str(SOURCES / app) if app.endswith(".py") else app,
        lease=2.0,
        slots=1,
        store=server.url("packhorse:"),
    )
    gate = folder / "gate"
    try:
        with served(place) as found, Client(found.url) as client:
            worker = Process("tests.http.worker", place, PACKHORSE_REDIS_VIEWS=views, GATE=str(gate))
            try:
                until(client.pipelines)
                with server.client(decode_responses=True) as raw:
                    yield Viewed(client, raw, gate)
            finally:
                worker.stop()
    finally:
        server.remove()
