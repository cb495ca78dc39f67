"""Which part of a file is asked for, and whether it is needed at all (RFC 9110, sections 13 and 14)."""

from __future__ import annotations

import re
from typing import NamedTuple

from packhorse.errors import RangeNotSatisfiable

ONE = re.compile(r"bytes=[ \t]*(?P<first>[0-9]{1,18})?-(?P<last>[0-9]{1,18})?[ \t]*", re.ASCII | re.IGNORECASE)
TAGS = re.compile(r'(?:W/)?("[^"]*")')


class Part(NamedTuple):
    start: int
    length: int


def part(asked: str | None, condition: str | None, etag: str, size: int) -> Part | None:
    """The part, None for the whole. RangeNotSatisfiable if the file has no such part.

    A condition (If-Range) that is not exactly this file's tag asks for the whole: half of this and half of another
    version is a file that never was. So do several parts, and whatever is no range we know.
    """
    found = ONE.fullmatch(asked or "")
    if found is None or found["first"] is found["last"] is None or condition not in (None, etag):
        return None
    if found["first"] is None:
        start, end = max(0, size - int(found["last"])), size
    else:
        start, end = int(found["first"]), size if found["last"] is None else int(found["last"]) + 1
        if found["last"] is not None and end <= start:
            return None
    end = min(end, size)
    if start >= end:
        raise RangeNotSatisfiable(size=size)
    return Part(start, end - start)


def is_known(condition: str | None, etag: str) -> bool:
    """Whether whoever asks has this file already (If-None-Match)."""
    return condition is not None and (condition.strip() == "*" or etag in TAGS.findall(condition))
