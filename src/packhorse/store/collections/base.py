"""What several collections share: read and replace, list everything, pass over records that cannot be read."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import lru_cache
from operator import attrgetter
from typing import TypeVar

from packhorse.core.models import Job
from packhorse.core.records import Drop, IndexEntry, LogEntry, Put, Record
from packhorse.errors import Conflict, CorruptRecord, JobNotFound, SchemaTooNew
from packhorse.log import log
from packhorse.store.base import Records, Store

T = TypeVar("T")
R = TypeVar("R", bound=Record | LogEntry)

PAGE = 1000
"""Records read at once by who reads all of them."""
AFTER_ALL = "\U0010ffff"
"""Sorts after every id."""


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


async def scan_all(
    store: Records, kind: str, index: str = "all", place: Callable[[Record], str] = attrgetter("id")
) -> list[Record]:
    """Every record of an index; ``place`` says where in the index a record is: at its id if nothing else is said."""
    found: list[Record] = []
    while True:
        page = await store.scan(kind, index, after=place(found[-1]) if found else "", limit=PAGE)
        found += page
        if len(page) < PAGE:
            return found


def by_id(id: str) -> tuple[IndexEntry, ...]:
    return (IndexEntry("all", id),)


def readable(records: Iterable[R], read: Callable[[R], T]) -> list[T]:
    """Those that can be read. The others are logged and left out: one that is broken hides none of the rest."""
    found: list[T] = []
    for each in records:
        try:
            found.append(read(each))
        except CorruptRecord as error:
            what = (each.kind, each.id) if isinstance(each, Record) else ("log entry", str(each.n))
            log_unreadable(*what, str(error))
    return found


async def readable_page(page: Callable[[int], Awaitable[Sequence[R]]], limit: int, read: Callable[[R], T]) -> list[T]:
    """Up to so many that can be read, looking further where some cannot: a shorter page is the last one."""
    most = limit
    while True:
        records = await page(most)
        found = readable(records, read)
        if len(found) >= limit or len(records) < most:
            return found[:limit]
        most *= 2


@lru_cache(1000)
def log_unreadable(kind: str, id: str, reason: str) -> None:
    """Once in a process: some are read twice a second."""
    log.record_unreadable(kind, id, reason)


async def get_readable(store: Store, job_ids: Sequence[str]) -> dict[str, Job | None]:
    """Jobs by id, None where there is none; without those that cannot be read. One by one only if there are such."""
    if not job_ids:
        return {}
    try:
        return dict(zip(job_ids, await store.get(job_ids), strict=True))
    except (CorruptRecord, SchemaTooNew):
        if len(job_ids) == 1:
            return {}
        return {id: job for one in job_ids for id, job in (await get_readable(store, [one])).items()}
