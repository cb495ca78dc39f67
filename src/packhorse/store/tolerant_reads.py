"""Reading many records of which one may be broken: it is told of and left out, and hides none of the others."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from typing import Any, TypeVar

from packhorse.core import json
from packhorse.errors import CorruptRecord
from packhorse.log import log

T = TypeVar("T")

Named = tuple[str, bytes | str | None]
"""What a record is called, and its body; None where there is none any more."""


def readable(found: Iterable[Named], type: type[T]) -> Iterator[T]:
    for name, body in found:
        if body is None:
            continue
        try:
            yield json.record(body, type)
        except CorruptRecord as error:
            tell(type.__name__.lower(), name, str(error))


async def filled(page: Callable[[int], Awaitable[Sequence[Any]]], type: type[T], limit: int) -> list[T]:
    """Up to so many that can be read, however many cannot; ``page`` has `Named` rows, behind as many as it is told."""
    found: list[T] = []
    seen = 0
    while True:
        records = await page(seen)
        found += readable(records, type)
        seen += len(records)
        if len(found) >= limit or len(records) < limit:
            return found[:limit]


@lru_cache(1000)
def tell(what: str, name: str, reason: str) -> None:
    """Once in a process: some are looked at twice a second."""
    log.record_unreadable(what, name, reason)
