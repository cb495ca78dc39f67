"""``/jobs``: what there is, by what it has in common, newest first."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Annotated, Any

from litestar import Response, get
from litestar.params import QueryParameter

from packhorse.core.plan import Status
from packhorse.define.validation import FieldError, invalid, one_of
from packhorse.http.routes.jobs import CURSOR
from packhorse.http.services import tools_and_caller
from packhorse.jobs import view
from packhorse.jobs.view import time_from
from packhorse.schemas.jobs import CountDocument, JobsPage
from packhorse.store.base import Filter
from packhorse.web.render import Page, rendered
from packhorse.web.widgets import formatting

TIMES = ("created_from", "created_until")
STATUSES = tuple(Status)
FILTERS = ("status", "pipeline", "user_id", *TIMES)
PAGE = 50

Text = Annotated[str | None, QueryParameter()]


@get("/jobs", scope="read", include_in_schema=False)
async def jobs(
    request: Page,
    status: Text = None,
    pipeline: Text = None,
    user_id: Text = None,
    created_from: Text = None,
    created_until: Text = None,
    cursor: Text = None,
) -> Response[bytes]:
    given = (status, pipeline, user_id, created_from, created_until)
    query = {name: value or None for name, value in zip(FILTERS, given, strict=True)}
    tools, caller = tools_and_caller(request.scope)
    wanted, wrong = read_filter(query)
    if cursor and not re.fullmatch(CURSOR, cursor):
        raise invalid("The query is not valid", [{"field": "cursor", "message": "It must be `next` of another page"}])
    page, count = JobsPage(items=[], next=None), CountDocument(count=0, is_at_least=False)
    if wanted is not None:
        page, count = await asyncio.gather(
            view.list_jobs(tools, caller, wanted, cursor=cursor or None, limit=PAGE),
            view.count_jobs(tools, caller, wanted),
        )
    return rendered(
        request,
        "jobs.html",
        status=422 if wrong else 200,
        query=query,
        statuses=STATUSES,
        cursor=cursor,
        mistakes=wrong,
        pipelines=[each.plan.pipeline for each in await tools.catalog.all()],
        jobs=[shown(each) for each in page["items"]],
        count=counted(count, len(page["items"])),
        next=page["next"],
        is_filtered=any(query.values()),
        for_one=caller.user is not None,
        local=local,
    )


def read_filter(query: Mapping[str, str | None]) -> tuple[Filter | None, dict[str, str]]:
    """The filter that a form names; or None and what is wrong with which field."""
    mistakes: list[FieldError] = []
    status = query["status"]
    if status is not None and status not in STATUSES:
        mistakes.append(one_of("status", STATUSES))
    since, until = (time_from(exact(query[name]), name, mistakes) for name in TIMES)
    if mistakes:
        return None, {each["field"]: each["message"] for each in mistakes}
    wanted = Filter(None, query["user_id"], None if status is None else Status(status), query["pipeline"], since, until)
    return wanted, {}


def shown(job: Any) -> dict[str, Any]:
    """With how long it has run, also while it runs."""
    took = job["duration_ms"]
    if took is None and job["started_at"] is not None and job["status"] == "running":
        took = (datetime.now(UTC) - datetime.fromisoformat(job["started_at"])).total_seconds() * 1000
    return {**job, "took": took, "short": job["job_id"][-12:]}


def counted(found: Any, shown: int = 0) -> str:
    """1,000+ where there may be more."""
    return f"{formatting.number(max(found['count'], shown))}{'+' if found['is_at_least'] else ''}"


def exact(text: str | None) -> str | None:
    """A time as the API takes it: a browser leaves out seconds that are none, and says no zone. The rest as it is."""
    try:
        at = datetime.fromisoformat(text or "")
    except ValueError:
        return text
    return (at if at.tzinfo else at.replace(tzinfo=UTC)).isoformat()


def local(text: str | None) -> str:
    """A time as a browser's field for it takes it, in UTC; what is none, as it is."""
    try:
        at = datetime.fromisoformat(text or "")
    except ValueError:
        return text or ""
    return (at.astimezone(UTC) if at.tzinfo else at).replace(tzinfo=None).isoformat(timespec="seconds")


ROUTES = [jobs]
