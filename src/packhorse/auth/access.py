"""What a caller may do and see. Routes, pages and use cases all decide it here.

A route declares the scope it needs and `check_route` enforces it before the route runs. A use case reads a record and
passes it through `job`, `schedule`, `failure`, ...: a record of another tenant or user looks as if it did not exist.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from packhorse.auth.caller import OPERATOR, Caller
from packhorse.core.failures import FailureAction
from packhorse.core.models import FailedRun, Job
from packhorse.core.schedules import Revision, Schedule
from packhorse.errors import Forbidden, JobNotFound, OrderNotFound, ScheduleNotFound
from packhorse.store.base import Filter

UNMARKED = "nobody"
"""The scope of a route that declares none: nobody has it, so a forgotten declaration closes the route."""
ANY = "any"
"""The scope of a route that is open to every key and token."""


def check_route(caller: Caller, marks: Mapping[str, Any], path: Mapping[str, Any]) -> None:
    """Whether the caller may use a route with these marks (``scope``, ``shared``). Raises Forbidden."""
    needed = marks.get("scope", UNMARKED)
    if needed is None or needed == ANY:
        return
    require(caller, needed)
    if caller.job_id is not None and "job_id" not in path:
        raise Forbidden(f"This token is for job {caller.job_id} only.", scope=needed)
    if needed == "admin" and caller.user is not None:
        raise Forbidden(f"A key for one user cannot have the scope {needed}.", scope=needed)
    if marks.get("shared") and caller.tenant != OPERATOR:
        raise Forbidden(f"All tenants share this; it needs a key of the tenant `{OPERATOR}`.", scope=needed)


def require(caller: Caller, scope: str) -> None:
    if scope not in caller.allowed:
        raise Forbidden(scope=scope)


def require_whole_tenant(caller: Caller) -> None:
    """For what adds up all users of a tenant: groups of failures, and bulk actions on them."""
    if caller.user is not None:
        raise Forbidden("A key for one user cannot see or settle what has hit others.", scope="operate")


def may_see(caller: Caller, tenant: str, user: str) -> bool:
    return tenant == caller.tenant and caller.user in (None, user)


def job(caller: Caller, found: Job | None, job_id: str) -> Job:
    """A job whose purge has begun counts as deleted: its files may be gone already. Raises JobNotFound."""
    if found is None or found.is_purging or not may_see(caller, found.tenant, found.user):
        raise JobNotFound(job_id=job_id)
    if caller.job_id not in (None, found.id):
        raise JobNotFound(job_id=job_id)
    return found


def jobs_filter(caller: Caller, wanted: Filter) -> Filter | None:
    """The filter narrowed to what the caller may see; None if it names a user for whom the caller does not act."""
    if caller.user is not None and wanted.user not in (None, caller.user):
        return None
    return Filter(
        caller.tenant,
        caller.user or wanted.user,
        wanted.status,
        wanted.pipeline,
        wanted.created_from,
        wanted.created_until,
    )


def schedule(caller: Caller, found: Schedule | None, schedule_id: str) -> Schedule:
    """Raises ScheduleNotFound."""
    if found is None or not may_see_terms(caller, found):
        raise ScheduleNotFound(schedule_id=schedule_id[:100])
    return found


def may_see_terms(caller: Caller, found: Schedule | Revision) -> bool:
    """Whether a schedule, or one version of it, acts for a user whom the caller may see."""
    return caller.user in (None, found.terms.user)


def may_see_failure(caller: Caller, found: FailedRun | None) -> bool:
    return found is not None and may_see(caller, found.tenant, found.user)


def order(caller: Caller, found: FailureAction | None, order_id: str) -> FailureAction:
    """Raises OrderNotFound."""
    require_whole_tenant(caller)
    if found is None or found.tenant != caller.tenant:
        raise OrderNotFound(order_id=order_id[:100])
    return found
