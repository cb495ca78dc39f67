"""Answers about schedules, their versions and runs."""

from typing import Any, Literal, NotRequired, TypedDict

from packhorse.core.cron import Mark
from packhorse.core.schedule_terms import Misfire, Overlap


class TermsDocument(TypedDict):
    """What a schedule says: what is run, for whom and when."""

    pipeline: str
    parameters: dict[str, Any]
    user_id: str
    cron: str
    zone: str
    active: bool
    overlap: Overlap
    misfire: Misfire
    window: float
    labels: dict[str, str]


class DifferenceDocument(TypedDict):
    """A field that differs; of the parameters each is one, as ``parameters.size``. What is not there is null."""

    field: str
    old: Any
    new: Any


class RunDocument(TypedDict):
    """What became of a tick; of several that nobody was there to run, one for all, with ``count`` and ``until``."""

    schedule_id: str
    tick: str | None
    version: int
    manual: bool
    status: str
    message: str
    job_id: str | None
    trace_id: str | None
    started_at: str | None
    ended_at: str | None
    duration_ms: int | None
    output_url: str | None
    count: int
    until: str | None


class ScheduleDocument(TermsDocument):
    """A schedule; ``drift`` is where people have changed what the app's code declares, null if it declares nothing.

    ``when`` is the cron line in words. ``runs`` are the last ones, in a list that was asked for with them; ``changes``
    is only there in the answer to a dry run.
    """

    schedule_id: str
    tenant_id: str
    version: int
    when: str
    origin: Literal["code", "person"]
    drift: list[DifferenceDocument] | None
    next_at: str | None
    last_at: str | None
    created_at: str | None
    updated_at: str | None
    updated_by: str
    deleted_at: str | None
    runs: NotRequired[list[RunDocument]]
    changes: NotRequired[list[DifferenceDocument]]


class SchedulesPage(TypedDict):
    """By id; ``next`` is the cursor of the next page, null on the last."""

    items: list[ScheduleDocument]
    next: str | None


class VersionDocument(TermsDocument):
    """One version of a schedule, who made it why, and what it changed."""

    version: int
    author: str
    at: str | None
    action: str
    reason: str
    changes: list[DifferenceDocument]


class VersionsPage(TypedDict):
    """Newest first; ``next`` is what to ask for with ``before``, null on the last page."""

    items: list[VersionDocument]
    next: int | None


class DifferencePage(TypedDict):
    items: list[DifferenceDocument]
    next: None


class RunsPage(TypedDict):
    """The newest tick first; ``next`` is what to ask for with ``before``, null on the last page."""

    items: list[RunDocument]
    next: float | None


class MomentDocument(TypedDict):
    """A time that a cron line names; ``at`` is null for a local time that no clock shows."""

    at: str | None
    local: str
    mark: Mark
    note: str


class PreviewPage(TypedDict):
    """``when`` is the line in words."""

    when: str
    items: list[MomentDocument]
    next: None
