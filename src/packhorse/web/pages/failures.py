"""``/failures``: what went wrong, by what it was and one by one, and what is being done about it."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from litestar import Response, get, post
from litestar.params import FromPath, FromQuery, QueryParameter

from packhorse.core.models import FailureStatus
from packhorse.define.validation import NOT_VALID, FieldError, invalid, one_of
from packhorse.errors import InvalidInput, PackhorseError
from packhorse.http.requests import convert
from packhorse.http.routes.failures import Cursor
from packhorse.jobs import failures, schedules, view
from packhorse.jobs.failures import Chosen, ToDismiss
from packhorse.jobs.view import time_from
from packhorse.schemas.failures import FailureDocument, FailureGroupDocument, FailuresPage, Kind, OrderedDocument
from packhorse.store.base import FailureFilter
from packhorse.web.forms import form
from packhorse.web.render import Page, mistakes, redirect, render_page, services_and_caller
from packhorse.web.widgets import plots

STATUSES = tuple(each.value for each in FailureStatus)
FILTERS = ("pipeline", "error_code", "user_id", "schedule_id", "since", "until")
CHOSEN = ("fingerprint", *FILTERS)
ORDERS = 50  # the newest orders, of which those about a group are shown with it
SIMILAR = 10
OFFERED = 200  # of each kind, to filter by
LEFT = {
    "gone": "the job was deleted",
    "slot_taken": "the user has another active job",
    "running": "edit conflict",
    "settled": "already settled",
    "unreadable": "the job cannot be read",
}
"""Why an order leaves a failure as it is."""
VERBS = {"retry": ("Retry", "retried"), "dismiss": ("Dismiss", "dismissed")}

Text = FromQuery[str | None]
View = Annotated[str | None, QueryParameter(pattern="^single$", description="Single failures instead of groups.")]
Dismissed = Annotated[bool, QueryParameter(description="Groups that were dismissed instead of the others.")]


@get("/failures", scope="read", query=("view", "dismissed", "status", *FILTERS, "cursor"), include_in_schema=False)
async def failures_page(
    request: Page, view: View = None, dismissed: Dismissed = False, cursor: Cursor = None
) -> Response[bytes]:
    """Groups, unless single failures are requested; a key for one user has no groups."""
    filters = {name: request.query_params.get(name) for name in ("status", *FILTERS)}
    chosen = {name: value for name, value in filters.items() if value}
    if view is None and not chosen and services_and_caller(request)[1].user is None:
        return await _groups(request, dismissed, cursor)
    return await _singles(request, filters, chosen, cursor)


async def _groups(request: Page, dismissed: bool, cursor: str | None) -> Response[bytes]:
    services, caller = services_and_caller(request)
    found = await failures.list_groups(services, caller, dismissed=dismissed, trend=True, cursor=cursor)
    rows = [{**each, "spark": plots.trend_spark(each["trend"])} for each in found["items"]]
    return render_page(request, "failures.html", rows=rows, next=found["next"], dismissed=dismissed, cursor=cursor)


async def _singles(
    request: Page, filters: dict[str, str | None], chosen: dict[str, str], cursor: str | None
) -> Response[bytes]:
    services, caller = services_and_caller(request)
    wrong: dict[str, str] = {}
    found: FailuresPage = {"items": [], "next": None}
    try:
        found = await failures.list_failures(services, caller, _filter(caller.tenant, **chosen), cursor=cursor)
    except InvalidInput as error:
        wrong = mistakes(error)
    return render_page(
        request,
        "failures_single.html",
        status=422 if wrong else 200,
        rows=found["items"],
        next=found["next"],
        filters=filters,
        chosen=chosen,
        cursor=cursor,
        statuses=STATUSES,
        known=await _known(request),
        mistakes=wrong,
        may_settle=_may_settle(request),
    )


def _filter(tenant: str, **given: str | None) -> FailureFilter:
    """Raises InvalidInput."""
    status = given.get("status")
    wrong: list[FieldError] = [] if status is None or status in STATUSES else [one_of("status", STATUSES)]
    since, until = (time_from(given.get(name), name, wrong) for name in ("since", "until"))
    if wrong:
        raise invalid(NOT_VALID, wrong)
    return FailureFilter(
        tenant,
        given.get("fingerprint"),
        user=given.get("user_id"),
        pipeline=given.get("pipeline"),
        code=given.get("error_code"),
        status=None if status is None else FailureStatus(status),
        schedule=given.get("schedule_id"),
        since=since,
        until=until,
    )


async def _known(request: Page) -> dict[str, list[str]]:
    """Choices of the filters: the pipelines there are and were, the schedules, and the codes that were last seen."""
    services, caller = services_and_caller(request)
    known = [each.plan.pipeline for each in await services.catalog.all()]
    named = await schedules.list_schedules(services, caller, limit=OFFERED)
    seen: Sequence[FailureDocument | FailureGroupDocument]
    if caller.user is None:
        seen = (await failures.list_groups(services, caller, limit=OFFERED))["items"]
    else:
        seen = (await failures.list_failures(services, caller, _filter(caller.tenant), limit=OFFERED))["items"]
    return {
        "pipeline": sorted({*known} | {each["pipeline"] for each in seen}),
        "schedule_id": [each["schedule_id"] for each in named["items"]],
        "error_code": sorted({each["error_code"] for each in seen}),
    }


@get("/failures/groups/{fingerprint:str}", scope="read", include_in_schema=False)
async def group(
    request: Page,
    fingerprint: FromPath[str],
    status: Text = None,
    tried: Text = None,
    order: Text = None,
    cursor: Cursor = None,
) -> Response[bytes]:
    """``tried`` is the failure that was retried first, in the course of ``order``."""
    services, caller = services_and_caller(request)
    found = await failures.group(services, caller, fingerprint, trend=True)
    assert "trend" in found
    wanted = _filter(caller.tenant, fingerprint=fingerprint, status=status or None)
    page, orders, trial, others = await asyncio.gather(
        failures.list_failures(services, caller, wanted, cursor=cursor),
        failures.list_orders(services, caller, limit=ORDERS),
        _trial(request, tried, order),
        failures.list_groups(services, caller, limit=OFFERED),
    )
    newest = page["items"][0] if page["items"] else None
    return render_page(
        request,
        "failure_group.html",
        group=found,
        drawn=plots.trend_spark(found["trend"]),
        rows=page["items"],
        next=page["next"],
        cursor=cursor,
        which=status,
        statuses=STATUSES,
        orders=[each for each in orders["items"] if each["about"] and each["about"]["fingerprint"] == fingerprint],
        left=LEFT,
        trial=trial,
        newest=newest,
        traceback=None if newest is None else await _traceback(request, newest),
        similar=[each for each in others["items"] if _is_similar(each, found)][:SIMILAR],
        tried=tried,
        order=order,
        may_settle=_may_settle(request),
    )


def _is_similar(other: FailureGroupDocument, group: FailureGroupDocument) -> bool:
    """Another failure of the same stage, or of the same kind elsewhere in the pipeline."""
    if other["fingerprint"] == group["fingerprint"] or other["pipeline"] != group["pipeline"]:
        return False
    return group["stage"] == other["stage"] or group["error_code"] == other["error_code"]


async def _traceback(request: Page, failure: FailureDocument) -> str | None:
    """Of the job as it is now, if its run is still the one that failed."""
    try:
        job = await view.job(*services_and_caller(request), failure["job_id"])
    except PackhorseError:  # deleted, or not readable
        return None
    error = job["last_error"]
    return error["detail"] if error is not None and job["run"] == failure["run"] else None


@get("/failures/orders", scope="read", include_in_schema=False)
async def orders(request: Page, cursor: Cursor = None) -> Response[bytes]:
    found = await failures.list_orders(*services_and_caller(request), cursor=cursor)
    return render_page(
        request, "failure_orders.html", orders=found["items"], next=found["next"], cursor=cursor, left=LEFT
    )


@get("/failures/orders/{order_id:str}", scope="read", include_in_schema=False)
async def order(request: Page, order_id: FromPath[str]) -> Response[bytes]:
    found = await failures.order(*services_and_caller(request), order_id)
    return render_page(request, "failure_order.html", order=found, left=LEFT)


def _may_settle(request: Page) -> bool:
    """A key for one user sees what has hit that user, and settles nothing."""
    _, caller = services_and_caller(request)
    return "operate" in caller.allowed and caller.user is None


async def _trial(request: Page, tried: str | None, order_id: str | None) -> dict[str, Any] | None:
    """How the one went that was retried first: its failure, its job as it is now, and the order."""
    if not tried or not order_id:
        return None
    services, caller = services_and_caller(request)
    try:
        failure = await failures.failure(services, caller, tried)
        order = await failures.order(services, caller, order_id)
    except PackhorseError:  # long ago, and forgotten since
        return None
    left = LEFT.get(order["named"][0]["why"], order["named"][0]["why"]) if order["named"] else None
    try:
        job = await view.job(services, caller, failure["job_id"])
    except PackhorseError:
        job = None
    return {"failure": failure, "left": left, "job": job}


@post("/failures/groups/{fingerprint:str}/first", scope="operate", status_code=200, include_in_schema=False)
async def retry_first(request: Page, fingerprint: FromPath[str]) -> Response[bytes]:
    """Retry only the newest, to see whether the problem is fixed, before all others."""
    services, caller = services_and_caller(request)
    path = f"/failures/groups/{fingerprint}"
    back = (await form(request)).get("back") == "/"  # from the overview
    await failures.group(services, caller, fingerprint)
    wanted = _filter(caller.tenant, fingerprint=fingerprint, status="open")
    found = (await failures.list_failures(services, caller, wanted, limit=1))["items"]
    if not found:
        return redirect(request, "/" if back else path, said="This group has no open failures.")
    [newest] = [each["failure_id"] for each in found]
    placed = await failures.place_order(services, caller, "retry", Chosen(ids=[newest]))
    assert placed["order"] is not None
    services.worst_groups.forget()
    if back:
        return redirect(request, "/", said="The newest failure of the group will be retried.")
    return redirect(request, path, tried=newest, order=placed["order"]["order_id"])


@get(["/failures/retry", "/failures/dismiss"], scope="operate", query=("ids", *CHOSEN), include_in_schema=False)
async def ask(request: Page) -> Response[bytes]:
    return await _asked(request, _chosen(request.query_params))


@post(["/failures/retry", "/failures/dismiss"], scope="operate", status_code=200, include_in_schema=False)
async def place(request: Page) -> Response[bytes]:
    given = await form(request)
    verb, chosen = _verb(request), _chosen(given)
    typed = {name: str(given.get(name, "")) for name in ("pace", "reason")}
    more = {"pace": _number(typed["pace"])} if verb == "retry" else {"reason": typed["reason"]}
    try:
        found = await _place(request, {**chosen, **more})
    except InvalidInput as error:
        wrong = mistakes(error)
        if not {*wrong} & {"pace", "reason"}:
            raise
        return await _asked(request, chosen, typed, wrong)
    assert found["order"] is not None
    count = f"{found['count']:,}{' or more' if found['is_at_least'] else ''}"
    said = f"{count} will be {VERBS[verb][1]}. Progress is shown below."
    is_group = [*chosen] == ["fingerprint"]
    path = f"/failures/groups/{chosen['fingerprint']}" if is_group else f"/failures/orders/{found['order']['order_id']}"
    return redirect(request, path, said=said)


def _verb(request: Page) -> Kind:
    return "retry" if request.scope["path"].endswith("/retry") else "dismiss"


def _chosen(given: Mapping[str, Any]) -> dict[str, Any]:
    """As the API takes it; ids with commas between them."""
    found: dict[str, Any] = {name: str(given[name]) for name in CHOSEN if given.get(name)}
    picked = [each for each in str(given.get("ids", "")).split(",") if each]
    if not found and not picked:
        raise InvalidInput("No failures selected. Select a group, or filter the list of single failures.")
    return {**found, "ids": picked} if picked else found


async def _asked(
    request: Page,
    chosen: Mapping[str, Any],
    typed: Mapping[str, str] | None = None,
    wrong: Mapping[str, str] | None = None,
) -> Response[bytes]:
    """What it is about, by a trial that orders nothing."""
    verb = _verb(request)
    body = {**chosen, "dry_run": True} | ({"reason": "a trial"} if verb == "dismiss" else {})
    trial = await _place(request, body)
    word, done = VERBS[verb]
    return render_page(
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


async def _place(request: Page, body: Mapping[str, Any]) -> OrderedDocument:
    services, caller = services_and_caller(request)
    verb = _verb(request)
    return await failures.place_order(services, caller, verb, convert(body, Chosen if verb == "retry" else ToDismiss))


def _number(text: str) -> float | str | None:
    """Text that is not a number is passed on, so that the API rejects it."""
    try:
        found = float(text) if text.strip() else None
    except ValueError:
        return text
    return found if found is None or math.isfinite(found) else text


ROUTES = [failures_page, group, orders, order, retry_first, ask, place]
