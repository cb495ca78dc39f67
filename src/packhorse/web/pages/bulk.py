"""Many jobs cancelled, retried or deleted: first a page that says how many, then step by step until all are done."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import msgspec
from litestar import Response, post
from litestar.datastructures import FormMultiDict

from packhorse.core.text import plural
from packhorse.errors import InvalidInput
from packhorse.http.requests import convert
from packhorse.http.services import tools_and_caller
from packhorse.jobs.actions import BulkAction, Meant
from packhorse.schemas.jobs import ChangedDocument
from packhorse.web.forms import form
from packhorse.web.pages.jobs import FILTERS, TIMES, counted, exact, shown
from packhorse.web.render import Page, moved, rendered
from packhorse.web.widgets import formatting

VERBS = {"cancel": "cancelled", "retry": "started again", "delete": "deleted"}
LEFT = {
    "gone": "not there any more",
    "slot_taken": "the slot of its user is taken",
    "stopping": "being stopped already",
    "unreadable": "not readable",
}
"""Why a job was left as it is."""


@post("/jobs/confirm", scope="cancel", status_code=200, include_in_schema=False)
async def confirm(request: Page) -> Response[bytes]:
    """How many it is about, before anything is done."""
    given = await form(request)
    verb, meant = _verb(given), _meant(given)
    if not meant:
        return rendered(request, "jobs_none.html", status=422, back=_filter(given))
    if "ids" not in meant:  # what comes while somebody makes up their mind is not meant
        meant["created_until"] = _earlier(meant.get("created_until"), datetime.now(UTC).isoformat())
    trial = await _run(request, verb, {**meant, "dry_run": True})
    return rendered(
        request,
        "jobs_confirm.html",
        verb=verb,
        meant=meant,
        back=_filter(given),
        trial={**trial, "first": [shown(each) for each in trial["first"]]},
        count=counted(trial),
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
        return moved(request, "/jobs", _said(verb, done, left), **back)
    return rendered(
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


ROUTES = [confirm, change]


async def _run(request: Page, verb: str, meant: Mapping[str, Any]) -> ChangedDocument:
    tools, caller = tools_and_caller(request.scope)
    return await BulkAction(tools, caller, verb).run(convert(meant, Meant))


def _verb(form: FormMultiDict) -> str:
    found = form.get("do")
    if found not in VERBS:
        raise InvalidInput("What is to be done with them?", field="do")
    return str(found)


def _meant(form: FormMultiDict) -> dict[str, Any]:
    """As the API takes it: all that match, or those that were picked; nothing if nothing was."""
    if form.get("all"):
        found = {name: str(form.get(name)) for name in FILTERS if form.get(name)}
        return {"all": True, **{name: exact(text) if name in TIMES else text for name, text in found.items()}}
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
    first = f"{formatting.number(done)} {plural(done, 'job is', 'jobs are')} {VERBS[verb]}."
    return f"{first} Left as they are: {'; '.join(_left(left))}." if left else first


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
