"""Who is calling, and what they may do and see. Routes, pages and use cases all decide it here.

A route declares the scope it needs and `check_route` enforces it before the route runs. A use case reads a record and
passes it through `job`, `schedule`, `failure`, ...: a record of another tenant or user looks as if it did not exist.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from packhorse.core.failures import FailureAction
from packhorse.core.models import FailedRun, Job
from packhorse.core.schedules import Revision, Schedule
from packhorse.define.validation import NOT_VALID, invalid, quote_short
from packhorse.errors import Forbidden, JobNotFound, OrderNotFound, ScheduleNotFound
from packhorse.store.base import FailureFilter, Filter

OPERATOR = "default"
"""The tenant of the operators: it owns what all tenants share, and what has no other known owner."""
LOCAL_USER = "local"

GRANTS = {
    "submit": frozenset({"submit", "cancel"}),
    "cancel": frozenset({"cancel"}),
    "read": frozenset({"read"}),
    "operate": frozenset({"operate", "submit", "cancel", "read"}),
    "admin": frozenset({"admin", "operate", "submit", "cancel", "read"}),
}
"""What each scope of a key allows. ``cancel`` is for end users, whose token is valid for one job."""


class Caller(Struct, frozen=True):
    tenant: str
    allowed: frozenset[str]
    key_id: str = ""
    client: str = ""
    """Whom it is counted for: a rotated key stands for the key it replaces, a token for all tokens of its key."""
    client_name: str = ""
    """What its jobs name the client by, for people. Nothing is counted for it: names are not unique."""
    token: str = ""
    """The id of the token, which is also counted by itself: one link must not use up what all of them have."""
    user: str | None = None
    """The only user it may act for; None: any of its tenant."""
    default_user: str | None = None
    """The user it submits for by default."""
    job_id: str | None = None
    """The only job it may see; None: any of its tenant."""
    app: str = ""
    """The only app it sees in this request, with these pipelines: it uses the API of one app. Empty: all apps."""
    pipelines: frozenset[str] = frozenset()
    address: str = ""
    session: str = ""
    """The id of the session, if a browser asks that has logged in."""

    @property
    def is_operator(self) -> bool:
        """Whether it may see what all tenants share."""
        return self.tenant == OPERATOR and self.user is None and "operate" in self.allowed

    def sees_pipeline(self, name: str) -> bool:
        return not self.app or name in self.pipelines

    def acting_for(self, user: str | None) -> str:
        """The user that is meant, if this caller may act for them. Raises InvalidInput."""
        found = user if user is not None else self.user or self.default_user
        if found is None:
            message = "This key can act for any user: name the user (user_id; commands: --user)"
            raise invalid(NOT_VALID, [{"field": "user_id", "message": message}])
        if self.user not in (None, found):
            message = f"This key acts for {quote_short(self.user)} only"
            raise invalid(NOT_VALID, [{"field": "user_id", "message": message}])
        return found


LOCAL = Caller(OPERATOR, GRANTS["admin"], default_user=LOCAL_USER)
"""Anybody on this machine, where no key is needed."""
NOBODY = Caller("", frozenset())
"""The caller of a route that needs no key."""


def permissions(scopes: Iterable[str]) -> frozenset[str]:
    return frozenset().union(*(GRANTS[scope] for scope in scopes))


UNMARKED = "nobody"
"""The scope of a route that declares none: nobody has it, so a forgotten declaration closes the route."""
ANY = "any"
"""The scope of a route that is open to every key and token."""


def check_route(caller: Caller, marks: Mapping[str, Any], path: Mapping[str, Any]) -> None:
    """Whether the caller may use a route with these marks. Raises Forbidden.

    ``scope``: what the key must allow. ``shared``: it is about all tenants. ``tokens``: it is what an end user
    for a job needs.
    """
    needed = marks.get("scope", UNMARKED)
    if needed is None or needed == ANY:
        return
    require(caller, needed)
    if caller.job_id is not None and "job_id" not in path:
        raise Forbidden(f"This token is for job {caller.job_id} only.", scope=needed)
    if needed == "admin" and caller.user is not None:
        raise Forbidden(f"A key for one user cannot have the scope {needed}.", scope=needed)
    if caller.job_id is not None and not marks.get("tokens"):
        raise Forbidden("A token shows the progress and the result of its job, and nothing else.", scope=needed)
    if marks.get("shared") and (caller.tenant != OPERATOR or caller.user is not None):
        message = f"All tenants share this; it needs a key of the tenant `{OPERATOR}` that is not bound to a user."
        raise Forbidden(message, scope=needed)


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
    if caller.job_id not in (None, found.id) or not caller.sees_pipeline(found.plan.pipeline):
        raise JobNotFound(job_id=job_id)
    return found


def jobs_filters(caller: Caller, wanted: Filter) -> list[Filter]:
    """The filter narrowed to what the caller may see: one per pipeline if they see only one app.

    Empty if it names a user that the caller cannot act for, or a pipeline of another app.
    """
    if caller.user is not None and wanted.user not in (None, caller.user):
        return []
    found = replace(wanted, tenant=caller.tenant, user=caller.user or wanted.user)
    if wanted.pipeline is not None:
        return [found] if caller.sees_pipeline(wanted.pipeline) else []
    return [replace(found, pipeline=each) for each in sorted(caller.pipelines)] if caller.app else [found]


def schedule(caller: Caller, found: Schedule | None, schedule_id: str) -> Schedule:
    """Raises ScheduleNotFound."""
    if found is None or not may_see_terms(caller, found):
        raise ScheduleNotFound(schedule_id=schedule_id[:100])
    return found


def may_see_terms(caller: Caller, found: Schedule | Revision) -> bool:
    """Whether a schedule, or one version of it, acts for a user whom the caller may see."""
    return caller.user in (None, found.terms.user) and caller.sees_pipeline(found.terms.pipeline)


def may_see_failure(caller: Caller, found: FailedRun | None) -> bool:
    return found is not None and may_see(caller, found.tenant, found.user) and caller.sees_pipeline(found.pipeline)


def failure_filters(caller: Caller, wanted: FailureFilter) -> list[FailureFilter]:
    """As `jobs_filters`."""
    if caller.user is not None and wanted.user not in (None, caller.user):
        return []
    found = replace(wanted, tenant=caller.tenant, user=caller.user or wanted.user)
    if wanted.pipeline is not None:
        return [found] if caller.sees_pipeline(wanted.pipeline) else []
    return [replace(found, pipeline=each) for each in sorted(caller.pipelines)] if caller.app else [found]


def order(caller: Caller, found: FailureAction | None, order_id: str) -> FailureAction:
    """Raises OrderNotFound."""
    require_whole_tenant(caller)
    if found is None or found.tenant != caller.tenant:
        raise OrderNotFound(order_id=order_id[:100])
    return found
