"""The part of the store about what went wrong, and what is still to be done about it."""

from __future__ import annotations

from collections.abc import Sequence

from packhorse.core.models import FailedRun, Settled
from packhorse.store.base import Errand, FailureFilter, FailureGroup
from packhorse.store.failures import Sort
from packhorse.store.sqlite import errands
from packhorse.store.sqlite import failures as failing
from packhorse.store.sqlite.session import Handle


class Troubles(Handle):
    # Failures

    async def failures(self, wanted: FailureFilter, *, before: str | None = None, limit: int = 50) -> list[FailedRun]:
        return await self._read(failing.find, wanted, before, limit)

    async def failures_by_id(self, ids: Sequence[str]) -> list[FailedRun | None]:
        return await self._read(failing.by_id, ids)

    async def failure_groups(self, tenant: str, *, before: str | None = None, limit: int = 50) -> list[FailureGroup]:
        return await self._read(failing.groups, tenant, before, limit)

    async def failure_group(self, tenant: str, fingerprint: str) -> FailureGroup | None:
        return await self._read(failing.group, tenant, fingerprint)

    async def failure_times(
        self, tenant: str, fingerprints: Sequence[str], *, since: float, limit: int
    ) -> list[list[float]]:
        return await self._read(failing.times, tenant, fingerprints, since, limit)

    async def dismiss_failures(self, ids: Sequence[str], settled: Settled) -> list[str]:
        return await self._write(lambda db: failing.dismiss(db, ids, settled))

    async def dismiss_group(self, tenant: str, fingerprint: str, settled: Settled) -> FailureGroup | None:
        return await self._write(lambda db: failing.dismiss_group(db, tenant, fingerprint, settled))

    async def forget_failures(self, until: float, limit: int) -> int:
        """Looked at first, as below: every sweep asks."""
        if not await self._read(failing.has_older, until):
            return 0
        return await self._write(lambda db: failing.forget(db, until, limit))

    # Errands

    async def add_errand(self, errand: Errand) -> None:
        await self._write(lambda db: errands.add(db, errand))

    async def take_errands(self, sort: Sort, limit: int, seconds: float) -> list[Errand]:
        """Looked at first: who finds nothing, as most do, need not wait for the one writer."""
        if not await self._read(errands.has_due, sort, self.now()):
            return []
        return await self._write(lambda db: errands.take(db, sort, self.now(), limit, seconds))

    async def settle_errand(
        self, errand: Errand, *, due_at: float | None, body: bytes | None = None, is_kept: bool = False
    ) -> bool:
        return await self._write(lambda db: errands.settle(db, errand, due_at, body, is_kept=is_kept))

    async def orders(self, tenant: str, *, before: str | None = None, limit: int = 50) -> list[Errand]:
        return await self._read(errands.orders, tenant, before, limit)

    async def order(self, id: str) -> Errand | None:
        return await self._read(errands.order, id)

    async def drop_orders(self, until: str, limit: int) -> int:
        if not await self._read(errands.has_done, until):
            return 0
        return await self._write(lambda db: errands.drop(db, until, limit))
