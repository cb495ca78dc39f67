"""``/failures``: what went wrong, by what it was and one by one, and what is being done about it."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

from litestar import Response, get
from litestar.params import FromPath, FromQuery, QueryParameter

from packhorse.web.api_calls import Api, Page, Problem, viewer
from packhorse.web.render import rendered
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
    cursor: Text = None,
) -> Response[bytes]:
    """Groups, unless single ones are asked for; whoever sees only one user's has no groups."""
    filters = {
        "status": status, "pipeline": pipeline, "error_code": error_code, "user_id": user_id,
        "schedule_id": schedule_id, "since": since, "until": until,
    }  # fmt: skip
    chosen = {name: value for name, value in filters.items() if value}
    if view is None and not chosen and viewer(request).user is None:
        return await _groups(request, dismissed, cursor)
    return await _singles(request, filters, chosen, cursor)


async def _groups(request: Page, dismissed: bool, cursor: str | None) -> Response[bytes]:
    found = await Api(request).get("/failures/groups", dismissed=dismissed, trend=True, cursor=cursor)
    rows = [{**each, "spark": sparklines.trend(each["trend"])} for each in found["items"]]
    return rendered(request, "failures.html", rows=rows, next=found["next"], dismissed=dismissed, cursor=cursor)


async def _singles(
    request: Page, filters: dict[str, str | None], chosen: dict[str, str], cursor: str | None
) -> Response[bytes]:
    api = Api(request)
    mistakes: dict[str, str] = {}
    found: Any = {"items": [], "next": None}
    try:
        found = await api.get("/failures", **chosen, cursor=cursor)
    except Problem as problem:
        if problem.status != 422 or not problem.mistakes:
            raise
        mistakes = problem.mistakes
    return rendered(
        request,
        "failures_single.html",
        status=422 if mistakes else 200,
        rows=found["items"],
        next=found["next"],
        filters=filters,
        chosen=chosen,
        cursor=cursor,
        statuses=STATUSES,
        known=await _known(request, api),
        mistakes=mistakes,
        may_settle=may_settle(request),
    )


async def _known(request: Page, api: Api) -> dict[str, list[str]]:
    """What can be asked for: the pipelines there are and were, the schedules, and the codes that were last seen."""
    wanted = [api.get("/pipelines"), api.get("/schedules", limit=OFFERED)]
    if viewer(request).user is None:
        wanted.append(api.get("/failures/groups", limit=OFFERED))
    else:
        wanted.append(api.get("/failures", limit=OFFERED))
    pipelines, schedules, seen = [each["items"] for each in await asyncio.gather(*wanted)]
    return {
        "pipeline": sorted({each["name"] for each in pipelines} | {each["pipeline"] for each in seen}),
        "schedule_id": [each["schedule_id"] for each in schedules],
        "error_code": sorted({each["error_code"] for each in seen}),
    }


@get("/failures/groups/{fingerprint:str}", scope="read", include_in_schema=False)
async def group(
    request: Page,
    fingerprint: FromPath[str],
    status: Text = None,
    tried: Text = None,
    order: Text = None,
    cursor: Text = None,
) -> Response[bytes]:
    """``tried`` is the failure that was retried first, in the course of ``order``."""
    api = Api(request)
    found, failures, orders, trial = await asyncio.gather(
        api.get(f"/failures/groups/{fingerprint}", trend=True),
        api.get("/failures", fingerprint=fingerprint, status=status or None, cursor=cursor),
        api.get("/failures/orders", limit=ORDERS),
        _trial(api, tried, order),
    )
    return rendered(
        request,
        "failure_group.html",
        group=found,
        drawn=sparklines.trend(found["trend"]),
        rows=failures["items"],
        next=failures["next"],
        cursor=cursor,
        which=status,
        statuses=STATUSES,
        orders=[each for each in orders["items"] if (each["about"] or {}).get("fingerprint") == fingerprint],
        left=LEFT,
        trial=trial,
        tried=tried,
        order=order,
        may_settle=may_settle(request),
    )


@get("/failures/orders", scope="read", include_in_schema=False)
async def orders(request: Page, cursor: Text = None) -> Response[bytes]:
    found = await Api(request).get("/failures/orders", cursor=cursor)
    return rendered(request, "failure_orders.html", orders=found["items"], next=found["next"], cursor=cursor, left=LEFT)


@get("/failures/orders/{order_id:str}", scope="read", include_in_schema=False)
async def order(request: Page, order_id: FromPath[str]) -> Response[bytes]:
    found = await Api(request).get(f"/failures/orders/{order_id}")
    return rendered(request, "failure_order.html", order=found, left=LEFT)


ROUTES = [listed, group, orders, order]


def may_settle(request: Page) -> bool:
    """A key for one user sees what has hit that user, and settles nothing."""
    return "operate" in viewer(request).allowed and viewer(request).user is None


async def _trial(api: Api, tried: str | None, order_id: str | None) -> dict[str, Any] | None:
    """How the one went that was retried first: its failure, its job as it is now, and the order."""
    if not tried or not order_id:
        return None
    try:
        failure, order = await asyncio.gather(api.get(f"/failures/{tried}"), api.get(f"/failures/orders/{order_id}"))
    except Problem:  # long ago, and forgotten since
        return None
    left = LEFT.get(order["named"][0]["why"], order["named"][0]["why"]) if order["named"] else None
    return {"failure": failure, "left": left, "job": await _job(api, failure["job_id"])}


async def _job(api: Api, job_id: str) -> Any:
    try:
        return await api.get(f"/jobs/{job_id}")
    except Problem:
        return None
