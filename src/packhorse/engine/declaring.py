"""Schedules that an app's code declares: made once, and kept up as long as no person has changed them."""

from __future__ import annotations

from collections.abc import Sequence

from packhorse.core import schedules
from packhorse.core.schedules import Declared
from packhorse.errors import Conflict
from packhorse.store.base import Store

TENANT = "default"
"""Whose they are: an app knows of no tenants."""


async def declare(store: Store, declared: Sequence[Declared]) -> None:
    for each in declared:
        await _declare(store, each)


async def _declare(store: Store, declared: Declared) -> None:
    """Read, decide, write; look again while another worker that starts just now is faster."""
    while True:
        found, now = await store.schedule(TENANT, declared.id), store.now()
        if found is None:
            move = schedules.create(
                TENANT, declared.id, declared.terms, author=schedules.CODE, now=now, declared=declared.terms
            )
        else:
            changed = schedules.declare(found, declared.terms, now=now)
            if changed is None:
                return
            move = changed
        try:
            await store.move(move)
        except Conflict:
            continue
        return
