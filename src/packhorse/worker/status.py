"""What a worker tells about itself: its card with a heartbeat in the store, and metrics and readiness over HTTP."""

from __future__ import annotations

import os
import secrets
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from socketserver import ThreadingMixIn
from typing import Any, Protocol
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

import psutil
from msgspec.structs import replace
from prometheus_client import make_wsgi_app
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from packhorse import host
from packhorse.background.reaper import work_of
from packhorse.errors import SettingError
from packhorse.metrics import REGISTRY
from packhorse.settings import Settings
from packhorse.store.base import Store
from packhorse.store.collections import workers
from packhorse.store.collections.workers import MOST_NAMED, Machine, WorkerCard
from packhorse.version import VERSION
from packhorse.worker.attempt import Attempt


def new_card(queues: dict[str, int], kinds: Collection[str], scratch: Path) -> WorkerCard:
    name = f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}"
    born = host.born(os.getpid())
    assert born is not None
    return WorkerCard(
        id=name,
        host=socket.gethostname(),
        boot=host.boot(),
        pid_space=host.pid_space(),
        pid=os.getpid(),
        born=born,
        version=VERSION,
        queues=queues,
        scratch=str(scratch.absolute() / name),
        kinds=tuple(sorted(kinds)),
    )


def check_queues(wanted: Mapping[str, int], known: Sequence[str]) -> None:
    """Raises SettingError for a misspelt queue, which would never get a job."""
    unknown = [name for name in wanted if name not in known]
    if unknown:
        raise SettingError(
            f"No stage of this app uses the queue {unknown[0]!r}; they use {', '.join(known)}.",
            name="queues",
            value=wanted,
        )


PERIOD = 4.0
"""Seconds between heartbeats, however long a lease is: the usage of a host is shown as fresh for ten."""


class WorkerInfo:
    def __init__(self, card: WorkerCard, now: Callable[[], float]) -> None:
        self.beats: dict[str, float] = {}
        """When each background task last did a step without an error, by the monotonic clock."""
        self.errors: dict[str, str] = {}
        """Of background tasks whose last step failed."""
        self._card = replace(card, started_at=now())
        self._now = now
        psutil.cpu_percent(None)  # the next call measures since this one

    def set_isolation(self, isolation: tuple[str, ...]) -> None:
        self._card = replace(self._card, isolation=isolation)

    def card(
        self,
        queues: Mapping[str, int],
        busy: Counter[str],
        running: Collection[Attempt],
        *,
        is_draining: bool,
        lost: int,
    ) -> WorkerCard:
        now, steady = self._now(), time.monotonic()
        return replace(
            self._card,
            queues=queues,
            is_draining=is_draining,
            lost=lost,
            busy={queue: count for queue, count in busy.items() if count},
            work=tuple(work_of(each.claim.job, each.claim.task) for each in list(running)[:MOST_NAMED]),
            duties={name: now - (steady - at) for name, at in self.beats.items()},
            errors=dict(self.errors),
            machine=_machine(now),
        )


class Heartbeat:
    """Publishes the card between renewals, where leases are so long that renewals are too rare."""

    def __init__(self, store: Store, card: Callable[[], WorkerCard], lease: float) -> None:
        self._store = store
        self._card = card
        self._is_needed = lease / 3 > PERIOD

    async def tick(self) -> float:
        if self._is_needed:
            await workers.enroll(self._store, self._card())
        return PERIOD


def _machine(now: float) -> Machine:
    memory = psutil.virtual_memory()
    used, cores = psutil.cpu_percent(None) / 100, psutil.cpu_count() or 1
    return Machine(now, used, cores, memory.total - memory.available, memory.total)


# Metrics and readiness, on a port of their own if the settings name one.

STANDING = 3.0
"""Seconds without an iteration of the claim loop, which has four a second, after which a worker is not ready."""


class Working(Protocol):
    @property
    def is_draining(self) -> bool: ...

    def claim_age(self) -> float:
        """Seconds since the last iteration of the claim loop."""

    def slots(self) -> list[tuple[str, int, int]]:
        """By queue: in use, and in all."""

    def lost_slots(self) -> int:
        """Slots held by processes that the system could not end."""


@contextmanager
def serve_status(worker: Working, settings: Settings) -> Iterator[None]:
    """Raises PortTaken, before anything is claimed."""
    if not settings.metrics_port:
        yield
        return
    host.require_free_port(settings.metrics_host, settings.metrics_port)
    gauges = _Gauges(worker)
    REGISTRY.register(gauges)
    address, port = settings.metrics_host, settings.metrics_port
    server = make_server(address, port, _wsgi_app(worker), _server(address), _Silent)
    thread = threading.Thread(target=server.serve_forever, name="packhorse-metrics", daemon=True)
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
        REGISTRY.unregister(gauges)


def is_ready(worker: Working) -> bool:
    """Whether its claim loop runs: it stops while the store does not answer, and when the worker drains."""
    return not worker.is_draining and worker.claim_age() < STANDING


def _wsgi_app(worker: Working) -> Callable[..., Iterable[bytes]]:
    metrics = make_wsgi_app(REGISTRY)

    def answer(environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        match environ["PATH_INFO"]:
            case "/healthz":
                return _respond(start, "200 OK", "ok")
            case "/readyz" if is_ready(worker):
                return _respond(start, "200 OK", "ready")
            case "/readyz":
                return _respond(start, "503 Service Unavailable", "it does not claim, or it drains")
        response: Iterable[bytes] = metrics(environ, start)
        return response

    return answer


def _respond(start: Callable[..., Any], status: str, text: str) -> Iterable[bytes]:
    start(status, [("Content-Type", "text/plain; charset=utf-8"), ("Cache-Control", "no-store")])
    return [text.encode() + b"\n"]


def _server(host: str) -> type[WSGIServer]:
    """With threads, so that a slow client does not delay the others."""

    class Server(ThreadingMixIn, WSGIServer):
        daemon_threads = True
        address_family = socket.AF_INET6 if ":" in host else socket.AF_INET

    return Server


class _Silent(WSGIRequestHandler):
    def log_message(self, *_: Any) -> None:
        """Requests every few seconds are not worth a log line."""


class _Gauges(Collector):
    """Values that are read on each scrape."""

    def __init__(self, worker: Working) -> None:
        self._worker = worker

    def collect(self) -> Iterable[GaugeMetricFamily]:
        age = "Seconds since the loop that claims has last moved; a quarter of one is much."
        yield GaugeMetricFamily("packhorse_claim_age_seconds", age, self._worker.claim_age())
        busy = GaugeMetricFamily("packhorse_slots_busy", "Slots in use.", labels=["queue"])
        slots = GaugeMetricFamily("packhorse_slots", "Slots of this worker.", labels=["queue"])
        for queue, in_use, count in self._worker.slots():
            busy.add_metric([queue], in_use)
            slots.add_metric([queue], count)
        yield from (busy, slots)
        lost = "Slots in use that are held by processes that the system could not end."
        yield GaugeMetricFamily("packhorse_slots_lost", lost, self._worker.lost_slots())
