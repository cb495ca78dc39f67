"""``/jobs``: what there is, newest first, and many jobs cancelled, retried or deleted.

First a page says how many it would be, then it is done step by step.
"""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, NamedTuple

import msgspec
from litestar import Response, get, post
from litestar.datastructures import FormMultiDict

from packhorse.core.plan import Status
from packhorse.define.validation import FieldError, invalid
from packhorse.errors import InvalidInput, UnknownPipeline
from packhorse.http.requests import convert
from packhorse.http.routes.jobs import CURSOR
from packhorse.jobs import view
from packhorse.jobs.actions import BulkAction, Meant
from packhorse.jobs.catalog import Catalog
from packhorse.jobs.view import time_from
from packhorse.plurals import plural
from packhorse.schemas.jobs import ChangedDocument, CountDocument
from packhorse.store.base import Filter
from packhorse.web.forms import form
from packhorse.web.render import Page, redirect, render_page, services_and_caller
from packhorse.web.widgets import formatting

TIMES = ("created_from", "created_until")
FILTERS = ("status", "pipeline", "user_id", *TIMES)
LISTED = ("q", *FILTERS)
"""What a list is asked with: bulk actions take no search text."""
LONGEST = 200  # characters of a search text
PAGE = 50

VERBS = {"cancel": "cancelled", "retry": "retried", "delete": "deleted"}
LEFT = {
    "gone": "deleted",
    "slot_taken": "user already has an active job",
    "stopping": "already stopping",
    "unreadable": "not readable",
}
"""Why a job was left as it is."""


@get("/jobs", scope="read", query=(*LISTED, "cursor"), include_in_schema=False)
async def jobs(request: Page) -> Response[bytes]:
    query = {name: request.query_params.get(name) or None for name in LISTED}
    cursor = request.query_params.get("cursor")
    services, caller = services_and_caller(request)
    wanted, wrong = await _read_filter(services.catalog, query)
    if cursor and not re.fullmatch(CURSOR, cursor):
        raise invalid("The query is not valid", [{"field": "cursor", "message": "It must be `next` of another page"}])
    rows: list[view.JobRow] = []
    next, counts = None, dict[Status, CountDocument]()
    text = (query["q"] or "")[:LONGEST]
    if wanted is not None:
        try:
            listed = view.job_rows(services, caller, wanted, text, cursor=cursor or None, limit=PAGE)
            if text:  # how many there are, an index of terms does not know
                rows, next = await listed
            else:
                (rows, next), counts = await asyncio.gather(listed, view.count_by_status(services, caller, wanted))
        except UnknownPipeline as error:
            wrong = {"pipeline": error.message}
    published = await services.catalog.all()
    aliases = dict.fromkeys(word for each in published for word in each.plan.statuses.values())
    chosen = None if wanted is None else wanted.status
    return render_page(
        request,
        "jobs.html",
        status=422 if wrong else 200,
        query=query,
        statuses=list(dict.fromkeys([*Status, *aliases])) if aliases else [],
        tabs=_tabs(counts, chosen),
        cursor=cursor,
        mistakes=wrong,
        pipelines=[each.plan.pipeline for each in published],
        jobs=[job_row(each) for each in rows],
        count=_count_of(counts, chosen, len(rows), has_more=next is not None or bool(cursor)),
        next=next,
        is_filtered=any(query.values()),
        for_one=caller.user is not None,
        local=_local,
    )


async def _read_filter(catalog: Catalog, query: Mapping[str, str | None]) -> tuple[Filter | None, dict[str, str]]:
    """The filter that a form names; or None and what is wrong with which field."""
    mistakes: list[FieldError] = []
    status = None
    try:
        status = await catalog.read_status(query["status"], query["pipeline"])
    except InvalidInput as error:
        mistakes += error.errors
    since, until = (time_from(_exact(query[name]), name, mistakes) for name in TIMES)
    if mistakes:
        return None, {each["field"]: each["message"] for each in mistakes}
    wanted = Filter(None, query["user_id"], status, query["pipeline"], since, until)
    return wanted, {}


class Tab(NamedTuple):
    status: str | None
    text: str
    number: str
    is_chosen: bool


def _tabs(counts: Mapping[Status, CountDocument], chosen: Status | None) -> list[Tab]:
    numbers = {status: _count_text(found) for status, found in counts.items()}
    each = [Tab(status, formatting.title(status), numbers.get(status, ""), status == chosen) for status in Status]
    return [Tab(None, "All", _count_text(_all(counts)) if counts else "", chosen is None), *each]


def _count_of(counts: Mapping[Status, CountDocument], chosen: Status | None, shown: int, *, has_more: bool) -> str:
    if not counts:
        return f"{shown}+" if has_more else str(shown)
    return _count_text(_all(counts) if chosen is None else counts[chosen], shown)


def _all(counts: Mapping[Status, CountDocument]) -> CountDocument:
    number = sum(each["count"] for each in counts.values())
    is_cut = number > view.MOST_COUNTED or any(each["is_at_least"] for each in counts.values())
    return {"count": min(number, view.MOST_COUNTED), "is_at_least": is_cut}


