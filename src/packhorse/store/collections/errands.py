"""Errands: bulk actions ("orders"), automatic retries and alerts that workers take, one worker at a time."""

from __future__ import annotations

from msgspec.structs import replace

from packhorse.core.errands import ERRAND, Errand, Sort, errand_from, put_errand
from packhorse.core.records import Drop, Put
from packhorse.errors import Conflict
from packhorse.store.base import Records


async def add_errand(store: Records, errand: Errand) -> None:
    """Raises `Conflict` if the id is taken."""
    await store.put([put_errand(replace(errand, stamp=0))], quiet=True)


async def take_errands(store: Records, sort: Sort, limit: int, seconds: float) -> list[Errand]:
    """Those due by the store's clock, longest due first, each counted and put off by ``seconds`` in the same step.

    Two takers never have the same one. What a taker that died has not settled is due again by itself.
    """
    return [errand_from(found) for found in await store.take(ERRAND, sort, limit, seconds)]


async def settle_errand(
    store: Records, errand: Errand, *, due_at: float | None, body: bytes | None = None, is_kept: bool = False
) -> bool:
    """Make it due again then, perhaps with another body; or finish it (None), and keep it to be seen or not.

    False, and nothing written, if another taker has it since.
    """
    write: Put | Drop = Drop(ERRAND, errand.id, stamp=errand.stamp)
    if due_at is not None or is_kept:
        write = put_errand(replace(errand, due_at=due_at, body=errand.body if body is None else body))
    try:
        await store.put([write], quiet=True)
    except Conflict:
        return False
    return True


async def list_orders(store: Records, tenant: str, *, before: str | None = None, limit: int = 50) -> list[Errand]:
    """Orders of the tenant, done ones too, newest first, older than the id ``before``."""
    found = await store.scan(ERRAND, f"tenant/{tenant}", before=before, limit=limit, newest=True)
    return [errand_from(each) for each in found]


async def get_order(store: Records, id: str) -> Errand | None:
    [found] = await store.fetch(ERRAND, [id])
    errand = None if found is None else errand_from(found)
    return errand if errand is not None and errand.sort == "order" else None


async def drop_orders(store: Records, until: str, limit: int) -> int:
    """Delete up to so many that are done and whose id is smaller; returns how many."""
    found = await store.scan(ERRAND, "done", before=until, limit=limit)
    if found:
        await store.put([Drop(ERRAND, each.id) for each in found], quiet=True)
    return len(found)
