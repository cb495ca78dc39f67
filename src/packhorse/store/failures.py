"""The contract's part about what went wrong: failures and their groups.

A failure is written, and counted in its group, by the commit that ends its run (`RecordFailure`), and settled by the
commit that begins or completes another run of its job (`SettleFailures`). In that same step the store writes an errand:
to tell people, if the group is new or was dismissed, and to begin the job again, if its policy says so.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from msgspec import Struct

from packhorse.core.failures import FailureGroup as FailureGroup
from packhorse.core.models import FailedRun, FailureStatus, Settled


class FailureFilter(Struct, frozen=True, omit_defaults=True):
    tenant: str
    fingerprint: str | None = None
    job_id: str | None = None
    user: str | None = None
    pipeline: str | None = None
    code: str | None = None
    status: FailureStatus | None = None
    schedule: str | None = None
    since: float | None = None
    until: float | None = None


class Failures(Protocol):
    async def failures(self, wanted: FailureFilter, *, before: str | None = None, limit: int = 50) -> list[FailedRun]:
        """Newest first, older than the id ``before``. By fingerprint, or by a job that is there, no others are read."""

    async def failures_by_id(self, ids: Sequence[str]) -> list[FailedRun | None]:
        """In the order asked for, None where there is none."""

    async def failure_groups(self, tenant: str, *, before: str | None = None, limit: int = 50) -> list[FailureGroup]:
        """The last seen first, behind the place ``before`` (`FailureGroup.seen`). Reads no failure."""

    async def failure_group(self, tenant: str, fingerprint: str) -> FailureGroup | None: ...

    async def failure_times(
        self, tenant: str, fingerprints: Sequence[str], *, since: float, limit: int
    ) -> list[list[float]]:
        """For each group when its newest failures were, since then, newest first. No failure is read: its id says."""

    async def dismiss_failures(self, ids: Sequence[str], settled: Settled) -> list[str]:
        """Dismiss those that are open; which they were."""

    async def dismiss_group(self, tenant: str, fingerprint: str, settled: Settled) -> FailureGroup | None:
        """Revive nothing of it any more, and tell people if it is seen again. Its failures stay as they are."""

    async def forget_failures(self, until: float, limit: int) -> int:
        """Delete up to so many failures from before then, and take them out of their groups; how many it were.

        A group goes with its last failure.
        """
