"""The contract's part about what went wrong: failures and their groups.

A failure is written, and counted in its group, by the commit that ends its run (`RecordFailure`), and settled by the
commit that begins or completes another run of its job (`SettleFailures`). In that same step the store writes an action:
to tell people, if the group is new or was dismissed, and to begin the job again, if its policy says so.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

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


class Recent(NamedTuple):
    """Which of the newest failures of a group are asked for."""

    since: float
    limit: int


class Failures(Protocol):
    async def failures(
        self, wanted: FailureFilter | Sequence[str], *, before: str | None = None, limit: int = 50
    ) -> list[FailedRun]:
        """Newest first, older than the id ``before``. By fingerprint, or by a job that is there, no others are read.

        For ids instead of a filter: all of those that exist.
        """

    async def failure_groups(
        self,
        tenant: str,
        *,
        fingerprints: Sequence[str] | None = None,
        before: str | None = None,
        limit: int = 50,
        recent: Recent | None = None,
    ) -> list[FailureGroup]:
        """The last seen first, behind the place ``before`` (`FailureGroup.seen`); or all of these that exist.

        With ``recent`` each has its `FailureGroup.times`. Reads no failure: an id says when it was.
        """

    async def dismiss_failures(
        self, ids: Sequence[str], settled: Settled, *, group: tuple[str, str] | None = None
    ) -> list[str]:
        """Dismiss those that are open; returns which they were.

        And mark the group, tenant and fingerprint, as dismissed: nothing of it is revived any more, and people are told
        if it is seen again. Its other failures stay as they are.
        """

    async def forget_failures(self, until: float, limit: int) -> int:
        """Delete up to so many failures from before then, and take them out of their groups; returns how many.

        A group goes with its last failure.
        """
