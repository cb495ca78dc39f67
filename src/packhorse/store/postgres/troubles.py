"""The part of the store about what went wrong."""

from __future__ import annotations

from collections.abc import Sequence

from packhorse.core.models import FailedRun, Settled
from packhorse.store.base import FailureFilter, FailureGroup
from packhorse.store.postgres import failures as failing
from packhorse.store.postgres.session import Handle


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
        return await self._keep(failing.dismiss, ids, settled)

    async def dismiss_group(self, tenant: str, fingerprint: str, settled: Settled) -> FailureGroup | None:
        return await self._keep(failing.dismiss_group, tenant, fingerprint, settled)

    async def forget_failures(self, until: float, limit: int) -> int:
        return await self._keep(failing.forget, until, limit)
