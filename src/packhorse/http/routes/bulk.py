"""Many jobs at once: counted, cancelled, retried, deleted. Each as it would be alone, so many of them per request."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from litestar import Request, get, post
from litestar.datastructures import State
from litestar.di import NamedDependency
from litestar.params import FromQuery

from packhorse.auth.access import Caller
from packhorse.core.plan import Status
from packhorse.errors import TooLarge, TooSlow, UnsupportedMedia
from packhorse.http.openapi import refusing, taking
from packhorse.http.requests.json_body import asked
from packhorse.http.services import Tools
from packhorse.jobs import view
from packhorse.jobs.actions import BulkAction, Meant
from packhorse.schemas.jobs import ChangedDocument, CountDocument
from packhorse.store.base import Filter

CHANGING = (TooLarge, UnsupportedMedia, TooSlow)
MEANT = taking(Meant, required=True)


@get("/jobs/count", scope="read", responses=refusing())
async def count(
    tools: NamedDependency[Tools],
    caller: NamedDependency[Caller],
    user_id: FromQuery[str | None] = None,
    status: FromQuery[Status | None] = None,
    pipeline: FromQuery[str | None] = None,
    created_from: FromQuery[datetime | None] = None,
    created_until: FromQuery[datetime | None] = None,
) -> CountDocument:
    """How many jobs a list with the same filters would have; counted up to 1000, `is_at_least` if there may be more."""
    wanted = Filter(None, user_id, status, pipeline, view.seconds_of(created_from), view.seconds_of(created_until))
    return await view.count_jobs(tools, caller, wanted)


@post("/jobs/cancel", scope="cancel", status_code=202, operation_class=MEANT, responses=refusing(*CHANGING))
async def cancel(
    request: Request[Any, Any, State], tools: NamedDependency[Tools], caller: NamedDependency[Caller]
) -> ChangedDocument:
    """Cancel many: those of these ids, or all active ones that a filter finds, up to 200 of them in one request.

    `next` is the cursor with which to go on. With `dry_run` nothing is done: the answer says how many it would be.
    """
    return await BulkAction(tools, caller, "cancel").run(await asked(request, tools.settings, Meant))


@post("/jobs/retry", scope="submit", status_code=202, operation_class=MEANT, responses=refusing(*CHANGING))
async def retry(
    request: Request[Any, Any, State], tools: NamedDependency[Tools], caller: NamedDependency[Caller]
) -> ChangedDocument:
    """Start a new run of many, from what has not finished: of these ids, or all failed and cancelled ones of a filter.

    Otherwise as for `POST /jobs/cancel`.
    """
    return await BulkAction(tools, caller, "retry").run(await asked(request, tools.settings, Meant))


@post("/jobs/delete", scope="submit", status_code=202, operation_class=MEANT, responses=refusing(*CHANGING))
async def delete(
    request: Request[Any, Any, State], tools: NamedDependency[Tools], caller: NamedDependency[Caller]
) -> ChangedDocument:
    """Delete many with their files: those of these ids, or all ended ones that a filter finds.

    Otherwise as for `POST /jobs/cancel`.
    """
    return await BulkAction(tools, caller, "delete").run(await asked(request, tools.settings, Meant))


ROUTES = [count, cancel, retry, delete]
