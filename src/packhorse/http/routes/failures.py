"""Failures: listed one by one and in groups, and retried or dismissed, one or many."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator
from datetime import datetime
from typing import Annotated, Any

from litestar import Request, get, post
from litestar.datastructures import State
from litestar.di import NamedDependency
from litestar.params import FromPath, FromQuery, QueryParameter
from msgspec.structs import replace

from packhorse.auth.caller import LOCAL_USER, Caller
from packhorse.core.failures import HOUR, MAX_TIMES, TREND_HOURS
from packhorse.core.models import FailedRun, FailureStatus, Settled
from packhorse.errors import (
    FailureGroupNotFound,
    FailureNotFound,
    Forbidden,
    OrderNotFound,
    TooLarge,
    TooSlow,
    UnsupportedMedia,
)
from packhorse.http.openapi import refusing, taking
from packhorse.http.requests.failure_selection import Chosen, ToDismiss, check_reason, chosen
from packhorse.http.requests.json_body import asked
from packhorse.http.routes.jobs import seconds_of
from packhorse.http.services import Tools
from packhorse.schemas.failures import (
    FailureDocument,
    FailureGroupDocument,
    FailureGroupsPage,
    FailuresPage,
    failure_to_json,
    group_to_json,
    trend_to_json,
)
from packhorse.schemas.orders import (
    Kind,
    Order,
    OrderDocument,
    OrderedDocument,
    OrdersPage,
    order_from_errand,
    order_to_errand,
    order_to_json,
)
from packhorse.store.base import FailureFilter, FailureGroup
from packhorse.store.collections import errands
from packhorse.store.collections import failures as collection

FIRST = 10
"""Failures that are shown of those that an order is about."""
COUNTED = 10_000
"""Counted no further than this."""
PAGE = 1000

Cursor = Annotated[
    str | None,
    QueryParameter(pattern=r"^[0-9a-f]{12}-[0-9a-f-]{1,80}$", description="What an earlier page gave as `next`."),
]
Limit = Annotated[int, QueryParameter(ge=1, le=200)]
Dismissed = Annotated[bool | None, QueryParameter(description="Only dismissed groups, or only others.")]
Trend = Annotated[bool, QueryParameter(description="Also tell how many failures there were in each of the last hours.")]
ORDERING = (FailureNotFound, FailureGroupNotFound, TooLarge, UnsupportedMedia, TooSlow)


@get("/failures", scope="read", responses=refusing())
async def list_failures(
    tools: NamedDependency[Tools],
    caller: NamedDependency[Caller],
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
    limit: Limit = 50,
) -> FailuresPage:
    """Runs that failed for good, newest first. `next` is the cursor of the next page."""
    if caller.user is not None and user_id not in (None, caller.user):
        return {"items": [], "next": None}
    wanted = FailureFilter(
        caller.tenant,
        fingerprint,
        job_id,
        caller.user or user_id,
        pipeline,
        error_code,
        status,
        schedule_id,
        seconds_of(since),
        seconds_of(until),
    )
    found = await tools.store.failures(wanted, before=cursor, limit=limit + 1)
    following = found[limit - 1].id if len(found) > limit else None
    return {"items": [failure_to_json(each) for each in found[:limit]], "next": following}


@get("/failures/groups", scope="read", responses=refusing())
async def list_groups(
    tools: NamedDependency[Tools],
    caller: NamedDependency[Caller],
    dismissed: Dismissed = None,
    trend: Trend = False,
    cursor: Cursor = None,
    limit: Limit = 50,
) -> FailureGroupsPage:
    """Failures by what went wrong, the last seen first: how many, since when, how many users they hit."""
    _check_whole(caller)
    found = await tools.store.failure_groups(caller.tenant, before=cursor, limit=limit + 1)
    following = found[limit - 1].seen if len(found) > limit else None
    seen = [each for each in found[:limit] if dismissed in (None, each.dismissal is not None)]
    return {"items": await _shown(tools, seen, with_trend=trend), "next": following}


@get("/failures/groups/{fingerprint:str}", scope="read", responses=refusing(FailureGroupNotFound))
async def get_group(
    tools: NamedDependency[Tools], caller: NamedDependency[Caller], fingerprint: FromPath[str], trend: Trend = False
) -> FailureGroupDocument:
    """One group."""
    _check_whole(caller)
    group = None if "\0" in fingerprint else await collection.get_group(tools.store, caller.tenant, fingerprint)
    if group is None:
        raise FailureGroupNotFound(fingerprint=fingerprint[:100])
    [told] = await _shown(tools, [group], with_trend=trend)
    return told


@get("/failures/orders", scope="read", responses=refusing())
async def list_orders(
    tools: NamedDependency[Tools], caller: NamedDependency[Caller], cursor: Cursor = None, limit: Limit = 50
) -> OrdersPage:
    """What was ordered to be retried or dismissed, newest first, and how far it is."""
    _check_whole(caller)
    found = await errands.list_orders(tools.store, caller.tenant, before=cursor, limit=limit + 1)
    following = found[limit - 1].id if len(found) > limit else None
    return {"items": [order_to_json(each.id, order_from_errand(each)) for each in found[:limit]], "next": following}


@get("/failures/orders/{order_id:str}", scope="read", responses=refusing(OrderNotFound))
async def get_order(
    tools: NamedDependency[Tools], caller: NamedDependency[Caller], order_id: FromPath[str]
) -> OrderDocument:
    """One order: how many are done, how many were left as they are, and why."""
    _check_whole(caller)
    errand = None if "\0" in order_id else await errands.get_order(tools.store, order_id)
    if errand is None or errand.tenant != caller.tenant:
        raise OrderNotFound(order_id=order_id[:100])
    return order_to_json(errand.id, order_from_errand(errand))


@get("/failures/{failure_id:str}", scope="read", responses=refusing(FailureNotFound))
async def get_failure(
    tools: NamedDependency[Tools], caller: NamedDependency[Caller], failure_id: FromPath[str]
) -> FailureDocument:
    """One failure."""
    [failure] = await _failures(tools, caller, [failure_id])
    return failure_to_json(failure)


@post(
    "/failures/retry",
    scope="operate",
    status_code=202,
    operation_class=taking(Chosen, required=True),
    responses=refusing(*ORDERING),
)
async def retry(
    request: Request[Any, Any, State], tools: NamedDependency[Tools], caller: NamedDependency[Caller]
) -> OrderedDocument:
    """Have open failures retried: some by their ids, a group, or what a filter finds.

    Workers do it, `pace` of them a second; the order in the answer says how far they are. With `dry_run` nothing is
    ordered: the answer says how many it would be about, and shows the newest of them.
    """
    _check_whole(caller)
    given = await asked(request, tools.settings, Chosen)
    return await _ordered(tools, caller, "retry", given)


@post(
    "/failures/dismiss",
    scope="operate",
    status_code=202,
    operation_class=taking(ToDismiss, required=True),
    responses=refusing(*ORDERING),
)
async def dismiss(
    request: Request[Any, Any, State], tools: NamedDependency[Tools], caller: NamedDependency[Caller]
) -> OrderedDocument:
    """Dismiss open failures, with a reason. A group that is dismissed is revived no more, until it is seen again."""
    _check_whole(caller)
    given = await asked(request, tools.settings, ToDismiss)
    check_reason(given.reason)
    return await _ordered(tools, caller, "dismiss", given)


ROUTES = [list_failures, list_groups, get_group, list_orders, get_order, get_failure, retry, dismiss]


async def _shown(tools: Tools, groups: list[FailureGroup], *, with_trend: bool) -> list[FailureGroupDocument]:
    told = [group_to_json(each) for each in groups]
    if not with_trend or not groups:
        return told
    now, tenant = tools.store.now(), groups[0].tenant
    names = [each.fingerprint for each in groups]
    found = await collection.list_times(tools.store, tenant, names, since=now - TREND_HOURS * HOUR, limit=MAX_TIMES)
    for each, times in zip(told, found, strict=True):
        each["trend"] = trend_to_json(times, now)
    return told


async def _ordered(tools: Tools, caller: Caller, kind: Kind, given: Chosen) -> OrderedDocument:
    by, now = caller.key_id or LOCAL_USER, tools.store.now()
    ids, wanted = chosen(given, caller.tenant, now)
    group = None
    if ids:
        open = [each for each in await _failures(tools, caller, ids) if each.status is FailureStatus.OPEN]
        count = len(open)
    else:
        assert wanted is not None
        if wanted.fingerprint is not None:
            group = await collection.get_group(tools.store, caller.tenant, wanted.fingerprint)
            if group is None:
                raise FailureGroupNotFound(fingerprint=wanted.fingerprint[:100])
        open, count = await _counted(tools, wanted)
    answer: OrderedDocument = {
        "count": count,
        "is_at_least": count >= COUNTED,
        "first": [failure_to_json(each) for each in open[:FIRST]],
        "order": None,
    }
    if given.dry_run:
        return answer
    reason = given.reason if isinstance(given, ToDismiss) else ""
    if kind == "dismiss" and group is not None and given.is_whole_group():
        await collection.dismiss_group(tools.store, caller.tenant, group.fingerprint, Settled(now, by, reason))
    order = Order(kind, now, by, reason, tuple(ids), wanted, given.pace, count)
    errand = order_to_errand(order, caller.tenant, secrets.token_hex(4))
    await errands.add_errand(tools.store, errand)
    event = "failures.retried" if kind == "retry" else "failures.dismissed"
    tools.audit.tell(event, caller, order_id=errand.id, count=count, reason=reason)
    return {**answer, "order": order_to_json(errand.id, order)}


async def _counted(tools: Tools, wanted: FailureFilter) -> tuple[list[FailedRun], int]:
    """The first few open ones that it finds, and how many there are in all, counted up to a limit."""
    first: list[FailedRun] = []
    count = 0
    async for failure in _each(tools, replace(wanted, status=FailureStatus.OPEN)):
        first += [failure] if count < FIRST else []
        count += 1
        if count >= COUNTED:
            break
    return first, count


async def _each(tools: Tools, wanted: FailureFilter) -> AsyncIterator[FailedRun]:
    before: str | None = None
    while page := await tools.store.failures(wanted, before=before, limit=PAGE):
        for failure in page:
            yield failure
        if len(page) < PAGE:
            return
        before = page[-1].id


async def _failures(tools: Tools, caller: Caller, ids: list[str]) -> list[FailedRun]:
    """A foreign one and a missing one look the same."""
    found = await collection.get_failures(tools.store, [id for id in ids if "\0" not in id])
    known = {
        each.id: each
        for each in found
        if each is not None and each.tenant == caller.tenant and caller.user in (None, each.user)
    }
    for id in ids:
        if id not in known:
            raise FailureNotFound(failure_id=id[:100])
    return [known[id] for id in ids]


def _check_whole(caller: Caller) -> None:
    if caller.user is not None:
        raise Forbidden("A key for one user cannot see or settle what has hit others.", scope="operate")
