"""Failed runs: fingerprints, counts of failure groups, and the actions that workers still have to take about them."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from packhorse.core import json
from packhorse.core.models import FailedRun, Failure, FailureStatus, Job, Settled
from packhorse.core.records import IndexEntry, Put, Record

MAX_MESSAGE = 500  # Characters of a message kept with a failure. The job keeps the whole message.
MAX_USERS = 1000  # Users counted per group. Beyond that, the number is a lower bound.
HOUR = 3600.0
TREND_HOURS = 24  # hours that a trend covers
MAX_TIMES = 200  # Newest failures of a group that its trend counts. Bounded, so that a list of groups stays fast.

# In this order: longer patterns first, so that they are not replaced in parts.
VARYING = (
    (re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d([.,]\d+)?)?(Z|[+-]\d\d:?\d\d)?"), "<time>"),
    (re.compile(r"\b[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}\b"), "<id>"),
    (re.compile(r"'[^'\n]{0,400}'|\"[^\"\n]{0,400}\"|`[^`\n]{0,400}`"), "<text>"),
    (re.compile(r"\b[a-zA-Z][a-zA-Z0-9+.-]*://[^\s)>\]]+"), "<address>"),
    (re.compile(r"\b[\w.+-]+@[\w-]+(\.[\w-]+)+"), "<address>"),
    (re.compile(r"(?<![\w<])(?:[A-Za-z]:)?(?:[\\/][\w.@+~-]+)+[\\/]?"), "<path>"),
    (re.compile(r"\b0[xX][0-9a-fA-F]+\b|\b(?=[0-9a-fA-F]*[0-9])[0-9a-fA-F]{8,}\b"), "<hex>"),
    (re.compile(r"[-+]?\d+([.,]\d+)*([eE][-+]?\d+)?"), "<n>"),
    (re.compile(r"\s+"), " "),
)

Alert = Literal["new", "again", "recorded", "rate"]
Sort = Literal["order", "revive", "alert"]

ACTION = "failure_action"  # the kind of record that keeps an action


class FailureGroup(Struct, frozen=True, omit_defaults=True):
    """Counts of all failures of a tenant with the same fingerprint."""

    tenant: str
    fingerprint: str
    pipeline: str
    stage: str | None
    code: str
    message: str  # of the first failure
    first_seen: float
    last_seen: float
    open: int = 0
    retried: int = 0
    resolved: int = 0
    dismissed: int = 0
    users: int = 0
    unlisted: int = 0
    """Failures whose users were not counted, because there were too many. ``users`` is then a lower bound."""
    dismissal: Settled | None = None  # set while the group is dismissed and has not been seen again
    seen_again: float | None = None  # when it was last seen again after a dismissal
    times: tuple[float, ...] = ()
    """When its newest failures were, newest first, if requested. Never stored."""

    @property
    def count(self) -> int:
        return self.open + self.retried + self.resolved + self.dismissed

    @property
    def seen(self) -> str:
        """Sort key among the groups of its tenant: by the time it was last seen."""
        return f"{int(self.last_seen * 1000):012x}-{self.fingerprint}"


def failure_id(at: float, job_id: str, run: int) -> str:
    """Sorts by time, and can be computed from the failed job."""
    return f"{int(at * 1000):012x}-{job_id}-{run}"


def first_id(at: float) -> str:
    """Sorts before every failure of that moment and after every earlier one."""
    return f"{max(0, int(at * 1000)):012x}-"


def time_of(failure_id: str) -> float:
    """The time of a failure, from its id, to the millisecond."""
    return int(failure_id[:12], 16) / 1000


def by_hour(times: Sequence[float], now: float) -> list[int | None]:
    """Failures in each of the last hours, oldest first. ``times`` are the newest failures, newest first.

    If ``times`` was cut off at MAX_TIMES, hours before its oldest entry are None, and the first known hour is a lower
    bound.
    """
    counts: list[int | None] = [0] * TREND_HOURS
    for at in times:
        hour = TREND_HOURS - 1 - int(max(0.0, now - at) // HOUR)
        counts[max(0, hour)] = (counts[max(0, hour)] or 0) + (hour >= 0)
    if len(times) < MAX_TIMES or times[-1] < now - TREND_HOURS * HOUR:
        return counts
    first = TREND_HOURS - 1 - int(max(0.0, now - times[-1]) // HOUR)
    return [None] * first + counts[first:]


def normalize(message: str) -> str:
    """The message with placeholders for what varies: numbers, ids, paths, quoted text, times."""
    text = message[: 2 * MAX_MESSAGE]
    for pattern, word in VARYING:
        text = pattern.sub(word, text)
    return text.strip()[:MAX_MESSAGE]


def fingerprint(pipeline: str, stage: str | None, code: str, message: str) -> str:
    said = "\0".join((pipeline, stage or "", code, normalize(message)))
    return hashlib.sha256(said.encode(errors="surrogatepass")).hexdigest()[:24]


def failed_run(job: Job, error: Failure, run: int, now: float) -> FailedRun:
    """The record of a failed run, and when it is retried automatically."""
    policy = job.plan.revive
    is_revived = error.code in policy.codes and job.revived < policy.times
    return FailedRun(
        id=failure_id(now, job.id, run),
        fingerprint=fingerprint(job.plan.pipeline, error.stage, error.code, error.message),
        job_id=job.id,
        run=run,
        tenant=job.tenant,
        user=job.user,
        pipeline=job.plan.pipeline,
        code=error.code,
        message=error.message[:MAX_MESSAGE],
        at=now,
        stage=error.stage,
        attempts=_attempts(job, error),
        trace_id=job.trace_id,
        schedule=None if job.firing is None else job.firing.schedule,
        revived=job.revived,
        times=policy.times if error.code in policy.codes else 0,
        revive_at=now + policy.delay(job.revived) if is_revived else None,
        budget=(policy.budget, policy.per) if is_revived else None,
        alert_rate=None if job.plan.alerts is None else (job.plan.alerts.failures, job.plan.alerts.per),
    )


def _attempts(job: Job, error: Failure) -> int:
    """Attempts of the failed task, or of all tasks if the run failed as a whole."""
    if error.stage is None:
        return sum(task.attempt for stage in job.stages for task in stage.tasks or ())
    tasks = job.stage(error.stage).tasks or ()
    if error.element is not None and error.element < len(tasks):
        return tasks[error.element].attempt
    return max((task.attempt for task in tasks), default=0)


# Groups. Stores that count in Python call these while they hold the lock on the group.


def new_group(run: FailedRun) -> FailureGroup:
    """The group for the first failure of a fingerprint, not counted yet."""
    return FailureGroup(
        run.tenant, run.fingerprint, run.pipeline, run.stage, run.code, run.message, first_seen=run.at, last_seen=run.at
    )


def add_to_group(
    group: FailureGroup | None, failure: FailedRun, *, is_known: bool
) -> tuple[FailureGroup, bool, Alert | None]:
    """The group with one more failure, whether its user is counted, and which alert to send.

    ``is_known``: the user already has a counted failure in this group.
    """
    alert: Alert | None = "new" if group is None else "again" if group.dismissal is not None else None
    group = group or new_group(failure)
    is_counted = is_known or group.users < MAX_USERS
    more = replace(
        group,
        open=group.open + 1,
        first_seen=min(group.first_seen, failure.at),  # failures of the same moment may be committed in any order
        last_seen=max(group.last_seen, failure.at),
        users=group.users + (is_counted and not is_known),
        unlisted=group.unlisted + (not is_counted),
        dismissal=None,
        seen_again=failure.at if alert == "again" else group.seen_again,
    )
    return more, is_counted, alert


def move_in_group(group: FailureGroup, was: FailureStatus, now: FailureStatus) -> FailureGroup:
    counts = {was.value: getattr(group, was) - 1, now.value: getattr(group, now) + 1}
    return replace(group, **counts)


def remove_from_group(
    group: FailureGroup, failure: FailedRun, *, is_counted: bool, is_last: bool
) -> FailureGroup | None:
    """The group without this failure, None if it was the last one. ``is_last``: the user has no other failure in it."""
    count = {failure.status.value: getattr(group, failure.status) - 1}
    users, unlisted = group.users - (is_counted and is_last), group.unlisted - (not is_counted)
    less = replace(group, **count, users=users, unlisted=unlisted)
    return less if less.count else None


# Actions: bulk actions ("orders"), automatic retries and alerts.


class FailureAction(Struct, frozen=True):
    """Something that a worker still has to do; or, without a time at which it is due, an order that is done."""

    id: str
    sort: Sort
    tenant: str
    body: bytes  # JSON; its content depends on the sort
    due_at: float | None
    attempts: int = 0  # how often it was taken
    stamp: int = 0  # Version of its record, which a settlement must match. 0 if the failure is new.


class Alarm(Struct, frozen=True, omit_defaults=True):
    """The body of an alert: which group was first seen, or seen again, by which failure; or which failure counts
    towards the rate of its pipeline."""

    fingerprint: str
    failure_id: str
    kind: Alert
    at: float
    is_posted: bool = False  # the webhooks' messages are in the outbox: only the command is left
    pipeline: str = ""
    rate: tuple[int, float] | None = None
    is_quiet: bool = False  # people are not told of it: its pipeline alerts by a rate
    is_admitted: bool = False  # it was counted, and the message of its rate is due: it is not counted again


class _Body(Struct, frozen=True):
    """The body of the record. The action's own body is text in it: one that is broken spoils no other."""

    sort: Sort
    tenant: str
    body: str


