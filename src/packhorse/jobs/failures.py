"""Failures: listed one by one and in groups, and retried or dismissed, one or many."""

from __future__ import annotations

import math
import secrets
from itertools import chain
from typing import Annotated

from msgspec import Meta, Struct
from msgspec.structs import replace

from packhorse.auth import access
from packhorse.auth.access import LOCAL_USER, Caller
from packhorse.core.failures import HOUR, MAX_TIMES, TREND_HOURS, FailureAction
from packhorse.core.models import FailedRun, FailureStatus, Settled
from packhorse.define.validation import NOT_VALID, invalid, list_some
from packhorse.errors import FailureGroupNotFound, FailureNotFound
from packhorse.jobs.services import LONGEST_REASON, Services, check_reason
from packhorse.jobs.view import check_selection, selection_errors, time_from
from packhorse.schemas import failures as schemas
from packhorse.store.base import FailureFilter, FailureGroup
from packhorse.store.collections import failures as records

FIRST = 10
"""Failures of an order that are shown."""
COUNTED = 10_000
"""Failures that are counted at most."""
PAGE = 1000
MOST_IDS = 1000
FASTEST = 1000.0
"""Failures per second that a pace may have."""


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
    check_selection(given.ids, errors, is_filter=is_filter, choices="ids or a filter")
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
) -> schemas.FailuresPage:
    """Failed runs, newest first."""
    filters = access.failure_filters(caller, wanted)
    pages = [await services.store.failures(each, before=cursor, limit=limit + 1) for each in filters]
    found = sorted(chain(*pages), key=lambda failure: failure.id, reverse=True)
    following = found[limit - 1].id if len(found) > limit else None
    return {"items": [schemas.failure_to_json(each) for each in found[:limit]], "next": following}


async def list_groups(
    services: Services,
    caller: Caller,
    *,
    dismissed: bool | None = None,
    trend: bool = False,
    cursor: str | None = None,
    limit: int = 50,
) -> schemas.FailureGroupsPage:
    """Failures grouped by their cause, the last seen first."""
    access.require_whole_tenant(caller)
    found = await services.store.failure_groups(caller.tenant, before=cursor, limit=limit + 1)
    following = found[limit - 1].seen if len(found) > limit else None
    mine = [each for each in found[:limit] if caller.sees_pipeline(each.pipeline)]
    seen = [each for each in mine if dismissed in (None, each.dismissal is not None)]
    return {"items": await _groups_to_json(services, seen, with_trend=trend), "next": following}


async def group(
    services: Services, caller: Caller, fingerprint: str, *, trend: bool = False
) -> schemas.FailureGroupDocument:
    """Raises FailureGroupNotFound."""
    access.require_whole_tenant(caller)
    found = await _group(services, caller, fingerprint)
    [document] = await _groups_to_json(services, [found], with_trend=trend)
    return document


async def _group(services: Services, caller: Caller, fingerprint: str) -> FailureGroup:
    """Raises FailureGroupNotFound, also for one of another app."""
    found = None if "\0" in fingerprint else await records.get_group(services.store, caller.tenant, fingerprint)
    if found is None or not caller.sees_pipeline(found.pipeline):
        raise FailureGroupNotFound(fingerprint=fingerprint[:100])
    return found


async def list_orders(
    services: Services, caller: Caller, *, cursor: str | None = None, limit: int = 50
) -> schemas.OrdersPage:
    access.require_whole_tenant(caller)
    found = await records.list_orders(services.store, caller.tenant, before=cursor, limit=limit + 1)
    following = found[limit - 1].id if len(found) > limit else None
    return {"items": [_order_to_json(each) for each in found[:limit]], "next": following}


async def order(services: Services, caller: Caller, order_id: str) -> schemas.OrderDocument:
    """Raises OrderNotFound."""
    found = None if "\0" in order_id else await records.get_order(services.store, order_id)
    return _order_to_json(access.order(caller, found, order_id))


def _order_to_json(action: FailureAction) -> schemas.OrderDocument:
    return schemas.order_to_json(action.id, schemas.order_from_action(action))


async def failure(services: Services, caller: Caller, failure_id: str) -> schemas.FailureDocument:
    """Raises FailureNotFound."""
    [found] = await _failures(services, caller, [failure_id])
    return schemas.failure_to_json(found)


