"""Headers that somebody else chose: what can be sent of them, told without ever repeating what stands in them."""

from __future__ import annotations

import re
from collections.abc import Mapping

from packhorse.errors import OutboundFailed

OURS = frozenset({"host", "content-length", "transfer-encoding", "connection", "accept-encoding"})
"""Those that belong to the call itself: another value would make it a different call, or none."""

_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_VALUE = re.compile(r"([\x21-\x7e]([\t\x20-\x7e]*[\x21-\x7e])?)?")


def is_sendable(value: str) -> bool:
    """A key that was pasted with its line end is not."""
    return _VALUE.fullmatch(value) is not None


def require(headers: Mapping[str, str], host: str) -> None:
    """Raise ``BAD_HEADER`` with the name alone: values are keys, and the transport would quote them in its error."""
    for name, value in headers.items():
        if not _NAME.fullmatch(name) or name.lower() in OURS:
            raise _refused(host, f"a header {name[:40]!r} cannot be sent along")
        if not is_sendable(value):
            raise _refused(host, f"what stands in the header {name[:40]!r} cannot be sent; is there a line end in it?")


def _refused(host: str, reason: str) -> OutboundFailed:
    return OutboundFailed(code="BAD_HEADER", host=host, reason=reason)
