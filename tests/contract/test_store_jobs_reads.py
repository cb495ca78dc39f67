"""What can be asked about jobs, and what the answers promise."""

from __future__ import annotations

from uuid import UUID

import pytest
from msgspec.structs import replace

from packhorse.core import lifecycle
from packhorse.core.models import Job
from packhorse.core.plan import Status
from packhorse.store.base import Filter, Store
from tests.contract.builders import (
    BROKEN,
    CHAIN,
    RESULT,
    SPEC,
    UNKNOWN,
    claim_one,
    completed,
    fail,
    failed,
    held,
    id_at,
    ids,
    made,
    marked,
    refused,
    split,
    started,
    submission,
    submit,
    submit_many,
    sure,
)
from tests.contract.lookup import FILTERS, everybodys, matches

EPOCH = 1_800_000_000.0
NONSENSE = ["", "nonsense", "'; DROP TABLE jobs; --", "%", "a\x00b", "ü" * 300, UNKNOWN.upper()]


# get, specs, results


async def test_jobs_come_in_the_order_asked_for_with_none_for_what_is_not_there(store: Store) -> None:
    first, second = await submit(store), await submit(store)

    found = await store.get([second.id, UNKNOWN, first.id, second.id])

    assert found == [second, None, first, second]


async def test_asking_for_nothing_gives_nothing(store: Store) -> None:
    await submit(store)

    assert await store.get([]) == []
    assert await store.specs([]) == {}
    assert await store.results([]) == {}
    assert await store.progress([]) == {}
    assert await store.existing_ids([]) == set()


@pytest.mark.parametrize("id", NONSENSE)
async def test_an_id_that_cannot_be_one_is_just_not_there(store: Store, id: str) -> None:
    job = await submit(store)

    assert await store.get([id, job.id]) == [None, job]
    assert await store.existing_ids([id, job.id]) == {job.id}
    assert await store.events(id) == []
    assert await store.find(Filter(), before=job.id) == []


async def test_specs_and_results_of_several_jobs_are_told_apart(store: Store) -> None:
    done, waiting = await completed(store), await submit(store)

    assert await store.specs([done.id, waiting.id, UNKNOWN]) == {done.id: SPEC, waiting.id: SPEC}
    assert await store.results([done.id, waiting.id, UNKNOWN]) == {done.id: {("only", 0): RESULT}}


# find


async def test_find_gives_the_newest_first(store: Store) -> None:
    jobs = await submit_many(store, 12)

    found = await store.find(Filter())

    assert ids(found) == ids(jobs)[::-1]


async def test_find_gives_whole_jobs(store: Store) -> None:
    job = await split(store, 3)

    assert await store.find(Filter()) == [job]


async def test_find_stops_at_the_limit(store: Store) -> None:
    jobs = await submit_many(store, 5)

    assert ids(await store.find(Filter(), limit=2)) == [jobs[4].id, jobs[3].id]


async def test_find_goes_on_before_the_last_job_seen(store: Store) -> None:
    jobs = await submit_many(store, 5)

    found = await store.find(Filter(), before=jobs[2].id)

    assert ids(found) == [jobs[1].id, jobs[0].id]


async def test_find_begins_below_an_id_that_no_job_has(store: Store) -> None:
    """So is the job found whose id begins as somebody says: it is the first below the last id that could."""
    jobs = await submit_many(store, 5)

    found = await store.find(Filter(), before=str(UUID(int=UUID(jobs[2].id).int + 1)), limit=2)

    assert ids(found) == [jobs[2].id, jobs[1].id]


async def test_find_before_the_oldest_gives_nothing(store: Store) -> None:
    jobs = await submit_many(store, 2)

    assert await store.find(Filter(), before=jobs[0].id) == []


async def test_paging_passes_every_job_once_while_new_ones_arrive(store: Store) -> None:
    jobs = await submit_many(store, 10)
    seen: list[str] = []
    before: str | None = None

    while found := await store.find(Filter(), before=before, limit=3):
        seen += ids(found)
        before = found[-1].id
        await submit(store)

    assert seen == ids(jobs)[::-1]


async def test_every_combination_of_filters_gives_exactly_whatmatches(store: Store) -> None:
    jobs = await everybodys(store)

    found = [ids(await store.find(filter)) for filter in FILTERS]

    assert found == [[job.id for job in reversed(jobs) if matches(job, filter)] for filter in FILTERS]


async def test_paging_with_filters_passes_every_match_once(store: Store) -> None:
    jobs = await everybodys(store)
    filter = Filter("acme", status=Status.RUNNING)
    seen: list[str] = []

    while found := await store.find(filter, before=seen[-1] if seen else None, limit=1):
        seen += ids(found)

    assert seen == [job.id for job in reversed(jobs) if matches(job, filter)]


async def test_one_tenant_never_sees_the_jobs_of_another(store: Store) -> None:
    await everybodys(store)

    found = await store.find(Filter("acme"), limit=1000)

    assert {job.tenant for job in found} == {"acme"}


