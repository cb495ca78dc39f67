"""Jobs to be ended because a newer one replaces them. The record is written with the newer job, in one step.

Its submitter ends them at once and drops the record; if it dies first, a worker takes the record when it is due.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from packhorse.core import json
from packhorse.core.records import Drop, Put, Record
from packhorse.store.base import Records
from packhorse.store.collections.base import readable

REPLACEMENT = LANE = "replacement"
SOON = 5.0
"""Seconds after which a worker ends what the submitter has not ended."""


class Replacement(Struct, frozen=True, omit_defaults=True):
    by: str
    """The newer job."""
    slot: str | None = None
    """Its slot: who holds it, and who waits for it before the newer job, is cancelled."""
    waiting: str | None = None
    """A debounced job that has not started, and is deleted."""


def put_replacement(replacement: Replacement, now: float) -> Put:
    body = json.encode(replacement)
    return Put(REPLACEMENT, replacement.by, body, lane=LANE, due_at=now + SOON, job_id=replacement.by)


async def take_replacements(store: Records, limit: int, seconds: float) -> Sequence[Replacement]:
    return readable(await store.take(REPLACEMENT, LANE, limit, seconds), _read)


async def drop_replacement(store: Records, replacement: Replacement) -> None:
    await store.put([Drop(REPLACEMENT, replacement.by)], quiet=True)


def _read(record: Record) -> Replacement:
    return json.record(record.body, Replacement)
