"""Finding jobs by a text: an id or its beginning, a file name or its beginning, a user, or ``name=value``.

Only indexes are read. Each source is read newest first, so that pages continue after a job's id, whatever found it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from packhorse.core.models import Job
from packhorse.core.search import Query, index_of, read_query
from packhorse.store.base import Filter, Store
from packhorse.store.collections.base import get_readable
from packhorse.store.collections.search import jobs_beginning, jobs_with

LOOKS = 1000
"""Jobs of a search that are looked at for one page, if other filters leave most of them out."""


async def find_jobs(
    store: Store, filters: Sequence[Filter], text: str, *, before: str | None, limit: int
) -> tuple[list[Job], str | None]:
    """Jobs that the text finds and one of the filters lets through, newest first; and the cursor of the next page.

    The filters are of one tenant and one user, or of all its users. A page may have fewer jobs than ``limit`` and still
    not be the last one.
    """
    query = read_query(text)
    found: list[Job] = []
    looked = 0
    while filters and query is not None:
        ids = await _page(store, filters[0], query, before, limit + 1)
        jobs = await get_readable(store, ids)
        found += [job for id in ids if (job := jobs.get(id)) and any(each.matches(job) for each in filters)]
        looked += len(ids)
        if len(found) > limit:
            return found[:limit], found[limit - 1].id
        if len(ids) <= limit:
            break
        before = ids[-1]
        if looked >= LOOKS:
            return found, before
    return found, None


async def _page(store: Store, filter: Filter, query: Query, before: str | None, limit: int) -> list[str]:
    """Ids of jobs that the text finds, newest first, whatever else is wanted of them."""
    index = index_of(filter.tenant or "", filter.user)
    if query.is_pair:
        return await jobs_with(store, index, query.term, before=before, limit=limit)
    found = await asyncio.gather(
        jobs_with(store, index, query.term, before=before, limit=limit),
        jobs_beginning(store, index, query.term),
        _jobs_of_user(store, filter, query.text, before, limit),
        _jobs_by_id(store, filter, query.id_bounds, before, limit),
    )
    ids = {id for source in found for id in source if before is None or id < before}
    return sorted(ids, reverse=True)[:limit]


async def _jobs_of_user(store: Store, filter: Filter, user: str, before: str | None, limit: int) -> list[str]:
    if filter.user not in (None, user):
        return []
    return [job.id for job in await store.find(Filter(filter.tenant, user), before=before, limit=limit)]


async def _jobs_by_id(
    store: Store, filter: Filter, bounds: tuple[str, str] | None, before: str | None, limit: int
) -> list[str]:
    if bounds is None:
        return []
    low, high = bounds
    end = high if before is None else min(high, before)
    older = await store.find(Filter(filter.tenant, filter.user), before=end, limit=limit)
    exact = [job.id for job in await store.get([high]) if job is not None] if low == high else []
    return [*exact, *(job.id for job in older if job.id >= low)]
