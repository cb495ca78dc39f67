"""Failures: listed one by one and in groups, and retried or dismissed, one or many."""

from __future__ import annotations

import math
import secrets
from collections.abc import AsyncIterator
from typing import Annotated

from msgspec import Meta, Struct
from msgspec.structs import replace

from packhorse.auth import access
from packhorse.auth.access import LOCAL_USER, Caller
from packhorse.core.failures import HOUR, MAX_TIMES, TREND_HOURS
from packhorse.core.models import FailedRun, FailureStatus, Settled
from packhorse.errors import FailureGroupNotFound, FailureNotFound
from packhorse.jobs.services import LONGEST_REASON, Services, check_reason
from packhorse.jobs.view import check_selection, selection_errors, time_from
from packhorse.schemas.failures import (
    FailureDocument,
    FailureGroupDocument,
    FailureGroupsPage,
    FailuresPage,
    Kind,
    Order,
    OrderDocument,
    OrderedDocument,
    OrdersPage,
    failure_to_json,
    group_to_json,
    order_from_action,
    order_to_action,
    order_to_json,
    trend_to_json,
)
from packhorse.store.base import FailureFilter, FailureGroup
from packhorse.store.collections import failures as collection
from packhorse.store.collections import failures as failure_records

FIRST = 10
"""Failures that are shown of those that an order is about."""
COUNTED = 10_000
"""Counted no further than this."""
PAGE = 1000
MOST_IDS = 1000
FASTEST = 1000.0
"""Failures per second that a pace may ask for."""


class Chosen(Struct):
    """Which open failures are meant: ``ids``, or all that have what the rest names, and at least one of it."""

    ids: list[str] = []
    """Up to 1000."""
    fingerprint: str | None = None
    """Of a group."""
    pipeline: str | None = None
    error_code: str | None = None
    user_id: str | None = None
    schedule_id: str | None = None
    since: str | None = None
    """A time in ISO 8601, as `until`."""
    until: str | None = None
    dry_run: bool = False
    """Only tell how many they are, and which are the newest."""
    pace: float | None = None
    """How many a second at most."""

    def is_whole_group(self) -> bool:
        named = (self.pipeline, self.error_code, self.user_id, self.schedule_id, self.since, self.until)
        return self.fingerprint is not None and not any(named)


class ToDismiss(Chosen):
    """Which failures are dismissed, and why."""

    reason: Annotated[str, Meta(extra_json_schema={"maxLength": LONGEST_REASON})] = ""


def select_failures(given: Chosen, tenant: str, now: float) -> tuple[list[str], FailureFilter | None]:
    """Ids, or a filter; never later failures than there are now. Raises InvalidInput."""
    names = ("fingerprint", "pipeline", "error_code", "user_id", "schedule_id")
    texts = {name: getattr(given, name) for name in names}
    errors = selection_errors(given.ids, MOST_IDS, texts)
    if given.pace is not None and not (math.isfinite(given.pace) and 0.001 <= given.pace <= FASTEST):
        errors.append({"field": "pace", "message": f"It must be from 0.001 to {FASTEST:.0f} a second"})
    since, until = time_from(given.since, "since", errors), time_from(given.until, "until", errors)
    is_filter = any(each is not None for each in (*texts.values(), since, until))
    check_selection(given.ids, errors, is_filter=is_filter, choices="ids, or a filter")
    if given.ids:
        return list(dict.fromkeys(given.ids)), None
    return [], FailureFilter(
        tenant,
        given.fingerprint,
        None,
        given.user_id,
        given.pipeline,
        given.error_code,
        None,
        given.schedule_id,
        since,
        now if until is None else min(now, until),
    )


async def list_failures(
    services: Services, caller: Caller, wanted: FailureFilter, *, cursor: str | None = None, limit: int = 50
) -> FailuresPage:
    """Runs that failed for good, newest first."""
    if caller.user is not None and wanted.user not in (None, caller.user):
        return {"items": [], "next": None}
    mine = replace(wanted, tenant=caller.tenant, user=caller.user or wanted.user)
    found = await services.store.failures(mine, before=cursor, limit=limit + 1)
    following = found[limit - 1].id if len(found) > limit else None
    return {"items": [failure_to_json(each) for each in found[:limit]], "next": following}


async def list_groups(
    services: Services,
    caller: Caller,
    *,
    dismissed: bool | None = None,
    trend: bool = False,
    cursor: str | None = None,
    limit: int = 50,
) -> FailureGroupsPage:
    """Failures by what went wrong, the last seen first."""
    access.require_whole_tenant(caller)
    found = await services.store.failure_groups(caller.tenant, before=cursor, limit=limit + 1)
    following = found[limit - 1].seen if len(found) > limit else None
    seen = [each for each in found[:limit] if dismissed in (None, each.dismissal is not None)]
    return {"items": await _shown(services, seen, with_trend=trend), "next": following}


