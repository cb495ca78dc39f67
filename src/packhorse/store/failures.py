"""The contract's part about failed runs and their groups, and how the SQL stores count them.

A failure is written, and counted in its group, by the commit that ends its run (`RecordFailure`), and settled by the
commit that begins or completes another run of its job (`SettleFailures`). In that same step the store writes an action:
to tell people, if the group is new or was dismissed, and to begin the job again, if its policy says so.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, Protocol

from msgspec import Struct
from msgspec.structs import replace

from packhorse.core import failures as rules
from packhorse.core import json
from packhorse.core.changes import SettleFailures
from packhorse.core.failures import FailureGroup as FailureGroup
from packhorse.core.models import FailedRun, FailureStatus, Settled
from packhorse.core.records import Put


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
    """Which of the newest failures of a group to return."""

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

        And mark the group, tenant and fingerprint, as dismissed: nothing of it is revived any more, and an alert says
        if it is seen again. Its other failures stay as they are.
        """

    async def forget_failures(self, until: float, limit: int) -> int:
        """Delete up to so many failures from before then, and take them out of their groups; returns how many.

        A group goes with its last failure.
        """


# What the SQL stores share


Key = tuple[str, str]
"""Tenant and fingerprint."""


class Ledger:
    """Failures, groups and users as a transaction that holds the groups leaves them. The store writes them."""

    def __init__(self) -> None:
        self.groups: dict[Key, FailureGroup | None] = {}
        self.users: dict[tuple[str, str, str], int] = {}
        """How many counted failures each user has in a group."""
        self.failures: dict[str, tuple[FailedRun, bool]] = {}
        """By id, each with whether its user is counted."""
        self.added: list[str] = []
        self.moved: set[str] = set()
        self.gone: set[str] = set()
        self.alerts: list[Put] = []

    def record(self, failure: FailedRun) -> None:
        key = (failure.tenant, failure.fingerprint)
        count = self.users.get((*key, failure.user), 0)
        self.groups[key], is_counted, alert = rules.add_to_group(self.groups[key], failure, is_known=count > 0)
        if is_counted:
            self.users[*key, failure.user] = count + 1
        self.failures[failure.id] = (failure, is_counted)
        self.added.append(failure.id)
        if alert is not None:
            self.alerts.append(rules.put_action(rules.new_alert(failure, alert)))

    def settle(self, job_id: str, effect: SettleFailures) -> None:
        for failure, _ in list(self.failures.values()):
            if failure.job_id == job_id and failure.status is effect.was:
                self._move(failure, effect.now, effect.settled or failure.settled)

    def dismiss(self, settled: Settled) -> set[str]:
        """Dismiss those that are open; returns which they were."""
        opened = [failure for failure, _ in self.failures.values() if failure.status is FailureStatus.OPEN]
        for failure in opened:
            self._move(failure, FailureStatus.DISMISSED, settled)
        return {failure.id for failure in opened}

    def _move(self, failure: FailedRun, to: FailureStatus, settled: Settled | None) -> None:
        group = self.groups[failure.tenant, failure.fingerprint]
        if group is not None:
            self.groups[failure.tenant, failure.fingerprint] = rules.move_in_group(group, failure.status, to)
        self.failures[failure.id] = (replace(failure, status=to, settled=settled), self.failures[failure.id][1])
        self.moved.add(failure.id)

    def forget(self) -> int:
        """Remove all of them; returns how many. A group goes with its last failure."""
        for failure, is_counted in self.failures.values():
            key = (failure.tenant, failure.fingerprint)
            user = (*key, failure.user)
            if is_counted:
                self.users[user] = self.users.get(user, 1) - 1
            is_last = is_counted and self.users[user] == 0
            group = self.groups[key]
            if group is not None:
                self.groups[key] = rules.remove_from_group(group, failure, is_counted=is_counted, is_last=is_last)
        self.gone |= self.failures.keys()
        self.failures = {}
        return len(self.gone)


def conditions(wanted: FailureFilter, before: str | None) -> Iterator[tuple[str, str]]:
    """The conditions of a filter beside the tenant, by name, each with its value."""
    for name in ("fingerprint", "job_id", "user", "pipeline", "code", "status", "schedule"):
        value = getattr(wanted, name)
        if value is not None:
            yield name, str(value)
    if before is not None:
        yield "before", before
    if wanted.since is not None:
        yield "since", rules.first_id(wanted.since)
    if wanted.until is not None:
        yield "until", rules.first_id(wanted.until)


def failure_row(failure: FailedRun, is_counted: bool) -> tuple[Any, ...]:
    return (
        failure.id, failure.tenant, failure.fingerprint, failure.job_id, failure.user, failure.pipeline, failure.code,
        failure.schedule, failure.status.value, is_counted,
        None if failure.settled is None else json.encode(failure.settled), json.encode(failure),
    )  # fmt: skip


def failure_from(row: Any) -> tuple[FailedRun, bool]:
    """The failure, and whether its user is counted."""
    body, status, settled, is_counted = row
    became = None if settled is None else json.record(settled, Settled)
    return replace(json.record(body, FailedRun), status=FailureStatus(status), settled=became), bool(is_counted)
