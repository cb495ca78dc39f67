"""The part of the store about what went wrong."""

from __future__ import annotations

from collections.abc import Sequence

from packhorse.core.models import FailedRun, Settled
from packhorse.store.base import FailureFilter, FailureGroup
from packhorse.store.redis import failures as failing
from packhorse.store.redis.session import Handle


class Troubles(Handle):
    # Failures

    async def failures(self, wanted: FailureFilter, *, before: str | None = None, limit: int = 50) -> list[FailedRun]:
        return await failing.find(self._link, wanted, before, limit)

    async def failures_by_id(self, ids: Sequence[str]) -> list[FailedRun | None]:
        return await failing.by_id(self._link, ids)

    async def failure_groups(self, tenant: str, *, before: str | None = None, limit: int = 50) -> list[FailureGroup]:
        return await failing.groups(self._link, tenant, before, limit)

    async def failure_group(self, tenant: str, fingerprint: str) -> FailureGroup | None:
        return await failing.group(self._link, tenant, fingerprint)

    async def failure_times(
        self, tenant: str, fingerprints: Sequence[str], *, since: float, limit: int
    ) -> list[list[float]]:
        self._open()
        return await failing.times(self._link, tenant, fingerprints, since, limit)

    async def dismiss_failures(self, ids: Sequence[str], settled: Settled) -> list[str]:
        return await failing.dismiss(self._write, ids, settled)

    async def dismiss_group(self, tenant: str, fingerprint: str, settled: Settled) -> FailureGroup | None:
        return await failing.dismiss_group(self._link, self._write, tenant, fingerprint, settled)

    async def forget_failures(self, until: float, limit: int) -> int:
        return await failing.forget(self._link, self._write, until, limit)
