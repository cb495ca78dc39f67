"""Failures and their groups by id, and the actions about failures that workers take, one worker at a time.

Stores count failures in the commit that ends a run: see `store/failures.py`. An action is a bulk action ("order"), an
automatic retry or an alert.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from packhorse.core.failures import ACTION, FailureAction, FailureGroup, Sort, action_from, put_action
from packhorse.core.models import FailedRun, Settled
from packhorse.core.records import Drop, Put
from packhorse.errors import Conflict
from packhorse.store.base import Records
from packhorse.store.collections.base import readable, readable_page
from packhorse.store.failures import Failures, Recent


async def get_failures(store: Failures, ids: Sequence[str]) -> list[FailedRun | None]:
    """In the order of ``ids``, None where there is none."""
    found = {each.id: each for each in await store.failures(ids)}
    return [found.get(id) for id in ids]


async def get_group(store: Failures, tenant: str, fingerprint: str) -> FailureGroup | None:
    found = await store.failure_groups(tenant, fingerprints=[fingerprint])
    return found[0] if found else None


async def list_times(
    store: Failures, tenant: str, fingerprints: Sequence[str], *, since: float, limit: int
) -> list[list[float]]:
    """For each group when its newest failures were, since then, newest first."""
    groups = await store.failure_groups(tenant, fingerprints=fingerprints, recent=Recent(since, limit))
    found = {group.fingerprint: list(group.times) for group in groups}
    return [found.get(name, []) for name in fingerprints]


async def dismiss_group(store: Failures, tenant: str, fingerprint: str, settled: Settled) -> None:
    """Revive nothing of it any more, and tell people if it is seen again. Its failures stay as they are."""
    await store.dismiss_failures([], settled, group=(tenant, fingerprint))


# Actions


async def add_action(store: Records, action: FailureAction) -> None:
    """Raises `Conflict` if the id is taken."""
    await store.put([put_action(replace(action, stamp=0))], quiet=True)


async def take_actions(store: Records, sort: Sort, limit: int, seconds: float) -> list[FailureAction]:
    """Those due by the store's clock, longest due first, each counted and put off by ``seconds`` in the same step.

    Two takers never have the same one. What a taker that died has not settled is due again by itself.
    One that cannot be read is logged and left out.
    """
    return readable(await store.take(ACTION, sort, limit, seconds), action_from)


async def settle_action(
    store: Records, action: FailureAction, *, due_at: float | None, body: bytes | None = None, is_kept: bool = False
) -> bool:
    """Make it due again then, perhaps with another body; or finish it (None), and keep it to be seen or not.

    False, and nothing written, if another taker has it since.
    """
    write: Put | Drop = Drop(ACTION, action.id, stamp=action.stamp)
    if due_at is not None or is_kept:
        write = put_action(replace(action, due_at=due_at, body=action.body if body is None else body))
    try:
        await store.put([write], quiet=True)
    except Conflict:
        return False
    return True


async def list_orders(
    store: Records, tenant: str, *, before: str | None = None, limit: int = 50
) -> list[FailureAction]:
    """Orders of the tenant, done ones too, newest first, older than the id ``before``; without unreadable ones."""
    return await readable_page(
        lambda most: store.scan(ACTION, f"tenant/{tenant}", before=before, limit=most, newest=True), limit, action_from
    )


async def get_order(store: Records, id: str) -> FailureAction | None:
    [found] = await store.fetch(ACTION, [id])
    action = None if found is None else action_from(found)
    return action if action is not None and action.sort == "order" else None


async def drop_orders(store: Records, until: str, limit: int) -> int:
    """Delete up to so many that are done and whose id is smaller; returns how many."""
    found = await store.scan(ACTION, "done", before=until, limit=limit)
    if found:
        await store.put([Drop(ACTION, each.id) for each in found], quiet=True)
    return len(found)
