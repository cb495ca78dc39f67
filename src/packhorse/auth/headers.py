"""Headers as they came, their names in lower case as every ASGI server gives them.

Litestar's object for all of them costs more than a small request has to.
"""

from __future__ import annotations

from collections.abc import Iterable

Headers = Iterable[tuple[bytes, bytes]]


def every(headers: Headers, name: bytes) -> list[str]:
    return [value.decode("latin-1") for header, value in headers if header == name]


def first(headers: Headers, name: bytes) -> str | None:
    for header, value in headers:
        if header == name:
            return value.decode("latin-1")
    return None
