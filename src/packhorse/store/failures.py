"""The contract's part about what went wrong: failures and their groups, and what workers have still to do about them.

A failure is written, and counted in its group, by the commit that ends its run (`RecordFailure`), and settled by the
commit that begins or completes another run of its job (`SettleFailures`). In that same step the store notes an errand:
to tell people, if the group is new or was dismissed, and to begin the job again, if its policy says so.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Protocol

from msgspec import Struct

from packhorse.core import json
from packhorse.core.failures import Alert
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


# Errands


Sort = Literal["order", "revive", "alert"]


class Errand(Struct, frozen=True):
    """Something that a worker has still to do, or, with no time at which it is due, an order that is done."""

    id: str
    sort: Sort
    tenant: str
    body: bytes
    """JSON; what is in it depends on the sort."""
    due_at: float | None
    attempts: int = 0
    """How often it was taken: who settles it must have it as it was last taken."""


class Alarm(Struct, frozen=True, omit_defaults=True):
    """The body of an alert: which group was first seen, or seen again, by which failure."""

    fingerprint: str
    failure_id: str
    kind: Alert
    at: float
    is_posted: bool = False
    """The webhooks' messages are in the outbox: only the command is left."""


def alert_of(failure: FailedRun, kind: Alert) -> Errand:
    body = json.encode(Alarm(failure.fingerprint, failure.id, kind, failure.at))
    return Errand(f"alert.{failure.id}", "alert", failure.tenant, body, failure.at)


def revival_of(failure: FailedRun) -> Errand | None:
    if failure.revive_at is None:
        return None
    return Errand(f"revive.{failure.id}", "revive", failure.tenant, json.encode(failure.id), failure.revive_at)


class Errands(Protocol):
    async def add_errand(self, errand: Errand) -> None:
        """Raises `Conflict` if the id is taken."""

    async def take_errands(self, sort: Sort, limit: int, seconds: float) -> list[Errand]:
        """Those due by the store's clock, longest due first, each counted and put off by ``seconds`` in the same step.

        Two takers never have the same one. What a taker that died has not settled is due again by itself.
        """

    async def settle_errand(
        self, errand: Errand, *, due_at: float | None, body: bytes | None = None, is_kept: bool = False
    ) -> bool:
        """Due again then, perhaps with another body; or done with (None), and kept to be seen or not.

        False, and nothing done, if another taker has it since.
        """

    async def orders(self, tenant: str, *, before: str | None = None, limit: int = 50) -> list[Errand]:
        """Orders of the tenant, done ones too, newest first, older than the id ``before``."""

    async def order(self, id: str) -> Errand | None: ...

    async def drop_orders(self, until: str, limit: int) -> int:
        """Delete up to so many that are done and whose id is smaller; how many it were."""
