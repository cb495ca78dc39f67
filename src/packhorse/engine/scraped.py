"""A worker's numbers for Prometheus, on a port of their own, if the settings name one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Protocol

from prometheus_client import start_http_server
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from packhorse.metrics import REGISTRY
from packhorse.ports import require_free
from packhorse.settings import Settings

Slots = tuple[str, int, int]
"""Queue, slots in use, slots in all."""


class Working(Protocol):
    def claim_age(self) -> float:
        """Seconds since the loop that claims has last moved."""

    def slots(self) -> list[Slots]: ...


@contextmanager
def scraped(worker: Working, settings: Settings) -> Iterator[None]:
    """Raises PortTaken, before anything is claimed."""
    if not settings.metrics_port:
        yield
        return
    require_free(settings.host, settings.metrics_port)
    numbers = _Numbers(worker)
    REGISTRY.register(numbers)
    server, thread = start_http_server(settings.metrics_port, settings.host, REGISTRY)
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
        REGISTRY.unregister(numbers)


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
