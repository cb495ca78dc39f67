"""Failures and their groups by id. Stores count them in the commit that ends a run: see `store/failures.py`."""

from __future__ import annotations

from collections.abc import Sequence

from packhorse.core.failures import FailureGroup
from packhorse.core.models import FailedRun, Settled
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