async def test_a_tenant_whose_name_is_a_pattern_sees_only_its_own(store: Store) -> None:
    await submit(store, tenant="acme")
    own = await submit(store, tenant="a%")

    assert ids(await store.find(Filter("a%"))) == [own.id]


async def test_find_by_time_takes_from_and_leaves_until(store: Store) -> None:
    times = [EPOCH + seconds for seconds in (10, 20, 30, 40)]
    jobs = [await submit(store, now=at, job_id=id_at(at)) for at in times]

    found = await store.find(Filter(created_from=times[1], created_until=times[3]))

    assert ids(found) == [jobs[2].id, jobs[1].id]


async def test_find_follows_a_job_from_status_to_status(store: Store) -> None:
    claimed = await started(store)
    assert ids(await store.find(Filter(status=Status.RUNNING))) == [claimed.job.id]

    await fail(store, claimed)

    assert await store.find(Filter(status=Status.RUNNING)) == []
    assert ids(await store.find(Filter(status=Status.FAILED))) == [claimed.job.id]


# events


async def _with_history(store: Store) -> Job:
    """A job with events that came one by one and several at a time."""
    job = await submit(store, CHAIN)
    for _ in range(2):
        claimed = await claim_one(store)
        job = await fail(store, claimed, replace(BROKEN, permanent=True))
        job = await made(store, lifecycle.retry(job, now=store.now()))
    return job


async def test_events_are_numbered_from_one_without_gaps(store: Store, other: Store) -> None:
    job = await _with_history(store)

    events = await other.events(job.id)

    assert [event.n for event in events] == list(range(1, job.events + 1))
    assert job.events > 8


async def test_a_watcher_resumes_with_the_exact_suffix_from_any_number(store: Store) -> None:
    job = await _with_history(store)
    events = await store.events(job.id)

    suffixes = [await store.events(job.id, after=n) for n in range(job.events + 2)]

    assert suffixes == [events[n:] for n in range(job.events + 2)]


async def test_a_watcher_that_reads_in_small_steps_misses_nothing(store: Store) -> None:
    job = await _with_history(store)
    seen: list[int] = []

    while found := await store.events(job.id, after=seen[-1] if seen else 0, limit=2):
        assert len(found) <= 2
        seen += [event.n for event in found]

    assert seen == list(range(1, job.events + 1))


async def test_events_are_read_back_whole(store: Store) -> None:
    change = submission(CHAIN, now=12.25)

    await made(store, change)

    assert await store.events(change.after.id) == list(change.events)


async def test_events_of_two_jobs_are_numbered_apart(store: Store) -> None:
    first, second = await completed(store), await completed(store)

    numbers = [[event.n for event in await store.events(job.id)] for job in (first, second)]

    assert numbers == [[1, 2, 3, 4, 5], [1, 2, 3, 4, 5]]


async def test_events_go_on_in_the_next_run(store: Store) -> None:
    job = await failed(store)

    after = await made(store, lifecycle.retry(job, now=store.now()))

    assert [event.type for event in await store.events(job.id, after=job.events)] == ["retrying"]
    assert after.events == job.events + 1


# made


async def test_a_committed_change_is_known_as_made(store: Store, other: Store) -> None:
    change = replace(submission(now=store.now()), id="c-1")
    assert not await other.has_change(change.after.id, "c-1")

    await made(store, change)

    assert await other.has_change(change.after.id, "c-1")


async def test_every_change_of_a_job_is_known_as_made(store: Store) -> None:
    job = await submit(store)
    stop = replace(sure(lifecycle.cancel(job, now=store.now())), id="c-2")
    await made(store, stop)

    await made(store, replace(sure(lifecycle.retry(stop.after, now=store.now())), id="c-3"))

    assert [await store.has_change(job.id, id) for id in ("c-1", "c-2", "c-3")] == [False, True, True]


async def test_a_refused_change_is_not_known_as_made(store: Store) -> None:
    job = await completed(store)

    await refused(store, replace(submission(job_id=job.id, now=store.now()), id="c-1"))

    assert not await store.has_change(job.id, "c-1")


async def test_a_change_of_another_job_is_not_mine(store: Store) -> None:
    change = replace(submission(now=store.now()), id="c-1")
    await made(store, change)
    neighbour = await submit(store)

    assert not await store.has_change(neighbour.id, "c-1")


async def test_a_change_that_tells_nothing_is_known_as_made_too(store: Store) -> None:
    job = await completed(store)
    assert job.purge_at is not None

    await made(store, replace(sure(lifecycle.purge(job, now=job.purge_at)), id="c-1"))

    assert await store.has_change(job.id, "c-1")


# known


async def test_known_are_the_ids_that_have_a_job(store: Store, other: Store) -> None:
    active, ended, purging = await submit(store), await completed(store), await marked(store, await completed(store))

    found = await other.existing_ids([UNKNOWN, active.id, ended.id, purging.id])

    assert found == {active.id, ended.id, purging.id}


async def test_reading_moves_nothing(store: Store) -> None:
    job = await submit(store)

    for _ in range(3):
        await store.find(Filter())

    assert await held(store, job.id) == job
