"""All Prometheus metrics, with names, labels and help texts.

A label has few, known values (a route, a status, a stage), never an id, a user, a tenant or a value from a path: each
new value would create a new series. The registry is separate from the one of a program that mounts packhorse.
"""

from __future__ import annotations

from functools import cache

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest

MEDIA_TYPE = "text/plain; version=0.0.4"

REGISTRY = CollectorRegistry()
ProcessCollector(registry=REGISTRY)

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0, 60.0, 600.0)


def _counter(name: str, meaning: str, *labels: str) -> Counter:
    return Counter(f"packhorse_{name}", meaning, labels, registry=REGISTRY)


requests = _counter("http_requests", "Requests answered.", "method", "route", "status")
request_seconds = Histogram(
    "packhorse_http_request_seconds",
    "Seconds from the first line of a request to the last byte of its answer.",
    ("method", "route"),
    buckets=SECONDS,
    registry=REGISTRY,
)
open_now = Gauge("packhorse_http_open", "Open uploads, downloads and streams.", ("kind",), registry=REGISTRY)
received = _counter("http_received_bytes", "Bytes of bodies that came in.", "route")
sent = _counter("http_sent_bytes", "Bytes of answers handed to the server to be sent.", "route")
submitted = _counter("jobs_submitted", "Submits that were answered with a job.")
refused = _counter("jobs_refused", "Submits that were refused, by the type of the problem.", "reason")

attempts_started = _counter("attempts_started", "Attempts that this worker has begun.", "pipeline", "stage")
attempts_ended = _counter(
    "attempts_ended",
    "Attempts that have ended here: finish, fail, later, hand_back, time_out, stall, or lost to another worker.",
    "pipeline",
    "stage",
    "outcome",
)
# Looking up labels costs as much as counting, so the result is cached.
attempts_started_at = cache(attempts_started.labels)
attempts_ended_as = cache(attempts_ended.labels)
store_errors = _counter("store_errors", "Times the store did not answer this worker.")

for kind in ("upload", "download", "stream"):
    open_now.labels(kind)  # there from the start, as zero


def render_metrics(*registries: CollectorRegistry) -> bytes:
    """All metrics, and those of the given registries, in Prometheus text format."""
    return b"".join(generate_latest(each) for each in (REGISTRY, *registries))
