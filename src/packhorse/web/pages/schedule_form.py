"""Schedules edited by a person: seen before it is saved what an edit would do, and never over what was not seen.

A form carries the version it was made from. What is typed is looked at by the API twice: as a trial, for the page that
shows the diff and the next times, and then to save.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any
from zoneinfo import available_timezones

import msgspec
from litestar import Response, get, post
from litestar.datastructures import FormMultiDict
from litestar.params import FromPath

from packhorse.errors import EditedMeanwhile, InvalidInput, NotFound, PackhorseError, UnknownPipeline, VersionNeeded
from packhorse.http.requests import convert, decode_object
from packhorse.jobs import schedules, view
from packhorse.jobs.schedules import ScheduleRequest
from packhorse.schemas.operations import PipelineDocument
from packhorse.schemas.schedules import ScheduleDocument
from packhorse.web.forms import form
from packhorse.web.pages.schedules import preview
from packhorse.web.render import Page, mistakes, redirect, render_page, services_and_caller
from packhorse.web.widgets.fields import Field, fields_of
from packhorse.web.widgets.formatting import Difference, differences, pretty
from packhorse.web.widgets.parameter_form import PREFIX, can_show, has_secret, parse, read_values, shown_values

FIELDS = (
    "schedule_id", "pipeline", "user_id", "cron", "zone", "parameters", "overlap", "misfire", "window", "labels",
    "active", "reason", "version", "style",
)  # fmt: skip
NEW = {
    **dict.fromkeys(FIELDS, ""),
    "zone": "UTC",
    "parameters": "{}",
    "overlap": "skip",
    "misfire": "skip",
    "window": "1h",
    "active": "yes",
    "style": "form",
}
RESHOWN = ("back", "form", "json", "pipeline")
"""Steps that show the form again: to continue typing, as JSON or with inputs, or for another pipeline."""
NAMELESS = "A schedule needs a name"
UNUSABLE = "This name cannot be used"
TAKEN = "A schedule with this name already exists"
EMPTY: Mapping[str, Any] = {"parameters": b"{}", "labels": {}}
STAND_IN = "unnamed"  # for a name that no path leads to, so that the rest can be checked anyway

Typed = dict[str, str]


@get("/schedules/new", scope="operate", include_in_schema=False)
async def new(request: Page) -> Response[bytes]:
    return await _form(request, None, NEW)


@post("/schedules/new", scope="operate", status_code=200, include_in_schema=False)
async def make(request: Page) -> Response[bytes]:
    return await _take(request, None, await _typed(request))


@get("/schedules/{schedule_id:str}/edit", scope="operate", include_in_schema=False)
async def edit(request: Page, schedule_id: FromPath[str]) -> Response[bytes]:
    found = await schedules.schedule(*services_and_caller(request), schedule_id)
    return await _form(request, schedule_id, _as_typed(found))


@post("/schedules/{schedule_id:str}/edit", scope="operate", status_code=200, include_in_schema=False)
async def change(request: Page, schedule_id: FromPath[str]) -> Response[bytes]:
    typed = await _typed(request)
    await schedules.get(*services_and_caller(request), schedule_id)
    return await _take(request, schedule_id, typed)


ROUTES = [new, make, edit, change]


async def _take(request: Page, schedule_id: str | None, typed: Typed) -> Response[bytes]:
    """The next step of a form: back to what was typed, on to what it would do, or done."""
    name = schedule_id if schedule_id is not None else typed["schedule_id"].strip()
    step = typed.pop("step", "check")
    if step in RESHOWN:
        style = step if step in ("form", "json") else typed["style"]
        return await _form(request, schedule_id, {**typed, "style": style})
    body, misread = _body(typed)
    if not name or "/" in name:
        misread["schedule_id"] = UNUSABLE if name else NAMELESS
    if misread:
        found = await _also_wrong(request, STAND_IN if "schedule_id" in misread else name, typed["version"], body)
        return await _form(request, schedule_id, typed, {**found, **misread})
    try:
        if step != "save":
            return await _checked(request, schedule_id, name, typed, body)
        made = await _put(request, name, typed["version"], body)
    except PackhorseError as error:
        return await _refused(request, schedule_id, name, typed, error)
    return redirect(request, f"/schedules/{made['schedule_id']}", said=f"Saved as version {made['version']}.")


async def _put(request: Page, name: str, version: str, body: Mapping[str, Any]) -> ScheduleDocument:
    """``parameters`` of the body are spelled as they were typed."""
    seen = f'"{version}"' if version.isdecimal() and version.isascii() else None
    written: bytes = body["parameters"]
    wanted = convert({**body, "parameters": decode_object(written)}, ScheduleRequest)
    services, caller = services_and_caller(request)
    document, _ = await schedules.put(services, caller, name, wanted, written, seen)
    return document


async def _checked(
    request: Page, schedule_id: str | None, name: str, typed: Typed, body: Mapping[str, Any]
) -> Response[bytes]:
    trial = await _put(request, name, typed["version"], {**body, "dry_run": True})
    return render_page(
        request,
        "schedule_check.html",
        schedule_id=schedule_id,
        trial=trial,
        typed=typed,
        parameters=pretty(trial["parameters"]),
        changes=differences(trial["changes"]),
        preview=preview(services_and_caller(request)[0], trial["cron"], trial["zone"]),
    )


# Refused


class Misread(Exception):
    """Something that the form itself cannot read."""


async def _refused(
    request: Page, schedule_id: str | None, name: str, typed: Typed, error: PackhorseError
) -> Response[bytes]:
    match error:
        case EditedMeanwhile() if schedule_id is not None:
            return await _conflict(request, schedule_id, typed, error)
        case NotFound() if schedule_id is None:
            return await _form(request, schedule_id, typed, {"schedule_id": UNUSABLE})
        case VersionNeeded():
            return await _form(request, schedule_id, typed, {"schedule_id": TAKEN})
        case InvalidInput():
            wrong = _by_field(error)
            if schedule_id is None and "schedule_id" not in wrong and await _is_taken(request, name):
                wrong["schedule_id"] = TAKEN
            return await _form(request, schedule_id, typed, wrong or {"": error.message})
    raise error


def _by_field(error: InvalidInput) -> dict[str, str]:
    wrong: dict[str, str] = {}
    for field, what in mistakes(error).items():  # a parameter is named without saying that it is one
        is_own = field in FIELDS
        places = {field: what} if is_own else {"parameters": f"{field}: {what}", _input(field): what}
        for place, text in places.items():
            wrong[place] = f"{wrong[place]}; {text}" if place in wrong else text
    return wrong


def _input(field: str) -> str:
    """The input of a parameter, or of a value within it."""
    return PREFIX + re.split(r"[.\[]", field)[0]


async def _also_wrong(request: Page, name: str, version: str, body: Mapping[str, Any]) -> dict[str, str]:
    """In addition to what the form could not read: all errors are shown together."""
    try:
        await _put(request, name, version, {**body, "dry_run": True})
    except InvalidInput as error:
        return _by_field(error)
    except PackhorseError:  # told when the rest can be read
        pass
    return {}


async def _is_taken(request: Page, name: str) -> bool:
    try:
        return (await schedules.schedule(*services_and_caller(request), name))["deleted_at"] is None
    except PackhorseError:
        return False


async def _conflict(request: Page, schedule_id: str, typed: Typed, error: PackhorseError) -> Response[bytes]:
    """Edit conflict: what they have changed, and what saving this would change of it."""
    services, caller = services_and_caller(request)
    found = await schedules.schedule(services, caller, schedule_id)
    if found["deleted_at"] is not None:
        raise error
    newest = await schedules.version(services, caller, schedule_id, found["version"])
    theirs = await schedules.diff(services, caller, schedule_id, int(typed["version"]), found["version"])
    mine = await _against(request, schedule_id, str(found["version"]), typed)
    return render_page(
        request,
        "schedule_conflict.html",
        status=412,
        schedule=found,
        newest=newest,
        theirs=differences(theirs),
        mine=mine,
        seen=typed["version"],
        typed={**typed, "version": str(found["version"])},
    )


async def _against(request: Page, schedule_id: str, version: str, typed: Typed) -> list[Difference] | None:
    """None if it cannot be saved at all: the next step says why."""
    body, misread = _body(typed)
    if misread:
        return None
    try:
        trial = await _put(request, schedule_id, version, {**body, "dry_run": True})
    except PackhorseError:
        return None
    return differences(trial["changes"])


# The form


async def _form(
    request: Page, schedule_id: str | None, typed: Mapping[str, str], mistakes: Mapping[str, str] | None = None
) -> Response[bytes]:
    services, who = services_and_caller(request)
    found = await view.pipelines(services, who)
    filing = [each["name"] for each in found if _needs_file(each)]
    pipelines = [each["name"] for each in found if each["name"] not in filing]
    chosen = typed["pipeline"] or (pipelines[0] if pipelines else "")
    return render_page(
        request,
        "schedule_form.html",
        status=200 if mistakes is None else 422,
        schedule_id=schedule_id,
        typed=typed,
        mistakes=mistakes or {},
        pipelines=pipelines if chosen in ("", *pipelines) else [*pipelines, chosen],
        filing=filing,
        chosen=chosen,
        needs_user=who.user is None and who.default_user is None,
        zones=sorted(available_timezones()),
        **_inputs(next((each for each in found if each["name"] == chosen), None), typed, mistakes or {}),
    )


def _inputs(pipeline: PipelineDocument | None, typed: Mapping[str, str], mistakes: Mapping[str, str]) -> dict[str, Any]:
    """The parameters as inputs; ``fields`` is None where they are shown as JSON, as wanted or because they have to."""
    values = parse(typed["parameters"])
    fields = [] if pipeline is None else [each for each in fields_of(pipeline["schema"]) if not _is_file(each)]
    has_form = pipeline is not None and values is not None and can_show(fields, values)
    if not has_form or typed["style"] == "json":
        return {"fields": None, "has_form": has_form}
    assert values is not None
    return {
        "fields": fields,
        "values": shown_values(fields, values),
        "kept": [field.name for field in fields if has_secret(field, values)],
        "prefix": PREFIX,
        "other_mistake": "" if any(PREFIX + each.name in mistakes for each in fields) else mistakes.get("parameters"),
    }


def _is_file(field: Field) -> bool:
    return field.kind in ("file", "files")


def _needs_file(pipeline: PipelineDocument) -> bool:
    """A schedule has none to bring."""
    return any(field.is_required and field.kind in ("file", "files") for field in fields_of(pipeline["schema"]))


async def _typed(request: Page) -> Typed:
    """What is not there is empty; of a box that is not ticked nothing is sent."""
    given = await form(request)
    typed = {name: str(given.get(name, "")).replace("\r\n", "\n") for name in (*FIELDS, "step")}
    if str(given.get("parameters_of", "")):
        typed["parameters"] = await _parameters_typed(request, given, typed)
    return typed


async def _parameters_typed(request: Page, given: FormMultiDict, typed: Typed) -> str:
    """What the inputs say, as JSON. They are those of the pipeline that was shown, which may not be the chosen one."""
    before = parse(typed["parameters"]) or {}
    services, caller = services_and_caller(request)
    try:
        pipeline = await services.catalog.get(str(given.get("parameters_of")), caller.app)
    except UnknownPipeline:
        return typed["parameters"]
    schema: Mapping[str, Any] = msgspec.json.decode(pipeline.definition.schema)
    fields = [each for each in fields_of(schema) if not _is_file(each)]
    defaults = {name: part["default"] for name, part in schema.get("properties", {}).items() if "default" in part}
    inputs = {name: [str(each) for each in given.getall(PREFIX + name, [])] for name in (each.name for each in fields)}
    found = read_values(fields, inputs.__getitem__, before, pipeline.read, defaults)
    if typed["pipeline"] != pipeline.plan.pipeline:
        found = await _known_to(request, typed["pipeline"], found)
    return typed["parameters"] if found == before else pretty(found)


async def _known_to(request: Page, name: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """The values that another pipeline has parameters for."""
    services, caller = services_and_caller(request)
    try:
        pipeline = await services.catalog.get(name, caller.app)
    except UnknownPipeline:
        return {}
    return {name: value for name, value in values.items() if name in pipeline.names}


def _as_typed(found: ScheduleDocument) -> Typed:
    same = ("schedule_id", "pipeline", "user_id", "cron", "zone", "overlap", "misfire")
    return {
        **{name: found[name] for name in same},  # type: ignore[literal-required]
        "parameters": pretty(found["parameters"]),
        "window": _window(found["window"]),
        "labels": "\n".join(f"{name}={value}" for name, value in found["labels"].items()),
        "active": "yes" if found["active"] else "",
        "reason": "",
        "version": str(found["version"]),
        "style": "form",
    }


def _window(seconds: float) -> str:
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "m")):
        if seconds and seconds % size == 0:
            return f"{seconds / size:.0f}{unit}"
    return f"{seconds:g}s"


def _body(typed: Mapping[str, str]) -> tuple[dict[str, Any], dict[str, str]]:
    """As the API takes it, parameters as they are written; and what cannot be read, which is as if it were empty."""
    plain = ("cron", "zone", "overlap", "misfire", "window", "reason")
    misread: dict[str, str] = {}
    read: dict[str, Any] = {}
    for name, reading in (("parameters", _parameters), ("labels", _labels)):
        try:
            read[name] = reading(typed[name])
        except Misread as mistake:
            read[name], misread[name] = EMPTY[name], str(mistake)
    body = {
        **{name: typed[name].strip() for name in plain},
        "pipeline": typed["pipeline"] or None,
        "user_id": typed["user_id"].strip() or None,
        **read,
        "active": typed["active"] == "yes",
    }
    return body, misread


def _parameters(text: str) -> bytes:
    try:
        found = msgspec.json.decode(text.strip() or "{}")
    except (msgspec.DecodeError, RecursionError) as error:
        raise Misread(f"Not valid JSON: {error}") from error
    if not isinstance(found, dict):
        raise Misread('It must be an object, as {"name": "value"}')
    return (text.strip() or "{}").encode()


def _labels(text: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for line in text.splitlines():
        name, equals, value = line.strip().partition("=")
        if name and equals:
            found[name] = value
        elif line.strip():
            raise Misread(f"{line.strip()[:100]} is not NAME=VALUE")
    return found
