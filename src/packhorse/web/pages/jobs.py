"""``/jobs``: what there is, by what it has in common, newest first."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Annotated, Any

from litestar import Response, get
from litestar.params import QueryParameter

from packhorse.core.plan import Status
from packhorse.web.api_calls import Api, Page, Problem, viewer
from packhorse.web.render import rendered
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
    asked = query | {name: exact(query[name]) for name in TIMES}
    api = Api(request)
    pipelines = (await api.get("/pipelines"))["items"]
    mistakes: Mapping[str, str] = {}
    try:
        page, count = await asyncio.gather(
            api.get("/jobs", **asked, cursor=cursor or None, limit=PAGE), api.get("/jobs/count", **asked)
        )
    except Problem as problem:
        if not problem.mistakes.keys() & {*FILTERS}:
            raise
        page, count, mistakes = {"items": [], "next": None}, {"count": 0, "is_at_least": False}, problem.mistakes
    return rendered(
        request,
        "jobs.html",
        status=422 if mistakes else 200,
        query=query,
        statuses=STATUSES,
        cursor=cursor,
        mistakes=mistakes,
        pipelines=[each["name"] for each in pipelines],
        jobs=[shown(each) for each in page["items"]],
        count=counted(count, len(page["items"])),
        next=page["next"],
        is_filtered=any(query.values()),
        for_one=viewer(request).user is not None,
        local=local,
    )


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
