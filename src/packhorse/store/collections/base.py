"""What several collections share: read and replace, list everything, sort by time."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from packhorse.core.records import Drop, IndexEntry, Put, Record
from packhorse.errors import Conflict, JobNotFound
from packhorse.store.base import Records

T = TypeVar("T")

PAGE = 1000
"""Records read at once by who reads all of them."""


async def update(
    store: Records,
    kind: str,
    id: str,
    decide: Callable[[Record | None], tuple[Put | Drop | None, T]],
    *,
    quiet: bool = True,
) -> T:
    """Write what ``decide`` makes of the record, if nobody has written meanwhile; else decide again.

    ``decide`` returns the write, with the stamp of the record it was given, and what the caller gets. It may be called
    several times. A job that vanishes meanwhile takes its record along, so that ``decide`` sees none.
    """
    while True:
        [found] = await store.fetch(kind, [id])
        write, outcome = decide(found)
        try:
            if write is not None:
                await store.put([write], quiet=quiet)
        except (Conflict, JobNotFound):
            continue
        return outcome


async def list_by_id(store: Records, kind: str, index: str = "all") -> list[Record]:
    """Every record of an index whose places are the ids."""
    found: list[Record] = []
    while True:
        page = await store.scan(kind, index, after=found[-1].id if found else "", limit=PAGE)
        found += page
        if len(page) < PAGE:
            return found


def by_id(id: str, index: str = "all") -> tuple[IndexEntry, ...]:
    return (IndexEntry(index, id),)


AFTER_ALL = "\U0010ffff"
"""Sorts after every id."""
