"""Errands: what workers still have to do about failures, and the records that carry them."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from packhorse.core import json
from packhorse.core.failures import Alert
from packhorse.core.models import FailedRun
from packhorse.core.records import IndexEntry, Put, Record

ERRAND = "errand"

Sort = Literal["order", "revive", "alert"]


class Errand(Struct, frozen=True):
    """Something that a worker still has to do; or, without a time at which it is due, an order that is done."""

    id: str
    sort: Sort
    tenant: str
    body: bytes
    """JSON; its content depends on the sort."""
    due_at: float | None
    attempts: int = 0
    """How often it was taken."""
    stamp: int = 0
    """Of its record: whoever settles it must have it as it is stored. 0 if it is new."""


class Alarm(Struct, frozen=True, omit_defaults=True):
    """The body of an alert: which group was first seen, or seen again, by which failure."""

    fingerprint: str
    failure_id: str
    kind: Alert
    at: float
    is_posted: bool = False
    """The webhooks' messages are in the outbox: only the command is left."""


class _Body(Struct, frozen=True):
    """The body of the record. The errand's own body is text in it: one that is broken spoils no other."""

    sort: Sort
    tenant: str
    body: str


def new_alert(failure: FailedRun, kind: Alert) -> Errand:
    body = json.encode(Alarm(failure.fingerprint, failure.id, kind, failure.at))
    return Errand(f"alert.{failure.id}", "alert", failure.tenant, body, failure.at)


def new_revival(failure: FailedRun) -> Errand | None:
    if failure.revive_at is None:
        return None
    return Errand(f"revive.{failure.id}", "revive", failure.tenant, json.encode(failure.id), failure.revive_at)


def put_errand(errand: Errand) -> Put:
    """The write of an errand whose record carries ``errand.stamp``. Only orders are listed."""
    index: list[IndexEntry] = []
    if errand.sort == "order":
        index.append(IndexEntry(f"tenant/{errand.tenant}", errand.id))
        if errand.due_at is None:
            index.append(IndexEntry("done", errand.id))
    return Put(
        ERRAND,
        errand.id,
        json.encode(_Body(errand.sort, errand.tenant, errand.body.decode())),
        stamp=errand.stamp,
        index=tuple(index),
        lane=errand.sort,
        due_at=errand.due_at,
        attempts=None if errand.stamp else errand.attempts,
    )


def errand_from(found: Record) -> Errand:
    body = json.record(found.body, _Body)
    return Errand(found.id, body.sort, body.tenant, body.body.encode(), found.due_at, found.attempts, found.stamp)
