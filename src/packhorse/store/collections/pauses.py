"""Paused queues. Workers read them before they claim; `claim` itself does not."""

from __future__ import annotations

from msgspec import Struct

from packhorse.core import json
from packhorse.core.records import Drop, Put, Record
from packhorse.store.base import Records
from packhorse.store.collections.base import by_id, list_by_id, update

KIND = "pause"


class Pause(Struct, frozen=True):
    """Nothing of the queue is to be started, and who paused it."""

    queue: str
    at: float
    by: str
    reason: str = ""


async def pause(store: Records, pause: Pause) -> None:
    """Pause the queue, or replace the pause it has."""
    await store.put([Put(KIND, pause.queue, json.encode(pause), index=by_id(pause.queue))])


async def resume(store: Records, queue: str) -> bool:
    """Whether the queue was paused."""

    def decide(found: Record | None) -> tuple[Drop | None, bool]:
        return (None, False) if found is None else (Drop(KIND, queue, stamp=found.stamp), True)

    return await update(store, KIND, queue, decide, quiet=False)


async def list_all(store: Records) -> list[Pause]:
    """By the name of the queue."""
    return [json.record(found.body, Pause) for found in await list_by_id(store, KIND)]
