"""Reading many records of which one may be broken: it is told of and left out, and hides none of the others."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from typing import Any, TypeVar

from packhorse.core import json
from packhorse.core.models import Job
from packhorse.core.plan import Definition, Plan
from packhorse.errors import CorruptRecord, SchemaTooNew
from packhorse.log import log
from packhorse.store.base import Store

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


def plans_of(definitions: Sequence[Definition]) -> dict[str, Plan]:
    """By pipeline, without those that nobody can read; of such it is told."""
    found: dict[str, Plan] = {}
    for definition in definitions:
        try:
            found[definition.pipeline] = _plan(definition.plan)
        except CorruptRecord as error:
            tell("definition", definition.pipeline, str(error))
    return found


@lru_cache(1000)
def _plan(body: bytes) -> Plan:
    return json.plan_from(body)


async def get_readable(store: Store, job_ids: Sequence[str]) -> dict[str, Job | None]:
    """By id, None where there is none; without those that nobody can read. One by one only if there are such."""
    if not job_ids:
        return {}
    try:
        return dict(zip(job_ids, await store.get(job_ids), strict=True))
    except (CorruptRecord, SchemaTooNew):
        if len(job_ids) == 1:
            return {}
        return {id: job for one in job_ids for id, job in (await get_readable(store, [one])).items()}
