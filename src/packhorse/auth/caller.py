"""Who asks: on whose behalf a request is made and what it may do, known before any route is."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from litestar import Request
from litestar.di import NamedDependency
from msgspec import Struct

from packhorse.core.models import Job
from packhorse.define.validation import NOT_VALID, invalid, quote_short
from packhorse.errors import Forbidden, JobNotFound

OPERATOR = "default"
"""The tenant of those who run the deployment: of what all tenants share, and of what nobody else is known to own."""
TENANT = OPERATOR
"""Whose jobs are served where nobody needs a key."""
LOCAL_USER = "local"

GRANTS = {
    "submit": frozenset({"submit", "cancel"}),
    "cancel": frozenset({"cancel"}),
    "read": frozenset({"read"}),
    "operate": frozenset({"operate", "submit", "cancel", "read"}),
    "admin": frozenset({"admin", "operate", "submit", "cancel", "read"}),
}
"""What each scope of a key allows. ``cancel`` is for the person who waits, whose token is good for one job."""


class Caller(Struct, frozen=True):
    tenant: str
    allowed: frozenset[str]
    key_id: str = ""
    client: str = ""
    """Whom it is counted for: a rotated key, and a token, stand for the key they were made of."""
    user: str | None = None
    """The only user it may act for; None: any of its tenant."""
    default_user: str | None = None
    """For whom it submits if it does not say."""
    job_id: str | None = None
    """The only job it may see; None: any of its tenant."""
    address: str = ""
    session: str = ""
    """The id of the session, if a browser asks that has logged in."""

    @property
    def is_operator(self) -> bool:
        """Whether it may see what all tenants share."""
        return self.tenant == OPERATOR and "operate" in self.allowed

    def check(self, job: Job | None, job_id: str) -> Job:
        """The job, if this caller may know of it. A foreign one and a missing one look the same."""
        if job is None or job.is_purging or not self.may_see(job):
            raise JobNotFound(job_id=job_id)
        return job

    def may_see(self, job: Job) -> bool:
        is_own = job.tenant == self.tenant and self.user in (None, job.user)
        return is_own and self.job_id in (None, job.id)

    def acting_for(self, user: str | None) -> str:
        """The user that is meant, if this caller may act for them. Raises InvalidInput."""
        found = user if user is not None else self.user or self.default_user
        if found is None:
            raise invalid(
                NOT_VALID,
                [
                    {
                        "field": "user_id",
                        "message": "For whom? This key may act for any user: say which (commands: --user)",
                    }
                ],
            )
        if self.user not in (None, found):
            said = f"This key acts for {quote_short(self.user)} only"
            raise invalid(NOT_VALID, [{"field": "user_id", "message": said}])
        return found


UNMARKED = "nobody"
"""What a route that says nothing needs, so that one which was forgotten is closed."""

ANY = "any"
"""What a route needs that tells whoever has a key, or a token, about just that."""

LOCAL = Caller(TENANT, GRANTS["admin"], default_user=LOCAL_USER)
"""Whoever is on this machine, where no key is asked for."""
NOBODY = Caller("", frozenset())
"""Who asks for what needs no key."""


def granted(scopes: Iterable[str]) -> frozenset[str]:
    return frozenset().union(*(GRANTS[scope] for scope in scopes))


def caller_of(request: Request[Any, Any, Any], tools: NamedDependency[Any]) -> Caller:  # noqa: ARG001
    """Behind the tools though it does not need them: what is provided side by side costs a group of tasks, 60 us."""
    found: Caller = request.scope["state"]["caller"]
    return found


def check(caller: Caller, marks: Mapping[str, Any], path: Mapping[str, Any]) -> None:
    """What a route is marked with, the caller must be allowed, and a token only about its job."""
    needed = marks.get("scope", UNMARKED)
    if needed is None or needed == ANY:
        return
    if needed not in caller.allowed:
        raise Forbidden(scope=needed)
    if caller.job_id is not None and "job_id" not in path:
        raise Forbidden(f"This token is for job {caller.job_id} only.", scope=needed)
    if needed == "admin" and caller.user is not None:
        raise Forbidden(f"A key for one user cannot have the scope {needed}.", scope=needed)
    if marks.get("shared") and caller.tenant != OPERATOR:
        raise Forbidden(f"All tenants share this; it needs a key of the tenant `{OPERATOR}`.", scope=needed)