def new_alert(failure: FailedRun, kind: Alert) -> FailureAction:
    is_quiet = failure.alert_rate is not None
    body = json.encode(Alarm(failure.fingerprint, failure.id, kind, failure.at, is_quiet=is_quiet))
    return FailureAction(f"alert.{failure.id}", "alert", failure.tenant, body, failure.at)


def new_rate_alert(failure: FailedRun) -> FailureAction | None:
    """For a failure of a pipeline that alerts to every failure, or by a rate."""
    if (rate := failure.alert_rate) is None:
        return None
    kind: Alert = "recorded" if rate[0] == 1 else "rate"
    alarm = Alarm(failure.fingerprint, failure.id, kind, failure.at, pipeline=failure.pipeline, rate=rate)
    return FailureAction(f"alert.{failure.id}.rate", "alert", failure.tenant, json.encode(alarm), failure.at)


def new_revival(failure: FailedRun) -> FailureAction | None:
    if failure.revive_at is None:
        return None
    return FailureAction(f"revive.{failure.id}", "revive", failure.tenant, json.encode(failure.id), failure.revive_at)


def put_action(action: FailureAction) -> Put:
    """The write of an action whose record carries ``action.stamp``. Only orders are listed."""
    index: list[IndexEntry] = []
    if action.sort == "order":
        index.append(IndexEntry(f"tenant/{action.tenant}", action.id))
        if action.due_at is None:
            index.append(IndexEntry("done", action.id))
    return Put(
        ACTION,
        action.id,
        json.encode(_Body(action.sort, action.tenant, action.body.decode())),
        stamp=action.stamp,
        index=tuple(index),
        lane=action.sort,
        due_at=action.due_at,
        attempts=None if action.stamp else action.attempts,
    )


def action_from(found: Record) -> FailureAction:
    body = json.record(found.body, _Body)
    return FailureAction(
        found.id, body.sort, body.tenant, body.body.encode(), found.due_at, found.attempts, found.stamp
    )
