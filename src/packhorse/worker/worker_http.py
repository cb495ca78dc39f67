"""A worker's numbers for Prometheus, and whether it is ready, on a port of their own, if the settings name one."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from socketserver import ThreadingMixIn
from typing import Any, Protocol
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from prometheus_client import make_wsgi_app
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from packhorse.host import require_free_port
from packhorse.metrics import REGISTRY
from packhorse.settings import Settings

Slots = tuple[str, int, int]
"""Queue, slots in use, slots in all."""


STANDING = 3.0
"""Seconds without a move of the loop that claims after which a worker is not ready: it moves four times a second."""


class Working(Protocol):
    @property
    def is_draining(self) -> bool: ...

    def claim_age(self) -> float:
        """Seconds since the loop that claims has last moved."""

    def slots(self) -> list[Slots]: ...


@contextmanager
def serve_status(worker: Working, settings: Settings) -> Iterator[None]:
    """Raises PortTaken, before anything is claimed."""
    if not settings.metrics_port:
        yield
        return
    require_free_port(settings.host, settings.metrics_port)
    numbers = _Numbers(worker)
    REGISTRY.register(numbers)
    server = make_server(settings.host, settings.metrics_port, _answers(worker), _server(settings.host), _Silent)
    thread = threading.Thread(target=server.serve_forever, name="packhorse-metrics", daemon=True)
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
        REGISTRY.unregister(numbers)


def is_ready(worker: Working) -> bool:
    """The loop that claims moves: it does so only while the store answers, and not any more when it drains."""
    return not worker.is_draining and worker.claim_age() < STANDING


def _answers(worker: Working) -> Callable[..., Iterable[bytes]]:
    numbers = make_wsgi_app(REGISTRY)

    def answer(environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        match environ["PATH_INFO"]:
            case "/healthz":
                return _respond(start, "200 OK", "ok")
            case "/readyz" if is_ready(worker):
                return _respond(start, "200 OK", "ready")
            case "/readyz":
                return _respond(start, "503 Service Unavailable", "it does not claim, or it drains")
        found: Iterable[bytes] = numbers(environ, start)
        return found

    return answer


def _respond(start: Callable[..., Any], status: str, text: str) -> Iterable[bytes]:
    start(status, [("Content-Type", "text/plain; charset=utf-8"), ("Cache-Control", "no-store")])
    return [text.encode() + b"\n"]


def _server(host: str) -> type[WSGIServer]:
    """One who reads slowly keeps nobody else waiting."""

    class Server(ThreadingMixIn, WSGIServer):
        daemon_threads = True
        address_family = socket.AF_INET6 if ":" in host else socket.AF_INET

    return Server


class _Silent(WSGIRequestHandler):
    def log_message(self, *_: Any) -> None:
        """What is asked every few seconds is nothing for a log."""


class _Numbers(Collector):
    """What is read when it is asked for, instead of being counted."""

    def __init__(self, worker: Working) -> None:
        self._worker = worker

    def collect(self) -> Iterable[GaugeMetricFamily]:
        age = "Seconds since the loop that claims has last moved; a quarter of one is much."
        yield GaugeMetricFamily("packhorse_claim_age_seconds", age, self._worker.claim_age())
        busy = GaugeMetricFamily("packhorse_slots_busy", "Slots in use.", labels=["queue"])
        all_of_them = GaugeMetricFamily("packhorse_slots", "Slots of this worker.", labels=["queue"])
        for queue, in_use, count in self._worker.slots():
            busy.add_metric([queue], in_use)
            all_of_them.add_metric([queue], count)
        yield from (busy, all_of_them)
