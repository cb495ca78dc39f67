"""Between a schedule and what is said about it in JSON: where parameters are accepted, where they are shown."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec
from msgspec import Struct, field

from packhorse.core import cron_text, json, paths
from packhorse.core.cron import Moment
from packhorse.core.models import Job
from packhorse.core.plan import Plan
from packhorse.core.redaction import MASK, merged
from packhorse.core.schedule_terms import Misfire, Overlap, Terms, difference
from packhorse.core.schedules import Revision, Run, Schedule
from packhorse.define.durations import seconds
from packhorse.define.validation import NOT_VALID, Mistake, invalid, nul_in
from packhorse.errors import TooLarge
from packhorse.http.requests.json_body import converted, members
from packhorse.jobs.catalog import Published
from packhorse.jobs.encryption import is_sealed, sealer
from packhorse.schemas.resources import iso
from packhorse.schemas.schedule_documents import (
    DifferenceDocument,
    MomentDocument,
    RunDocument,
    ScheduleDocument,
    TermsDocument,
    VersionDocument,
)
from packhorse.settings import Settings

LONGEST_REASON = 500


class Wanted(Struct):
    """A schedule as it is to be. What is left out is as if it had never been said."""

    cron: str = ""
    """Five fields, or six with the second in front."""
    pipeline: str | None = None
    parameters: dict[str, Any] = field(default_factory=dict)
    user_id: str | None = None
    zone: str = "UTC"
    active: bool = True
    overlap: Overlap = "skip"
    misfire: Misfire = "skip"
    window: float | str = 3600.0
    labels: dict[str, str] = field(default_factory=dict)
    reason: str = ""
    dry_run: bool = False
    """Only tell what would become of it, and what would be different."""


def wanted_from(data: bytes) -> tuple[Wanted, bytes]:
    """What a body says, and its parameters as they were written."""
    given = converted(members(data), Wanted)
    written = msgspec.json.decode(data, type=dict[str, msgspec.Raw]).get("parameters", msgspec.Raw(b"{}"))
    return given, bytes(written)


def check_reason(reason: str) -> None:
    if len(reason) > LONGEST_REASON or "\0" in reason:
        said = f"It must be a text of at most {LONGEST_REASON} characters"
        raise invalid(NOT_VALID, [{"field": "reason", "message": said}])


def accepted(
    pipeline: Published, wanted: Wanted, written: bytes, settings: Settings, tenant: str, before: Terms | None
) -> bytes:
    """The parameters as they are kept. The one place where those of a schedule come in.

    A secret that is sent back as it is shown is the one that was there before. What says the same in another spelling
    stays as it was spelled, or every edit in a form would differ from the code.
    """
    if len(written) > settings.parameters_limit:
        raise TooLarge(field="parameters", limit=settings.parameters_limit)
    plan, sealing = pipeline.plan, sealer(settings.secret_key)
    is_kept = before is not None and before.pipeline == plan.pipeline and MASK in _secrets(wanted, plan)
    kept = before.parameters if before is not None and is_kept else b"{}"
    _check(pipeline, merged(wanted.parameters, json.decode(sealing.open(kept, plan, tenant)), plan.secrets))
    made = written
    if plan.secrets:
        sealed = merged(wanted.parameters, json.decode(kept), plan.secrets)
        made = sealing.seal_rest(json.encode(sealed), plan, tenant)
    is_same = before is not None and before.pipeline == plan.pipeline and _plain(made) == _plain(before.parameters)
    return before.parameters if before is not None and is_same else made


def _plain(parameters: bytes) -> bytes:
    """However they are spelled. As bytes: Python holds 1, 1.0 and True for the same."""
    return msgspec.json.encode(json.decode(parameters), order="sorted")


def _secrets(wanted: Wanted, plan: Plan) -> list[Any]:
    return list(paths.found(wanted.parameters, plan.secrets))


def _check(pipeline: Published, given: Mapping[str, Any]) -> None:
    files = [name for name in given if name in pipeline.files]
    masks = [".".join(path) for path in pipeline.plan.secrets if MASK in paths.found(given, [path])]
    mistakes = [
        *({"field": name, "message": "A schedule cannot hold files"} for name in files),
        *pipeline.mistakes(given),
        *nul_in(given),
        *({"field": name, "message": "These dots only stand for a secret"} for name in masks),
    ]
    if mistakes:
        raise invalid(NOT_VALID, mistakes)


def shown_parameters(kept: bytes) -> dict[str, Any]:
    """As anybody may see them. The one place where those of a schedule go out."""
    found: dict[str, Any] = _unseen(json.decode(kept))
    return found


def _unseen(value: Any) -> Any:
    """By its looks, and not by what the pipeline says is secret: that may have changed since."""
    if is_sealed(value):
        return MASK
    if isinstance(value, dict):
        return {name: _unseen(inner) for name, inner in value.items()}
    return [_unseen(inner) for inner in value] if isinstance(value, list) else value


def window_of(wanted: Wanted) -> float:
    try:
        return seconds(wanted.window)
    except ValueError as error:
        raise invalid(NOT_VALID, [_mistake("window", error)]) from error


def terms(kept: Terms) -> TermsDocument:
    return {
        "pipeline": kept.pipeline,
        "parameters": shown_parameters(kept.parameters),
        "user_id": kept.user,
        "cron": kept.cron,
        "zone": kept.zone,
        "active": kept.active,
        "overlap": kept.overlap,
        "misfire": kept.misfire,
        "window": kept.window,
        "labels": dict(kept.labels),
    }


def schedule(kept: Schedule) -> ScheduleDocument:
    return {
        "schedule_id": kept.id,
        "tenant_id": kept.tenant,
        "version": kept.version,
        "when": cron_text.said(kept.terms.cron, kept.terms.zone),
        **terms(kept.terms),  # type: ignore[typeddict-item]  # mypy would have it say what may be left out
        "origin": "person" if kept.declared is None else "code",
        "drift": None if kept.declared is None else differences(kept.declared, kept.terms),
        "next_at": iso(kept.next_at),
        "last_at": iso(kept.last_at or None),
        "created_at": iso(kept.created_at),
        "updated_at": iso(kept.updated_at),
        "updated_by": kept.updated_by,
        "deleted_at": iso(kept.ended_at),
    }


def version(made: Revision, before: Revision | None) -> VersionDocument:
    return {
        "version": made.version,
        "author": made.author,
        "at": iso(made.at),
        "action": made.action,
        "reason": made.reason,
        "changes": [] if before is None else differences(before.terms, made.terms),
        **terms(made.terms),
    }


def differences(old: Terms, new: Terms) -> list[DifferenceDocument]:
    return [each for name, was, now in difference(old, new) for each in _of_field(name, was, now)]


def _of_field(name: str, was: Any, now: Any) -> Iterator[DifferenceDocument]:
    if name != "parameters":
        yield {"field": NAMES.get(name, name), "old": was, "new": now}
        return
    before: Any = json.decode(was)
    after: Any = json.decode(now)
    changed = [key for key in {**before, **after} if before.get(key) != after.get(key)]
    for key in changed:
        yield {"field": f"parameters.{key}", "old": _unseen(before.get(key)), "new": _unseen(after.get(key))}
    if not changed:  # the same, written differently
        yield {"field": "parameters", "old": None, "new": None}


NAMES: Mapping[str, str] = {"user": "user_id"}
"""What Python calls differently."""


def run(made: Run, job: Job | None, base: str) -> RunDocument:
    """With how its job stands while it runs; ``base`` is where the API is."""
    is_live = made.status == "fired" and job is not None
    started_at = job.started_at if job is not None and is_live else made.started_at
    took = None if started_at is None or made.ended_at is None else round((made.ended_at - started_at) * 1000)
    return {
        "schedule_id": made.schedule,
        "tick": iso(made.tick),
        "version": made.version,
        "manual": made.is_manual,
        "status": job.status.value if job is not None and is_live else made.status,
        "message": made.message,
        "job_id": made.job_id,
        "trace_id": made.trace_id or None,
        "started_at": iso(started_at),
        "ended_at": iso(made.ended_at),
        "duration_ms": took,
        "output_url": f"{base}/jobs/{made.job_id}/result" if made.status == "completed" else None,
        "count": made.count,
        "until": iso(made.until),
    }


def moment(named: Moment) -> MomentDocument:
    return {"at": iso(named.at), "local": named.local, "mark": named.mark, "note": named.note}


def _mistake(field: str, error: Exception) -> Mistake:
    return {"field": field, "message": str(error)}
