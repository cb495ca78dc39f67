"""Schedules as flat documents: ``job_id``, ``active``, ``cron`` and the parameters side by side, and their runs.

It is another form of the same schedules, for programs that are written against a ``job_config`` collection. An edit is
a version as any other.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import Any, TypedDict

import msgspec

from packhorse.auth.access import LOCAL_USER, Caller
from packhorse.core import json
from packhorse.core.plan import Status
from packhorse.core.schedules import Schedule, Terms
from packhorse.define.validation import NOT_VALID, invalid
from packhorse.errors import EditedMeanwhile, ScheduleNotFound
from packhorse.jobs import schedules
from packhorse.jobs.catalog import Published
from packhorse.jobs.schedules import ScheduleRequest
from packhorse.jobs.services import Services
from packhorse.schemas.schedules import RunDocument, ScheduleDocument

Document = dict[str, Any]

OWN = ("job_id", "updated_at")
TERMS = tuple(name for name in ScheduleRequest.__struct_fields__ if name not in ("parameters", "dry_run"))
"""Fields of a document that belong to the schedule; all others are parameters of the pipeline."""
USUAL = Terms(pipeline="", parameters=b"", cron="")
SHOWN = ("zone", "overlap", "misfire", "window", "labels")
"""Fields that a document has only if they are not the default."""
WAITING = frozenset({"due", "fired"})


class ConfigPage(TypedDict):
    """By id; ``next`` is the cursor of the next page, null on the last."""

    items: list[Document]
    next: str | None


class StatusDocument(TypedDict):
    """The outcome of a tick, in the words of the app."""

    trace_id: str | None
    job_id: str
    started_at: str | None
    status: str
    message: str
    duration_ms: int | None
    output_url: str | None


class StatusPage(TypedDict):
    """The newest tick first; ``next`` is the ``before`` of the next page, null on the last."""

    items: list[StatusDocument]
    next: float | None


async def list_configs(services: Services, caller: Caller, *, cursor: str | None, limit: int) -> ConfigPage:
    page = await schedules.list_schedules(services, caller, cursor=cursor, limit=limit)
    return {"items": [to_config(each) for each in page["items"]], "next": page["next"]}


async def get(services: Services, caller: Caller, schedule_id: str) -> tuple[Document, int]:
    """The document and its version. Raises ScheduleNotFound, also for a schedule that was deleted."""
    if (await schedules.get(services, caller, schedule_id)).ended_at is not None:
        raise ScheduleNotFound(schedule_id=schedule_id)
    found = await schedules.schedule(services, caller, schedule_id)
    return to_config(found), found["version"]


async def put(
    services: Services, caller: Caller, schedule_id: str, given: Mapping[str, msgspec.Raw], match: str | None
) -> tuple[Document, int, bool]:
    """Make a schedule of the document, or a new version of it; return it, its version, and whether it is new.

    A document that replaces another names the version it was made from: in ``match``, or by the ``updated_at`` that
    it was read with. Raises InvalidInput, EditedMeanwhile and VersionNeeded.
    """
    values: Document = {name: json.decode(bytes(value)) for name, value in given.items()}
    if values.get("job_id", schedule_id) != schedule_id:
        raise invalid(NOT_VALID, [{"field": "job_id", "message": f"It must be {schedule_id!r}, as in the address"}])
    parameters = {name: value for name, value in given.items() if name not in OWN + TERMS}
    found = await schedules.find(services, caller, schedule_id)
    live = found if found is not None and found.ended_at is None else None
    if found is not None and live is None and match is None and "updated_at" in values:
        raise EditedMeanwhile(schedule_id=found.id, version=found.version)  # it was deleted since
    terms = {name: values[name] for name in TERMS if name in values}
    if terms.get("pipeline") is None:
        terms["pipeline"] = live.terms.pipeline if live else await _pipeline(services, caller, parameters)
    for each in await services.catalog.all():
        if each.plan.pipeline == terms["pipeline"]:
            check_names(each.names)
    if terms.get("user_id") is None and (caller.user or caller.default_user) is None:
        terms["user_id"] = live.terms.user if live else LOCAL_USER
    try:
        wanted = msgspec.convert({**terms, "parameters": {name: values[name] for name in parameters}}, ScheduleRequest)
    except msgspec.ValidationError as error:
        message, _, path = str(error).partition(" - at `$.")
        raise invalid(NOT_VALID, [{"field": path.rstrip("`"), "message": message}]) from error
    if match is None and live is not None and "updated_at" in values:
        match = _version_seen(live, values["updated_at"])
    document, is_new = await schedules.put(
        services, caller, schedule_id, wanted, msgspec.json.encode(parameters), match
    )
    return to_config(document), document["version"], is_new


def check_names(parameters: Collection[str]) -> None:
    """Raises InvalidInput if a parameter of the pipeline has the name of a field of the schedule."""
    taken = sorted(set(parameters) & {*OWN, *TERMS})
    if taken:
        message = "A parameter of the pipeline has the name of a field. Use PUT /schedules/{schedule_id} instead"
        raise invalid(NOT_VALID, [{"field": name, "message": message} for name in taken])


async def list_statuses(
    services: Services, caller: Caller, schedule_id: str, *, before: float | None, limit: int, base: str
) -> StatusPage:
    """Raises ScheduleNotFound."""
    found = await schedules.get(services, caller, schedule_id)
    page = await schedules.list_runs(services, caller, schedule_id, before=before, limit=limit, base=base)
    words = await _words(services, found.terms.pipeline)
    return {"items": [_to_status(run, words) for run in page["items"]], "next": page["next"]}


def to_config(schedule: ScheduleDocument) -> Document:
    given: dict[str, Any] = {**schedule}
    usual = {name: getattr(USUAL, name) for name in SHOWN} | {"user_id": LOCAL_USER}
    return {
        "job_id": schedule["schedule_id"],
        "active": schedule["active"],
        "cron": schedule["cron"],
        **{name: given[name] for name, value in usual.items() if given[name] != value},
        **schedule["parameters"],
        "updated_at": schedule["updated_at"],
    }


def _to_status(run: RunDocument, words: Mapping[str, str]) -> StatusDocument:
    status = "pending" if run["status"] in WAITING else run["status"]
    return {
        "trace_id": run["trace_id"],
        "job_id": run["schedule_id"],
        "started_at": run["started_at"],
        "status": words.get(status, status),
        "message": run["message"],
        "duration_ms": run["duration_ms"],
        "output_url": run["output_url"],
    }


async def _words(services: Services, pipeline: str) -> Mapping[str, str]:
    """The app's own names for statuses; none while no worker has published the pipeline."""
    found = next((each for each in await services.catalog.all() if each.plan.pipeline == pipeline), None)
    return {} if found is None else {Status(status).value: word for status, word in found.plan.statuses.items()}


async def _pipeline(services: Services, caller: Caller, parameters: Mapping[str, object]) -> str | None:
    """The only pipeline that has all of these parameters, if there is one."""
    fitting: Sequence[Published] = [
        each
        for each in await services.catalog.all(caller.app)
        if parameters and not parameters.keys() - set(each.names)
    ]
    return fitting[0].plan.pipeline if len(fitting) == 1 else None


def _version_seen(schedule: Schedule, updated_at: object) -> str:
    """Raises EditedMeanwhile if the document was read before the last edit."""
    try:
        seen = datetime.fromisoformat(str(updated_at)).timestamp()
    except ValueError:
        seen = 0.0
    if abs(seen - schedule.updated_at) > 1e-5:  # a text has microseconds, a float a little less
        raise EditedMeanwhile(schedule_id=schedule.id, version=schedule.version)
    return f'"{schedule.version}"'
