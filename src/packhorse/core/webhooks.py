"""Webhook deliveries: the record that the end of a run leaves for each endpoint, and when it is sent again."""

from __future__ import annotations

from itertools import accumulate

from msgspec import Struct
from msgspec.structs import replace

from packhorse.core import json
from packhorse.core.records import IndexEntry, Put, Ref, time_place

DELIVERY = "delivery"
OPEN_ENDPOINT = "open_endpoint"  # a record that exists as long as its endpoint is open: a delivery needs it
NO_JOB = "00000000-0000-0000-0000-000000000000"  # the job of a delivery that is about none

MINUTE, HOUR, DAY = 60.0, 3600.0, 86_400.0

WEBHOOK_DELAYS = (5.0, 5 * MINUTE, 30 * MINUTE, 2 * HOUR, 5 * HOUR, 10 * HOUR, 14 * HOUR, 20 * HOUR, DAY)
WEBHOOK_AGES = tuple(accumulate(WEBHOOK_DELAYS))
"""Ages of a message at which it is sent again. Counted by age, so that waiting in a queue costs no attempt."""
MIN_WEBHOOK_DELAY = WEBHOOK_DELAYS[0] / 2  # a retry time closer than this counts as passed
JITTER = 0.1  # spread, so that messages that failed together are not retried together
MAX_RETRY_AFTER = DAY  # maximum delay that a receiver can request with Retry-After

ENDPOINT_GIVE_UP = 5 * DAY  # an endpoint that accepted no message for this long is disabled
ENDPOINT_FORGIVE = 2 * DAY  # failures older than this no longer count against an endpoint


class Delivery(Struct, frozen=True, omit_defaults=True):
    """A message of the outbox, made in the same step as the terminal status it reports."""

    id: str
    """Job, run and endpoint: the same however often it is sent, so that a receiver recognises repeats."""
    endpoint: str
    job_id: str
    run: int
    at: float
    attempts: int = 0
    next_at: float = 0.0
    error: str = ""
    body: str = ""  # the message, if it is not about a job: then its job is `NO_JOB`
    stamp: int = 0  # of its record: to settle it, a worker must have it as it is stored


def job_delivery(job_id: str, run: int, endpoint: str, at: float) -> Delivery:
    return Delivery(f"{job_id}.{run}.{endpoint}", endpoint, job_id, run, at, next_at=at)


def put_delivery(delivery: Delivery) -> Put:
    """The write of a delivery that carries ``delivery.stamp``; 0 if it is new. Attempts are counted by who takes it."""
    return Put(
        DELIVERY,
        delivery.id,
        json.encode(replace(delivery, attempts=0, next_at=0.0, stamp=0)),
        stamp=delivery.stamp,
        index=(IndexEntry(f"endpoint/{delivery.endpoint}", time_place(delivery.at, delivery.id)),),
        due_at=delivery.next_at,
        attempts=None if delivery.stamp else 0,
        job_id=None if delivery.job_id == NO_JOB else delivery.job_id,
        needs=Ref(OPEN_ENDPOINT, delivery.endpoint),
    )


def webhook_delay(age: float, attempts: int, luck: float, asked: float = 0.0) -> float | None:
    """Seconds until a message of this age is sent again; None if no attempt is left.

    A message that could not be sent because no worker was running still gets all its attempts.
    """
    coming = next((moment - age for moment in WEBHOOK_AGES if moment - age >= MIN_WEBHOOK_DELAY), None)
    if coming is None and attempts < len(WEBHOOK_DELAYS):
        coming = WEBHOOK_DELAYS[attempts]
    if coming is None:
        return None
    return max(coming * (1 + JITTER * luck), min(asked, MAX_RETRY_AFTER))
