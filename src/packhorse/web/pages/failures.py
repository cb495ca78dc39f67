"""``/failures``: what went wrong, by what it was and one by one, and what is being done about it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Annotated, Any

from litestar import Response, get
from litestar.params import FromPath, FromQuery, QueryParameter

from packhorse.core.models import FailureStatus
from packhorse.define.validation import NOT_VALID, FieldError, invalid, one_of
from packhorse.errors import InvalidInput, PackhorseError
from packhorse.http.routes.failures import Cursor
from packhorse.http.services import tools_and_caller
from packhorse.jobs import failures, schedules, view
from packhorse.jobs.view import time_from
from packhorse.schemas.failures import FailureDocument, FailureGroupDocument, FailuresPage
from packhorse.store.base import FailureFilter
from packhorse.web.render import Page, mistakes, rendered
from packhorse.web.widgets import sparklines

STATUSES = {
    "open": "open",
    "retried": "retried",
    "resolved": "resolved",
    "dismissed": "dismissed",
}
ORDERS = 50
"""The newest orders, of which those about a group are shown with it."""
OFFERED = 200
"""Of each kind, to filter by."""
LEFT = {
    "gone": "its job is purged",
    "slot_taken": "its user has another active job",
    "running": "somebody was faster",
    "settled": "it was settled already",
    "unreadable": "its job cannot be read",
}
"""Why an order leaves a failure as it is."""

Text = FromQuery[str | None]
View = Annotated[str | None, QueryParameter(pattern="^single$", description="Single failures instead of groups.")]
Dismissed = Annotated[bool, QueryParameter(description="Groups that were dismissed instead of the others.")]


@get("/failures", scope="read", include_in_schema=False)
async def listed(
    request: Page,
    view: View = None,
    dismissed: Dismissed = False,
    status: Text = None,
    pipeline: Text = None,
    error_code: Text = None,
    user_id: Text = None,
    schedule_id: Text = None,
    since: Text = None,
    until: Text = None,
    cursor: Cursor = None,
) -> Response[bytes]:
    """Groups, unless single ones are asked for; whoever sees only one user's has no groups."""
    filters = {
        "status": status, "pipeline": pipeline, "error_code": error_code, "user_id": user_id,
        "schedule_id": schedule_id, "since": since, "until": until,
    }  # fmt: skip
    chosen = {name: value for name, value in filters.items() if value}
    if view is None and not chosen and tools_and_caller(request.scope)[1].user is None:
        return await _groups(request, dismissed, cursor)
    return await _singles(request, filters, chosen, cursor)


async def _groups(request: Page, dismissed: bool, cursor: str | None) -> Response[bytes]:
    tools, caller = tools_and_caller(request.scope)
    found = await failures.list_groups(tools, caller, dismissed=dismissed, trend=True, cursor=cursor)
    rows = [{**each, "spark": sparklines.trend(each["trend"])} for each in found["items"]]
    return rendered(request, "failures.html", rows=rows, next=found["next"], dismissed=dismissed, cursor=cursor)


async def _singles(
    request: Page, filters: dict[str, str | None], chosen: dict[str, str], cursor: str | None
) -> Response[bytes]:
    tools, caller = tools_and_caller(request.scope)
    wrong: dict[str, str] = {}
    found: FailuresPage = {"items": [], "next": None}
    try:
        found = await failures.list_failures(tools, caller, failure_filter(caller.tenant, **chosen), cursor=cursor)
    except InvalidInput as error:
        wrong = mistakes(error)
    return rendered(
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
        may_settle=may_settle(request),
    )


def failure_filter(
    tenant: str,
    fingerprint: str | None = None,
    status: str | None = None,
    pipeline: str | None = None,
    error_code: str | None = None,
    user_id: str | None = None,
    schedule_id: str | None = None,
    since: str | None = None,
    until: str | None = None,
) -> FailureFilter:
    """Raises InvalidInput."""
    wrong: list[FieldError] = [] if status is None or status in STATUSES else [one_of("status", [*STATUSES])]
    bounds = time_from(since, "since", wrong), time_from(until, "until", wrong)
    if wrong:
        raise invalid(NOT_VALID, wrong)
    chosen = None if status is None else FailureStatus(status)
    return FailureFilter(tenant, fingerprint, None, user_id, pipeline, error_code, chosen, schedule_id, *bounds)


async def _known(request: Page) -> dict[str, list[str]]:
    """What can be asked for: the pipelines there are and were, the schedules, and the codes that were last seen."""
    tools, caller = tools_and_caller(request.scope)
    known = [each.plan.pipeline for each in await tools.catalog.all()]
    named = await schedules.list_schedules(tools, caller, limit=OFFERED)
    seen: Sequence[FailureDocument | FailureGroupDocument]
    if caller.user is None:
        seen = (await failures.list_groups(tools, caller, limit=OFFERED))["items"]
    else:
        seen = (await failures.list_failures(tools, caller, failure_filter(caller.tenant), limit=OFFERED))["items"]
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
    tools, caller = tools_and_caller(request.scope)
    found = await failures.group(tools, caller, fingerprint, trend=True)
    assert "trend" in found
    wanted = failure_filter(caller.tenant, fingerprint=fingerprint, status=status or None)
    page, orders, trial = await asyncio.gather(
        failures.list_failures(tools, caller, wanted, cursor=cursor),
        failures.list_orders(tools, caller, limit=ORDERS),
        _trial(request, tried, order),
    )
    return rendered(
        request,
        "failure_group.html",
        group=found,
        drawn=sparklines.trend(found["trend"]),
        rows=page["items"],
        next=page["next"],
        cursor=cursor,
        which=status,
        statuses=STATUSES,
        orders=[each for each in orders["items"] if each["about"] and each["about"]["fingerprint"] == fingerprint],
        left=LEFT,
        trial=trial,
        tried=tried,
        order=order,
        may_settle=may_settle(request),
    )


@get("/failures/orders", scope="read", include_in_schema=False)
async def orders(request: Page, cursor: Cursor = None) -> Response[bytes]:
    found = await failures.list_orders(*tools_and_caller(request.scope), cursor=cursor)
    return rendered(request, "failure_orders.html", orders=found["items"], next=found["next"], cursor=cursor, left=LEFT)


@get("/failures/orders/{order_id:str}", scope="read", include_in_schema=False)
async def order(request: Page, order_id: FromPath[str]) -> Response[bytes]:
    found = await failures.order(*tools_and_caller(request.scope), order_id)
    return rendered(request, "failure_order.html", order=found, left=LEFT)


ROUTES = [listed, group, orders, order]


def may_settle(request: Page) -> bool:
    """A key for one user sees what has hit that user, and settles nothing."""
    _, caller = tools_and_caller(request.scope)
    return "operate" in caller.allowed and caller.user is None


async def _trial(request: Page, tried: str | None, order_id: str | None) -> dict[str, Any] | None:
    """How the one went that was retried first: its failure, its job as it is now, and the order."""
    if not tried or not order_id:
        return None
    tools, caller = tools_and_caller(request.scope)
    try:
        failure = await failures.failure(tools, caller, tried)
        order = await failures.order(tools, caller, order_id)
    except PackhorseError:  # long ago, and forgotten since
        return None
    left = LEFT.get(order["named"][0]["why"], order["named"][0]["why"]) if order["named"] else None
    try:
        job = await view.job(tools, caller, failure["job_id"])
    except PackhorseError:
        job = None
    return {"failure": failure, "left": left, "job": job}
