"""Queues: pauses, which workers read before they claim (`claim` itself does not), and a reading of each minute."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress

from msgspec import Struct, field

from packhorse.core import json
from packhorse.core.records import Drop, IndexEntry, Put, Record, time_place
from packhorse.errors import Conflict, CorruptRecord
from packhorse.store.base import Records
from packhorse.store.collections.base import by_id, log_unreadable, readable, scan_all, update
from packhorse.store.counters import MINUTE

PAUSE, READING = "pause", "reading"

READINGS_KEPT = 72 * 3600
"""Seconds for which the reading of each minute is kept."""
DROPPED = 100
"""Old readings that are dropped for each new one."""


class Pause(Struct, frozen=True):
    """Nothing of the queue is to be started, and who paused it."""

    queue: str
    at: float
    by: str
    reason: str = ""


async def put_pause(store: Records, pause: Pause) -> None:
    """Pause the queue, or replace the pause it has."""
    await store.put([Put(PAUSE, pause.queue, json.encode(pause), index=by_id(pause.queue))])


async def drop_pause(store: Records, queue: str) -> bool:
    """Whether the queue was paused."""

    def decide(found: Record | None) -> tuple[Drop | None, bool]:
        return (None, False) if found is None else (Drop(PAUSE, queue, stamp=found.stamp), True)

    return await update(store, PAUSE, queue, decide, quiet=False)


async def list_pauses(store: Records) -> list[Pause]:
    """By the name of the queue. One that cannot be read still pauses its queue."""
    return [_pause(found) for found in await scan_all(store, PAUSE)]


def _pause(found: Record) -> Pause:
    try:
        return json.record(found.body, Pause)
    except CorruptRecord as error:
        log_unreadable(PAUSE, found.id, str(error))
        return Pause(found.id, 0.0, "", "The record of this pause cannot be read. Resume the queue to remove it.")


class Level(Struct, frozen=True, omit_defaults=True):
    """A queue at one moment."""

    ready: int = 0
    oldest: float = 0.0
    """Seconds that the oldest ready task has waited."""
    running: int = 0
    slots: int = 0


class Reading(Struct, frozen=True, omit_defaults=True):
    """The state of workers and queues in one minute."""

    at: int
    """The beginning of the minute."""
    workers: int = 0
    queues: Mapping[str, Level] = field(default_factory=dict)


async def add_reading(store: Records, reading: Reading) -> bool:
    """Keep it, unless that minute has one already; whether it was kept. Drops some that are too old."""
    past = time_place(store.now() - READINGS_KEPT - MINUTE)
    old = await store.scan(READING, "time", before=past, limit=DROPPED)
    put = Put(READING, str(reading.at), json.encode(reading), stamp=0, index=(_place(reading.at),))
    with suppress(Conflict):
        await store.put([put, *(Drop(READING, each.id) for each in old)], quiet=True)
        return True
    return False


async def list_readings(store: Records, since: float) -> list[Reading]:
    """Those of minutes that end after ``since``, oldest first."""
    first = int(max(since, store.now() - READINGS_KEPT, 0.0) // MINUTE) * MINUTE
    found = await store.scan(READING, "time", after=time_place(first), limit=2 * READINGS_KEPT // MINUTE)
    return readable(found, lambda each: json.record(each.body, Reading))


def _place(at: int) -> IndexEntry:
    return IndexEntry("time", time_place(at, str(at)))
