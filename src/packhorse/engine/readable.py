"""Jobs of which one may be broken: it must not hide the others."""

from __future__ import annotations

from collections.abc import Sequence

from packhorse.core.model import Job
from packhorse.errors import CorruptRecord, SchemaTooNew
from packhorse.store.base import Store


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
