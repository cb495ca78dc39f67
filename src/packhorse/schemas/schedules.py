"""Schedules, their versions and their runs."""

from collections.abc import Iterator, Mapping
from typing import Any, Literal, NotRequired, TypedDict
from urllib.parse import quote

from packhorse.core import json
from packhorse.core.cron import Mark, Moment
from packhorse.core.models import Job
from packhorse.core.redaction import MASK, is_encrypted
from packhorse.core.schedules import Misfire, Overlap, Revision, Run, Schedule, Terms, diff_terms
from packhorse.core.text import describe_schedule
from packhorse.schemas.progress import duration_ms, iso

NAMES: Mapping[str, str] = {"user": "user_id"}  # JSON names of fields that Python names differently


class TermsDocument(TypedDict):
    """What a schedule runs, for which user and when."""

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
    """A field that differs. Each parameter is a field, as ``parameters.size``; null if it is missing."""

    field: str
    old: Any
    new: Any


class RunDocument(TypedDict):
    """The outcome of a tick. Consecutive missed ticks share one entry, with ``count`` and ``until``."""

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
    """A schedule; ``drift`` lists differences from what the app's code declares, null if it declares nothing.

    ``when`` is the cron expression in words. ``runs`` are the last runs, in a list requested with them; ``changes`` is
    only in the answer to a dry run.
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
    """One version of a schedule, its author and reason, and what it changed."""

    version: int
    author: str
    at: str | None
    action: str
    reason: str
    changes: list[DifferenceDocument]


class VersionsPage(TypedDict):
    """Newest first; ``next`` is the ``before`` of the next page, null on the last."""

    items: list[VersionDocument]
    next: int | None


class DifferencePage(TypedDict):
    items: list[DifferenceDocument]
    next: None


class RunsPage(TypedDict):
    """The newest tick first; ``next`` is the ``before`` of the next page, null on the last."""

    items: list[RunDocument]
    next: float | None


class MomentDocument(TypedDict):
    """A time of a cron expression; ``at`` is null for a local time that a clock change skips."""

    at: str | None
    local: str
    mark: Mark
    note: str


class PreviewPage(TypedDict):
    """``when`` is the cron expression in words."""

    when: str
    items: list[MomentDocument]
    next: None


def terms_to_json(terms: Terms) -> TermsDocument:
    return {
        "pipeline": terms.pipeline,
        "parameters": parameters_to_json(terms.parameters),
        "user_id": terms.user,
        "cron": terms.cron,
        "zone": terms.zone,
        "active": terms.active,
        "overlap": terms.overlap,
        "misfire": terms.misfire,
        "window": terms.window,
        "labels": dict(terms.labels),
    }


def schedule_to_json(schedule: Schedule) -> ScheduleDocument:
    return {
        "schedule_id": schedule.id,
        "tenant_id": schedule.tenant,
        "version": schedule.version,
        "when": describe_schedule(schedule.terms.cron, schedule.terms.zone),
        **terms_to_json(schedule.terms),  # type: ignore[typeddict-item]  # mypy would have it say what may be left out
        "origin": "person" if schedule.declared is None else "code",
        "drift": None if schedule.declared is None else differences_to_json(schedule.declared, schedule.terms),
        "next_at": iso(schedule.next_at),
        "last_at": iso(schedule.last_at or None),
        "created_at": iso(schedule.created_at),
        "updated_at": iso(schedule.updated_at),
        "updated_by": schedule.updated_by,
        "deleted_at": iso(schedule.ended_at),
    }


def version_to_json(revision: Revision, before: Revision | None) -> VersionDocument:
    return {
        "version": revision.version,
        "author": revision.author,
        "at": iso(revision.at),
        "action": revision.action,
        "reason": revision.reason,
        "changes": [] if before is None else differences_to_json(before.terms, revision.terms),
        **terms_to_json(revision.terms),
    }


def differences_to_json(old: Terms, new: Terms) -> list[DifferenceDocument]:
    return [each for name, was, now in diff_terms(old, new) for each in _of_field(name, was, now)]


def _of_field(name: str, was: Any, now: Any) -> Iterator[DifferenceDocument]:
    if name != "parameters":
        yield {"field": NAMES.get(name, name), "old": was, "new": now}
        return
    before: Any = json.decode(was)
    after: Any = json.decode(now)
    changed = [key for key in {**before, **after} if before.get(key) != after.get(key)]
    for key in changed:
        yield {"field": f"parameters.{key}", "old": _mask(before.get(key)), "new": _mask(after.get(key))}
    if not changed:  # the same, written differently
        yield {"field": "parameters", "old": None, "new": None}


def run_to_json(run: Run, job: Job | None, base: str) -> RunDocument:
    """While its job runs, the status is the job's. ``base`` is the path of the API."""
    is_live = run.status == "fired" and job is not None
    started_at = job.started_at if job is not None and is_live else run.started_at
    return {
        "schedule_id": run.schedule,
        "tick": iso(run.tick),
        "version": run.version,
        "manual": run.is_manual,
        "status": job.status.value if job is not None and is_live else run.status,
        "message": run.message,
        "job_id": run.job_id,
        "trace_id": run.trace_id or None,
        "started_at": iso(started_at),
        "ended_at": iso(run.ended_at),
        "duration_ms": duration_ms(started_at, run.ended_at),
        "output_url": _output_url(run, base) if run.status == "completed" else None,
        "count": run.count,
        "until": iso(run.until),
    }


def _output_url(run: Run, base: str) -> str:
    """The file that the job names as its output, else its result."""
    job_id, _, name = run.output.partition("/")
    return f"{base}/jobs/{job_id}/artifacts/{quote(name)}" if name else f"{base}/jobs/{run.job_id}/result"


def moment_to_json(moment: Moment) -> MomentDocument:
    return {"at": iso(moment.at), "local": moment.local, "mark": moment.mark, "note": moment.note}


def parameters_to_json(stored: bytes) -> dict[str, Any]:
    """With secrets masked. Every document that shows a schedule's parameters gets them here."""
    parameters: dict[str, Any] = _mask(json.decode(stored))
    return parameters


def _mask(value: Any) -> Any:
    """Recognises a secret by its stored form, not by the pipeline's definition: that may have changed since."""
    if is_encrypted(value):
        return MASK
    if isinstance(value, dict):
        return {name: _mask(inner) for name, inner in value.items()}
    return [_mask(inner) for inner in value] if isinstance(value, list) else value
