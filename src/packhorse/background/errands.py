"""Errands one by one: what is wrong with one of them is told, and keeps none of the others from being done."""

from __future__ import annotations

from collections.abc import Awaitable, Sequence

from packhorse.log import log
from packhorse.store.base import Errand, Store

SOONEST, LATEST = 5.0, 600.0
"""Seconds until an errand that failed is tried again: the more often it was taken, the longer."""


async def done(store: Store, errands: Sequence[Errand], work: Awaitable[None]) -> None:
    try:
        await work
    except Exception as error:  # broad: those behind it, of other tenants too, would never have their turn
        log.duty_failed(f"errand {errands[0].id}", error)
        await _put_back(store, errands)


async def _put_back(store: Store, errands: Sequence[Errand]) -> None:
    for errand in errands:
        pause = min(LATEST, SOONEST * 2 ** min(errand.attempts, 10))
        try:
            await store.settle_errand(errand, due_at=store.now() + pause)
        except Exception as error:  # broad, as above; it is due again by itself
            log.duty_failed(f"errand {errand.id}", error)
            return
