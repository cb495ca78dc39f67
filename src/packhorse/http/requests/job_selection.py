"""Which jobs somebody means: by their ids, or by a filter; and how far somebody has come with them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from packhorse.auth.caller import Caller
from packhorse.core.plan import Status
from packhorse.define.validation import NOT_VALID, NUL, FieldError, invalid
from packhorse.http.requests.failure_selection import time_from
from packhorse.http.routes.jobs import wanted
from packhorse.store.base import Filter

MOST_IDS = 200
"""Jobs that one request is about: as many as are done before anybody gets impatient."""

CURSOR = re.compile(r"(?P<until>[0-9.e+]{1,30}):(?P<status>[a-z]{1,20}):(?P<before>[0-9a-f-]{36})?")


class Meant(Struct):
    """Which jobs are meant: ``ids``, or all that have what is named, or, with ``all``, whatever they have."""

    ids: list[str] = []
    """Up to 200."""
    all: bool = False
    """Needed where neither ids nor anything else is named."""
    user_id: str | None = None
    status: Status | None = None
    pipeline: str | None = None
    created_from: str | None = None
    """A time in ISO 8601, as `created_until`."""
    created_until: str | None = None
    dry_run: bool = False
    """Only tell how many they are, and which are the newest."""
    cursor: str | None = None
    """What the answer before this one gave as `next`."""


class Place(NamedTuple):
    """How far somebody has come: status by status, and in each from the newest to the oldest."""

    until: float
    """Later jobs than there were at the beginning are not meant."""
    status: Status
    before: str | None = None

    def __str__(self) -> str:
        return f"{self.until!r}:{self.status.value}:{self.before or ''}"


def meant(given: Meant, caller: Caller) -> tuple[list[str], Filter | None]:
    """Ids, or a filter; neither if it is about a user for whom the caller does not act. Raises InvalidInput."""
    mistakes = [*_wrong(given)]
    created_from = time_from(given.created_from, "created_from", mistakes)
    created_until = time_from(given.created_until, "created_until", mistakes)
    named = (given.user_id, given.status, given.pipeline, created_from, created_until)
    is_filter = given.all or any(each is not None for each in named)
    if not mistakes and bool(given.ids) == is_filter:
        what = "Give ids, or what they have in common, not both" if is_filter else "Say which: ids, a filter, or all"
        mistakes.append({"field": "ids", "message": what})
    if mistakes:
        raise invalid(NOT_VALID, mistakes)
    if given.ids:
        return list(dict.fromkeys(given.ids)), None
    return [], wanted(caller, given.user_id, given.status, given.pipeline, created_from, created_until)


def place_from(cursor: str | None, statuses: Sequence[Status], now: float) -> Place:
    """Where to go on; without a cursor, the beginning. Raises InvalidInput."""
    if cursor is None:
        return Place(now, statuses[0])
    found = CURSOR.fullmatch(cursor)
    try:
        if found is not None and Status(found["status"]) in statuses:
            return Place(min(now, float(found["until"])), Status(found["status"]), found["before"])
    except ValueError:
        pass
    raise invalid(NOT_VALID, [{"field": "cursor", "message": "It must be what the answer before gave as `next`"}])


def capped(filter: Filter, until: float) -> Filter:
    """The filter without jobs that came later."""
    return replace(filter, created_until=until if filter.created_until is None else min(until, filter.created_until))


def _wrong(given: Meant) -> list[FieldError]:
    found = []
    if len(given.ids) > MOST_IDS:
        found.append({"field": "ids", "message": f"There are more than {MOST_IDS}"})
    texts = ("user_id", "pipeline")
    return found + [{"field": name, "message": NUL} for name in texts if "\0" in (getattr(given, name) or "")]
