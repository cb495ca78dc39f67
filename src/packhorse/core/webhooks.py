"""Webhook deliveries: the record that the end of a run leaves for each endpoint."""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import replace

from packhorse.core import json
from packhorse.core.records import IndexEntry, Put, Ref, time_place

DELIVERY = "delivery"
OPEN_ENDPOINT = "open_endpoint"
"""A record that exists as long as its endpoint is open: a delivery needs it."""
NO_JOB = "00000000-0000-0000-0000-000000000000"
"""The job of a delivery that is about none."""


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
    body: str = ""
    """The message, if it is not about a job: then its job is `NO_JOB`."""
    stamp: int = 0
    """Of its record: whoever settles it must have it as it is stored."""


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
