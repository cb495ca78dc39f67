"""What a job is found by: terms from its files, its metadata and the parameters that its pipeline declares.

A job's terms are one record, written by the commit that creates the job and erased with it. Each term is in two
indexes: of its tenant, and of its user. A place ends with the id of the job, so that an index is in the order of age.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple
from urllib.parse import quote

from packhorse.core import json
from packhorse.core.models import Spec
from packhorse.core.plan import Plan
from packhorse.core.records import IndexEntry, Put

TERMS = "terms"
"""The kind of the records."""

MOST = 12  # terms of one job
LONGEST = 80  # characters of a term; what is longer is found by its beginning
END = "\x1f"  # after a term: less than every character that a term may have
LAST = "\U0010ffff"
LEAST_OF_ID = 8  # characters of an id that are taken for its beginning

_GAPS = re.compile(r"[\s\x00-\x1f\x7f]+")
_PAIR = re.compile(r"[\w.-]{1,64}\s*[=:]\s*\S.*")
_ID = re.compile(r"[0-9a-f-]{8,36}")


class Query(NamedTuple):
    """A search text, as the indexes have it."""

    text: str
    term: str
    is_pair: bool
    """Whether it is ``name=value``; else it is the beginning of a file name, a user or an id."""

    @property
    def id_bounds(self) -> tuple[str, str] | None:
        """The first and the last id that begin with it."""
        text = self.text.lower()
        if not _ID.fullmatch(text) or len(text) < LEAST_OF_ID:
            return None
        low, high = (_id_like(text, digit) for digit in "0f")
        return low, high


def read_query(text: str) -> Query | None:
    """None for a text that says nothing."""
    shown = _GAPS.sub(" ", text).strip()
    if not shown:
        return None
    if _PAIR.fullmatch(shown):
        name, value = re.split(r"\s*[=:]\s*", shown, maxsplit=1)
        return Query(shown, _pair(name, value), True)
    return Query(shown, _file(shown), False)


def put_terms(plan: Plan, spec: Spec, job_id: str, tenant: str, user: str) -> Put | None:
    """The record of a new job; None if there is nothing to find it by, as for most that have no file."""
    if not spec.inputs and not spec.metadata and not plan.search:
        return None
    terms = list(dict.fromkeys(_terms(plan, spec)))[:MOST]
    if not terms:
        return None
    names = (index_of(tenant), index_of(tenant, user))
    index = tuple(IndexEntry(name, f"{term}{END}{job_id}") for term in terms for name in names)
    return Put(TERMS, job_id, b"1", index=index, job_id=job_id)


def index_of(tenant: str, user: str | None = None) -> str:
    """Escaped, so that no user can spell another one's index."""
    return quote(tenant, safe="") if user is None else f"{quote(tenant, safe='')}/{quote(user, safe='')}"


def _terms(plan: Plan, spec: Spec) -> Iterator[str]:
    yield from (_file(each.file.name) for each in spec.inputs)
    if plan.search:
        parameters: Any = json.decode(spec.parameters)
        yield from _pairs({name: parameters.get(name) for name in plan.search})
    yield from _pairs(spec.metadata)


def _pairs(values: Mapping[str, Any]) -> Iterator[str]:
    for name, value in values.items():
        if isinstance(value, str | int | float) and value != "":
            yield _pair(name, json.encode(value).decode() if not isinstance(value, str) else value)


def _file(name: str) -> str:
    return f"f:{_plain(name)}"


def _pair(name: str, value: str) -> str:
    return f"v:{_plain(name)}={_plain(value)}"[: LONGEST + 2]


def _plain(text: str) -> str:
    return _GAPS.sub(" ", text).strip().casefold()[:LONGEST]


def _id_like(text: str, digit: str) -> str:
    """The beginning of an id, made whole with that digit."""
    digits = text.replace("-", "")[:32].ljust(32, digit)
    return "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))