async def _groups_to_json(
    services: Services, groups: list[FailureGroup], *, with_trend: bool
) -> list[schemas.FailureGroupDocument]:
    documents = [schemas.group_to_json(each) for each in groups]
    if not with_trend or not groups:
        return documents
    now, tenant = services.store.now(), groups[0].tenant
    names = [each.fingerprint for each in groups]
    found = await records.list_times(services.store, tenant, names, since=now - TREND_HOURS * HOUR, limit=MAX_TIMES)
    for each, times in zip(documents, found, strict=True):
        each["trend"] = schemas.trend_to_json(times, now)
    return documents


async def place_order(services: Services, caller: Caller, kind: schemas.Kind, given: Chosen) -> schemas.OrderedDocument:
    """Order the retry or dismissal of open failures; with ``dry_run``, only count them.

    Raises InvalidInput, FailureNotFound and FailureGroupNotFound.
    """
    access.require_whole_tenant(caller)
    if isinstance(given, ToDismiss):
        check_reason(given.reason, if_missing="Give a reason for dismissing these failures")
    by, now = caller.key_id or LOCAL_USER, services.store.now()
    ids, wanted = select_failures(given, caller.tenant, now)
    group = None
    if ids:
        open = [each for each in await _failures(services, caller, ids) if each.status is FailureStatus.OPEN]
        count = len(open)
    else:
        assert wanted is not None
        if wanted.fingerprint is not None:
            group = await _group(services, caller, wanted.fingerprint)
        wanted = _one_filter(caller, wanted, group)
        open, count = await _count(services, wanted)
    answer: schemas.OrderedDocument = {
        "count": count,
        "is_at_least": count >= COUNTED,
        "first": [schemas.failure_to_json(each) for each in open[:FIRST]],
        "order": None,
    }
    if given.dry_run:
        return answer
    reason = given.reason if isinstance(given, ToDismiss) else ""
    if kind == "dismiss" and group is not None and given.is_whole_group():
        await records.dismiss_group(services.store, caller.tenant, group.fingerprint, Settled(now, by, reason))
    order = schemas.Order(kind, now, by, reason, tuple(ids), wanted, given.pace, count)
    action = schemas.order_to_action(order, caller.tenant, secrets.token_hex(4))
    await records.add_action(services.store, action)
    event = "failures.retried" if kind == "retry" else "failures.dismissed"
    services.audit.tell(event, caller, order_id=action.id, count=count, reason=reason)
    return {**answer, "order": schemas.order_to_json(action.id, order)}


def _one_filter(caller: Caller, wanted: FailureFilter, group: FailureGroup | None) -> FailureFilter:
    """Narrowed to the app of the caller. Raises InvalidInput if that takes a pipeline, or the one named is not its."""
    filters = access.failure_filters(caller, wanted)
    if len(filters) != 1 and group is None:
        names = list_some(sorted(caller.pipelines))
        message = f"Required. Pipelines of this app: {names}"
        raise invalid(NOT_VALID, [{"field": "pipeline", "message": message}])
    return filters[0] if len(filters) == 1 else replace(wanted, tenant=caller.tenant)


async def _count(services: Services, wanted: FailureFilter) -> tuple[list[FailedRun], int]:
    """The first few open ones, and how many there are, counted up to a limit."""
    wanted = replace(wanted, status=FailureStatus.OPEN)
    page = await services.store.failures(wanted, limit=PAGE)
    first, count = page[:FIRST], len(page)
    while len(page) == PAGE and count < COUNTED:
        page = await services.store.failures(wanted, before=page[-1].id, limit=PAGE)
        count += len(page)
    return first, count


async def _failures(services: Services, caller: Caller, ids: list[str]) -> list[FailedRun]:
    """Raises FailureNotFound, also for one of somebody else."""
    found = await records.get_failures(services.store, [id for id in ids if "\0" not in id])
    known = {each.id: each for each in found if each is not None and access.may_see_failure(caller, each)}
    for id in ids:
        if id not in known:
            raise FailureNotFound(failure_id=id[:100])
    return [known[id] for id in ids]