async def group(services: Services, caller: Caller, fingerprint: str, *, trend: bool = False) -> FailureGroupDocument:
    """Raises FailureGroupNotFound."""
    access.require_whole_tenant(caller)
    found = None if "\0" in fingerprint else await collection.get_group(services.store, caller.tenant, fingerprint)
    if found is None:
        raise FailureGroupNotFound(fingerprint=fingerprint[:100])
    [told] = await _shown(services, [found], with_trend=trend)
    return told


async def list_orders(services: Services, caller: Caller, *, cursor: str | None = None, limit: int = 50) -> OrdersPage:
    access.require_whole_tenant(caller)
    found = await failure_records.list_orders(services.store, caller.tenant, before=cursor, limit=limit + 1)
    following = found[limit - 1].id if len(found) > limit else None
    return {"items": [order_to_json(each.id, order_from_action(each)) for each in found[:limit]], "next": following}


async def order(services: Services, caller: Caller, order_id: str) -> OrderDocument:
    """Raises OrderNotFound."""
    found = access.order(
        caller, None if "\0" in order_id else await failure_records.get_order(services.store, order_id), order_id
    )
    return order_to_json(found.id, order_from_action(found))


async def failure(services: Services, caller: Caller, failure_id: str) -> FailureDocument:
    """Raises FailureNotFound."""
    [found] = await _failures(services, caller, [failure_id])
    return failure_to_json(found)


async def _shown(services: Services, groups: list[FailureGroup], *, with_trend: bool) -> list[FailureGroupDocument]:
    told = [group_to_json(each) for each in groups]
    if not with_trend or not groups:
        return told
    now, tenant = services.store.now(), groups[0].tenant
    names = [each.fingerprint for each in groups]
    found = await collection.list_times(services.store, tenant, names, since=now - TREND_HOURS * HOUR, limit=MAX_TIMES)
    for each, times in zip(told, found, strict=True):
        each["trend"] = trend_to_json(times, now)
    return told


async def place_order(services: Services, caller: Caller, kind: Kind, given: Chosen) -> OrderedDocument:
    """Have open failures retried or dismissed; with ``dry_run``, only say how many it would be about.

    Raises InvalidInput, FailureNotFound and FailureGroupNotFound.
    """
    access.require_whole_tenant(caller)
    if isinstance(given, ToDismiss):
        check_reason(given.reason, if_missing="Say why they are dismissed")
    by, now = caller.key_id or LOCAL_USER, services.store.now()
    ids, wanted = select_failures(given, caller.tenant, now)
    group = None
    if ids:
        open = [each for each in await _failures(services, caller, ids) if each.status is FailureStatus.OPEN]
        count = len(open)
    else:
        assert wanted is not None
        if wanted.fingerprint is not None:
            group = await collection.get_group(services.store, caller.tenant, wanted.fingerprint)
            if group is None:
                raise FailureGroupNotFound(fingerprint=wanted.fingerprint[:100])
        open, count = await _counted(services, wanted)
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
        await collection.dismiss_group(services.store, caller.tenant, group.fingerprint, Settled(now, by, reason))
    order = Order(kind, now, by, reason, tuple(ids), wanted, given.pace, count)
    action = order_to_action(order, caller.tenant, secrets.token_hex(4))
    await failure_records.add_action(services.store, action)
    event = "failures.retried" if kind == "retry" else "failures.dismissed"
    services.audit.tell(event, caller, order_id=action.id, count=count, reason=reason)
    return {**answer, "order": order_to_json(action.id, order)}


async def _counted(services: Services, wanted: FailureFilter) -> tuple[list[FailedRun], int]:
    """The first few open ones that it finds, and how many there are in all, counted up to a limit."""
    first: list[FailedRun] = []
    count = 0
    async for failure in _each(services, replace(wanted, status=FailureStatus.OPEN)):
        first += [failure] if count < FIRST else []
        count += 1
        if count >= COUNTED:
            break
    return first, count


async def _each(services: Services, wanted: FailureFilter) -> AsyncIterator[FailedRun]:
    before: str | None = None
    while page := await services.store.failures(wanted, before=before, limit=PAGE):
        for failure in page:
            yield failure
        if len(page) < PAGE:
            return
        before = page[-1].id


async def _failures(services: Services, caller: Caller, ids: list[str]) -> list[FailedRun]:
    """Raises FailureNotFound, also for one of somebody else."""
    found = await collection.get_failures(services.store, [id for id in ids if "\0" not in id])
    known = {each.id: each for each in found if each is not None and access.may_see_failure(caller, each)}
    for id in ids:
        if id not in known:
            raise FailureNotFound(failure_id=id[:100])
    return [known[id] for id in ids]
