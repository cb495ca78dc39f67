"""What a person does about failures: retry one first, retry many, dismiss. What it is about is seen before."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from litestar import Response, get, post
from litestar.params import FromPath, FromQuery

from packhorse.errors import InvalidInput
from packhorse.http.requests import convert
from packhorse.http.services import tools_and_caller
from packhorse.jobs import failures
from packhorse.jobs.failures import Chosen, ToDismiss
from packhorse.schemas.failures import Kind, OrderedDocument
from packhorse.web.forms import form
from packhorse.web.pages.failures import failure_filter
from packhorse.web.render import Page, mistakes, moved, rendered

NAMES = ("fingerprint", "pipeline", "error_code", "user_id", "schedule_id", "since", "until")
VERBS = {"retry": ("Retry", "retried"), "dismiss": ("Dismiss", "dismissed")}

Text = FromQuery[str | None]


@post("/failures/groups/{fingerprint:str}/first", scope="operate", status_code=200, include_in_schema=False)
async def retry_first(request: Page, fingerprint: FromPath[str]) -> Response[bytes]:
    """Only the newest: whether it is mended shows with one, before it is tried with all."""
    tools, caller = tools_and_caller(request.scope)
    path = f"/failures/groups/{fingerprint}"
    await failures.group(tools, caller, fingerprint)
    wanted = failure_filter(caller.tenant, fingerprint=fingerprint, status="open")
    found = (await failures.list_failures(tools, caller, wanted, limit=1))["items"]
    if not found:
        return moved(request, path, said="There is no open failure in this group any more.")
    [newest] = [each["failure_id"] for each in found]
    placed = await failures.place_order(tools, caller, "retry", Chosen(ids=[newest]))
    assert placed["order"] is not None
    return moved(request, path, tried=newest, order=placed["order"]["order_id"])


@get("/failures/retry", scope="operate", include_in_schema=False)
async def ask_retry(
    request: Page,
    ids: Text = None,
    fingerprint: Text = None,
    pipeline: Text = None,
    error_code: Text = None,
    user_id: Text = None,
    schedule_id: Text = None,
    since: Text = None,
    until: Text = None,
) -> Response[bytes]:
    named = (fingerprint, pipeline, error_code, user_id, schedule_id, since, until)
    return await _asked(request, "retry", _chosen(ids, dict(zip(NAMES, named, strict=True))))


@post("/failures/retry", scope="operate", status_code=200, include_in_schema=False)
async def retry(request: Page) -> Response[bytes]:
    return await _ordered(request, "retry")


@get("/failures/dismiss", scope="operate", include_in_schema=False)
async def ask_dismiss(
    request: Page,
    ids: Text = None,
    fingerprint: Text = None,
    pipeline: Text = None,
    error_code: Text = None,
    user_id: Text = None,
    schedule_id: Text = None,
    since: Text = None,
    until: Text = None,
) -> Response[bytes]:
    named = (fingerprint, pipeline, error_code, user_id, schedule_id, since, until)
    return await _asked(request, "dismiss", _chosen(ids, dict(zip(NAMES, named, strict=True))))


@post("/failures/dismiss", scope="operate", status_code=200, include_in_schema=False)
async def dismiss(request: Page) -> Response[bytes]:
    return await _ordered(request, "dismiss")


ROUTES = [retry_first, ask_retry, retry, ask_dismiss, dismiss]


def _chosen(ids: str | None, named: Mapping[str, str | None]) -> dict[str, Any]:
    """As the API takes it; ids with commas between them."""
    found: dict[str, Any] = {name: value for name, value in named.items() if value}
    picked = [each for each in (ids or "").split(",") if each]
    if not found and not picked:
        raise InvalidInput("No failures are chosen: choose a group, or filter those that are listed one by one.")
    return {**found, "ids": picked} if picked else found


async def _asked(
    request: Page,
    verb: Kind,
    chosen: Mapping[str, Any],
    typed: Mapping[str, str] | None = None,
    wrong: Mapping[str, str] | None = None,
) -> Response[bytes]:
    """What it is about, by a trial that orders nothing."""
    body = {**chosen, "dry_run": True} | ({"reason": "a trial"} if verb == "dismiss" else {})
    trial = await _place(request, verb, body)
    word, done = VERBS[verb]
    return rendered(
        request,
        "failures_confirm.html",
        status=422 if wrong else 200,
        verb=verb,
        word=word,
        done=done,
        trial=trial,
        hidden={**chosen, "ids": ",".join(chosen["ids"])} if "ids" in chosen else chosen,
        group=chosen.get("fingerprint"),
        typed=typed or {"pace": "", "reason": ""},
        mistakes=wrong or {},
    )


async def _place(request: Page, verb: Kind, body: Mapping[str, Any]) -> OrderedDocument:
    tools, caller = tools_and_caller(request.scope)
    return await failures.place_order(tools, caller, verb, convert(body, Chosen if verb == "retry" else ToDismiss))


async def _ordered(request: Page, verb: Kind) -> Response[bytes]:
    given = await form(request)
    typed = {name: str(given.get(name, "")) for name in ("pace", "reason")}
    chosen = _chosen(str(given.get("ids", "")), {name: str(given.get(name, "")) for name in NAMES})
    body = {**chosen, "pace": _number(typed["pace"])} if verb == "retry" else {**chosen, "reason": typed["reason"]}
    try:
        found = await _place(request, verb, body)
    except InvalidInput as error:
        wrong = mistakes(error)
        if not {*wrong} & {"pace", "reason"}:
            raise
        return await _asked(request, verb, chosen, typed, wrong)
    assert found["order"] is not None
    count = f"{found['count']:,}{' or more' if found['is_at_least'] else ''}"
    said = f"{count} will be {VERBS[verb][1]}: see below how far it is."
    is_group = [*chosen] == ["fingerprint"]
    path = f"/failures/groups/{chosen['fingerprint']}" if is_group else f"/failures/orders/{found['order']['order_id']}"
    return moved(request, path, said=said)


def _number(text: str) -> float | str | None:
    """What is no number goes on as it is, for the API to say so."""
    try:
        found = float(text) if text.strip() else None
    except ValueError:
        return text
    return found if found is None or math.isfinite(found) else text
