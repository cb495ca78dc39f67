"""Jobs and definitions of which one may be broken: it must not hide the others."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from packhorse.core import json
from packhorse.core.models import Job
from packhorse.core.plan import Definition, Plan
from packhorse.errors import CorruptRecord, SchemaTooNew
from packhorse.store.base import Store
from packhorse.store.tolerant_reads import tell


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


async def readable(store: Store, job_ids: Sequence[str]) -> dict[str, Job | None]:
    """By id, None where there is none; without those that nobody can read. One by one only if there are such."""
    if not job_ids:
        return {}
    try:
        return dict(zip(job_ids, await store.get(job_ids), strict=True))
    except (CorruptRecord, SchemaTooNew):
        if len(job_ids) == 1:
            return {}
        return {id: job for one in job_ids for id, job in (await readable(store, [one])).items()}
