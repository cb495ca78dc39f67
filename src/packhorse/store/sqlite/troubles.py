"""The part of the store about what went wrong."""

from __future__ import annotations

from collections.abc import Sequence

from packhorse.core.models import FailedRun, Settled
from packhorse.store.base import FailureFilter, FailureGroup
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
