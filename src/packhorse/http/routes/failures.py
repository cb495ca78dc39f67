"""Failures: listed one by one and in groups, and retried or dismissed, one or many."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

from litestar import get, post
from litestar.params import FromQuery, QueryParameter

from packhorse.auth import access
from packhorse.core.models import FailureStatus
from packhorse.errors import FailureGroupNotFound, FailureNotFound, OrderNotFound
from packhorse.http.openapi import error_responses, json_body
from packhorse.http.requests import HttpRequest, Id, PageSize, read_json
from packhorse.http.services import FromCaller, FromServices
from packhorse.jobs import failures
from packhorse.jobs.failures import Chosen, ToDismiss
from packhorse.jobs.view import seconds_of
from packhorse.schemas.failures import (
    FailureDocument,
    FailureGroupDocument,
    FailureGroupsPage,
    FailuresPage,
    OrderDocument,
    OrderedDocument,
    OrdersPage,
)
from packhorse.store.base import FailureFilter

Cursor = Annotated[
    str | None,
    QueryParameter(pattern=r"^[0-9a-f]{12}-[0-9a-f-]{1,80}$", description="What an earlier page gave as `next`."),
]
Dismissed = Annotated[bool | None, QueryParameter(description="Only dismissed groups, or only others.")]
Trend = Annotated[bool, QueryParameter(description="Include the number of failures in each of the last hours.")]


@get("/failures", scope="read", responses=error_responses())
async def list_failures(
    services: FromServices,
    caller: FromCaller,
    fingerprint: FromQuery[str | None] = None,
    job_id: FromQuery[str | None] = None,
    user_id: FromQuery[str | None] = None,
    pipeline: FromQuery[str | None] = None,
    error_code: FromQuery[str | None] = None,
    status: FromQuery[FailureStatus | None] = None,
    schedule_id: FromQuery[str | None] = None,
    since: FromQuery[datetime | None] = None,
    until: FromQuery[datetime | None] = None,
    cursor: Cursor = None,
    limit: PageSize = 50,
) -> FailuresPage:
    """Failed runs, newest first. `next` is the cursor of the next page."""
    times = seconds_of(since), seconds_of(until)
    wanted = FailureFilter(
        caller.tenant, fingerprint, job_id, user_id, pipeline, error_code, status, schedule_id, *times
    )
    return await failures.list_failures(services, caller, wanted, cursor=cursor, limit=limit)


@get("/failures/groups", scope="read", responses=error_responses())
async def list_groups(
    services: FromServices,
    caller: FromCaller,
    dismissed: Dismissed = None,
    trend: Trend = False,
    cursor: Cursor = None,
    limit: PageSize = 50,
) -> FailureGroupsPage:
    """Failures grouped by cause, the most recent first: how many, since when, how many users are affected."""
    return await failures.list_groups(services, caller, dismissed=dismissed, trend=trend, cursor=cursor, limit=limit)


@get("/failures/groups/{fingerprint:str}", scope="read", responses=error_responses(FailureGroupNotFound))
async def get_group(
    services: FromServices, caller: FromCaller, fingerprint: Id, trend: Trend = False
) -> FailureGroupDocument:
    """One group."""
    return await failures.group(services, caller, fingerprint, trend=trend)


@get("/failures/orders", scope="read", responses=error_responses())
async def list_orders(
    services: FromServices, caller: FromCaller, cursor: Cursor = None, limit: PageSize = 50
) -> OrdersPage:
    """Bulk retries and dismissals, newest first, with their progress."""
    return await failures.list_orders(services, caller, cursor=cursor, limit=limit)


@get("/failures/orders/{order_id:str}", scope="read", responses=error_responses(OrderNotFound))
async def get_order(services: FromServices, caller: FromCaller, order_id: Id) -> OrderDocument:
    """One bulk retry or dismissal: how many failures are done, how many were not changed, and why."""
    return await failures.order(services, caller, order_id)


@get("/failures/{failure_id:str}", scope="read", responses=error_responses(FailureNotFound))
async def get_failure(services: FromServices, caller: FromCaller, failure_id: Id) -> FailureDocument:
    """One failure."""
    return await failures.failure(services, caller, failure_id)


@post(
    "/failures/retry",
    scope="operate",
    status_code=202,
    **json_body(Chosen, FailureNotFound, FailureGroupNotFound, required=True),
)
async def retry(request: HttpRequest, services: FromServices, caller: FromCaller) -> OrderedDocument:
    """Retry open failures: by id, a group, or all that match a filter.

    Workers do it, `pace` of them a second; the order in the answer says how far they are. With `dry_run` nothing is
    ordered: the answer says how many it would be about, and shows the newest of them.
    """
    access.require_whole_tenant(caller)
    return await failures.place_order(services, caller, "retry", await read_json(request, Chosen))


@post(
    "/failures/dismiss",
    scope="operate",
    status_code=202,
    **json_body(ToDismiss, FailureNotFound, FailureGroupNotFound, required=True),
)
async def dismiss(request: HttpRequest, services: FromServices, caller: FromCaller) -> OrderedDocument:
    """Dismiss open failures, with a reason. A dismissed group is not retried automatically until it is seen again."""
    access.require_whole_tenant(caller)
    return await failures.place_order(services, caller, "dismiss", await read_json(request, ToDismiss))
