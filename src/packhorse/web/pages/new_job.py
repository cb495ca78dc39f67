"""``/jobs/new``: a form made from a pipeline's parameters; an error is shown beside its field."""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping, Sequence
from typing import Annotated

from litestar import Response, get, post
from litestar.params import QueryParameter

from packhorse.auth import access
from packhorse.define.validation import unknown_pipeline
from packhorse.errors import PackhorseError
from packhorse.http import problems
from packhorse.http.requests import Body
from packhorse.http.routes.submit import receive_job
from packhorse.jobs import view
from packhorse.schemas.operations import PipelineDocument
from packhorse.web.forms import BESIDE, Relayed
from packhorse.web.render import Page, as_json, is_script, mistakes, redirect, render_page, services_and_caller
from packhorse.web.widgets.fields import Field, fields_of

ORIGIN = "web"  # of jobs that people submit with the form
BESIDES = 64 * 1024  # bytes for what is said beside the parameters

Name = Annotated[str | None, QueryParameter()]
Needed = Annotated[str, QueryParameter()]


@get("/jobs/new", scope="submit", include_in_schema=False)
async def new(request: Page, pipeline: Name = None) -> Response[bytes]:
    """The form; where there are several pipelines and none is named, which it is to be."""
    found = await _pipelines(request)
    if not pipeline and len(found) != 1:
        return render_page(request, "job_choose.html", pipelines=found)
    chosen = _chosen(found, pipeline or found[0]["name"])
    return _form(request, chosen, fields_of(chosen["schema"]))


@post("/jobs/new", scope="submit", status_code=200, include_in_schema=False, request_max_body_size=None)
async def submit(request: Page, pipeline: Needed, key: Name = None, user_id: Name = None) -> Response[bytes]:
    """Stores files as they arrive. A script that asks for JSON gets the outcome as JSON."""
    services, caller = services_and_caller(request)
    chosen = _chosen(await _pipelines(request), pipeline)
    fields = fields_of(chosen["schema"])
    limit = services.settings.parameters_limit + BESIDES
    by_name = {field.name: field for field in fields}
    sent = Relayed(request.receive, request.headers.get("content-type", ""), by_name, limit)
    query = {"pipeline": pipeline} | ({"user_id": user_id} if user_id else {})
    body = Body(sent.receive, services.settings)
    try:
        job = await receive_job(services, caller, body, sent.content_type, query, key or None, origin=ORIGIN)
    except PackhorseError as error:
        known = problems.known_error(request, error)
        problems.log_failure(known, request, error)
        return _refused(request, chosen, fields, sent, known)
    path = f"/jobs/{job['job_id']}"
    if is_script(request):
        return as_json(201, {"location": redirect(request, path).headers["Location"]})
    return redirect(request, path, "Job submitted.")


ROUTES = [new, submit]


async def _pipelines(request: Page) -> list[PipelineDocument]:
    services, caller = services_and_caller(request)
    access.require(caller, "read")
    return await view.pipelines(services, caller)


def _chosen(pipelines: Sequence[PipelineDocument], name: str) -> PipelineDocument:
    for each in pipelines:
        if each["name"] == name:
            return each
    raise unknown_pipeline(name, [each["name"] for each in pipelines])


def _form(
    request: Page,
    pipeline: PipelineDocument,
    fields: Sequence[Field],
    *,
    status: int = 200,
    typed: Mapping[str, Sequence[str]] | None = None,
    wrong: Mapping[str, str] | None = None,
    error: str = "",
    active: str | None = None,
) -> Response[bytes]:
    _, who = services_and_caller(request)
    values = {field.name: _value(field, typed) for field in fields}
    return render_page(
        request,
        "job_new.html",
        status=status,
        pipeline=pipeline,
        fields=fields,
        values=values,
        beside={name: "\n".join((typed or {}).get(name, ())) for name in BESIDE},
        mistakes=wrong or {},
        error=error,
        active=active,
        has_user=who.user is None,
        needs_user=who.user is None and who.default_user is None,
        key=secrets.token_hex(12),
    )


def _value(field: Field, typed: Mapping[str, Sequence[str]] | None) -> str:
    if typed is None:
        return "true" if field.kind == "check" and field.value == "true" else field.value
    found = typed.get(field.name, ())
    return "true" if field.kind == "check" and found else "\n".join(found)


def _refused(
    request: Page, pipeline: PipelineDocument, fields: Sequence[Field], sent: Relayed, refusal: PackhorseError
) -> Response[bytes]:
    names = {*(field.name for field in fields), *BESIDE}
    wrong, rest = _by_field(refusal, names)
    error = "; ".join(rest) or ("" if wrong else refusal.message or refusal.title())
    active = refusal.facts.get("active_job_id")
    if is_script(request):
        link = redirect(request, f"/jobs/{active}").headers["Location"] if active else None
        return as_json(refusal.status, {"mistakes": wrong, "error": error, "active": link})
    return _form(
        request, pipeline, fields, status=refusal.status, typed=sent.typed, wrong=wrong, error=error, active=active
    )


def _by_field(error: PackhorseError, names: set[str]) -> tuple[dict[str, str], list[str]]:
    """What is wrong with which field, also where it is about a part of its value; and what is about none."""
    found, rest = dict[str, str](), list[str]()
    told = mistakes(error)
    if not told and error.facts.get("field"):
        told = {str(error.facts["field"]): error.message}
    for path, message in told.items():
        name = path if path in names else re.split(r"[.\[]", path)[0]
        said = message if name == path else f"{path}: {message}"
        if name in names:
            found[name] = f"{found[name]}; {said}" if name in found else said
        else:
            rest.append(f"{path}: {message}" if path else message)
    return found, rest