def job_row(job: Any) -> dict[str, Any]:
    """With how long it has run, also while it runs."""
    took = job["duration_ms"]
    if took is None and job["started_at"] is not None and job["status"] == "running":
        took = (datetime.now(UTC) - datetime.fromisoformat(job["started_at"])).total_seconds() * 1000
    return {**job, "took": took, "short": job["job_id"][-12:]}


def _count_text(found: Any, shown: int = 0) -> str:
    """1,000+ where there may be more."""
    return f"{formatting.number(max(found['count'], shown))}{'+' if found['is_at_least'] else ''}"


def _exact(text: str | None) -> str | None:
    """A time as the API takes it: a browser leaves out seconds that are none, and says no zone. The rest as it is."""
    try:
        at = datetime.fromisoformat(text or "")
    except ValueError:
        return text
    return (at if at.tzinfo else at.replace(tzinfo=UTC)).isoformat()


def _local(text: str | None) -> str:
    """A time as a browser's field for it takes it, in UTC; what is none, as it is."""
    try:
        at = datetime.fromisoformat(text or "")
    except ValueError:
        return text or ""
    return (at.astimezone(UTC) if at.tzinfo else at).replace(tzinfo=None).isoformat(timespec="seconds")


@post("/jobs/confirm", scope="cancel", status_code=200, include_in_schema=False)
async def confirm(request: Page) -> Response[bytes]:
    """How many it is about, before anything is done."""
    given = await form(request)
    verb, meant = _verb(given), _meant(given)
    if not meant:
        return render_page(request, "jobs_none.html", status=422, back=_filter(given))
    if "ids" not in meant:  # what comes while somebody makes up their mind is not meant
        meant["created_until"] = _earlier(meant.get("created_until"), datetime.now(UTC).isoformat())
    trial = await _run(request, verb, {**meant, "dry_run": True})
    return render_page(
        request,
        "jobs_confirm.html",
        verb=verb,
        meant=meant,
        back=_filter(given),
        trial={**trial, "first": [job_row(each) for each in trial["first"]]},
        count=_count_text(trial),
        left=_left(trial["left"]),
    )


@post("/jobs/change", scope="cancel", status_code=200, include_in_schema=False)
async def change(request: Page) -> Response[bytes]:
    """The next step; another page as long as there are more, then the list again."""
    given = await form(request)
    verb, meant, back = _verb(given), _meant(given), _filter(given)
    cursor = given.get("cursor")
    answer = await _run(request, verb, {**meant, **({"cursor": cursor} if cursor else {})})
    done = _number(given.get("done")) + answer["count"]
    left: dict[str, int] = dict(Counter(_counts(given.get("left"))) + Counter(answer["left"]))
    if answer["next"] is None:
        return redirect(request, "/jobs", _said(verb, done, left), **back)
    return render_page(
        request,
        "jobs_change.html",
        verb=verb,
        past=VERBS[verb],
        meant=meant,
        back=back,
        cursor=answer["next"],
        done=done,
        of=max(done, _number(given.get("of"))),
        left=msgspec.json.encode(left).decode(),
        why=_left(left),
    )


async def _run(request: Page, verb: str, meant: Mapping[str, Any]) -> ChangedDocument:
    services, caller = services_and_caller(request)
    return await BulkAction(services, caller, verb).run(convert(meant, Meant))


def _verb(form: FormMultiDict) -> str:
    found = form.get("do")
    if found not in VERBS:
        raise InvalidInput("Choose an action", field="do")
    return str(found)


def _meant(form: FormMultiDict) -> dict[str, Any]:
    """As the API takes it: all that match, or those that were picked; nothing if nothing was."""
    if form.get("all"):
        found = {name: str(form.get(name)) for name in FILTERS if form.get(name)}
        return {"all": True, **{name: _exact(text) if name in TIMES else text for name, text in found.items()}}
    ids = [str(each) for each in form.getall("id", [])]
    return {"ids": ids} if ids else {}


def _earlier(text: str | None, now: str) -> str:
    """What is no time is for the API to refuse."""
    try:
        return min(text or now, now, key=datetime.fromisoformat)
    except ValueError:
        return text or now


def _filter(form: FormMultiDict) -> dict[str, Any]:
    """Of the list it was asked from, to go back to. The time of the asking was put in by us."""
    found = {name: form.get(f"back_{name}", form.get(name)) for name in FILTERS}
    return {name: value or None for name, value in found.items()}


def _said(verb: str, done: int, left: Mapping[str, int]) -> str:
    first = f"{formatting.number(done)} {plural(done, 'job')} {VERBS[verb]}."
    return f"{first} Not changed: {'; '.join(_left(left))}." if left else first


def _left(left: Mapping[str, int]) -> list[str]:
    return [f"{formatting.number(number)} {LEFT.get(why, why)}" for why, number in sorted(left.items())]


def _number(text: Any) -> int:
    return int(text) if isinstance(text, str) and text.isascii() and text.isdigit() and len(text) < 16 else 0


def _counts(text: Any) -> dict[str, int]:
    """What we told the page, and it tells us again: nothing is decided by it."""
    try:
        return msgspec.json.decode(text or "{}", type=dict[str, int])
    except msgspec.MsgspecError:
        return {}


ROUTES = [jobs, confirm, change]
