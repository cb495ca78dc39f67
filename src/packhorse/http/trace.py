"""The trace a request belongs to: the caller's, if its ``traceparent`` (W3C Trace Context) is valid, else a new one."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

from packhorse.log import new_span, new_trace

TRACEPARENT = re.compile(rb"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")


class Trace(NamedTuple):
    id: str
    flags: str

    def headers(self) -> list[tuple[bytes, bytes]]:
        response = f"00-{self.id}-{new_span()}-{self.flags}"
        return [(b"traceresponse", response.encode()), (b"x-trace-id", self.id.encode())]


def trace_of(headers: Iterable[tuple[bytes, bytes]]) -> Trace:
    given = [value.strip() for name, value in headers if name.lower() == b"traceparent"]
    found = TRACEPARENT.fullmatch(given[0]) if len(given) == 1 else None
    if found is None or not _is_valid(found):
        return Trace(new_trace(), "00")
    return Trace(found[2].decode(), found[4].decode())


def _is_valid(found: re.Match[bytes]) -> bool:
    """A later version may say more after what we know; this one may not, and no id may be all zeros."""
    is_known = found[1] != b"ff" and not (found[1] == b"00" and found[5])
    return is_known and b"" not in (found[2].strip(b"0"), found[3].strip(b"0"))
