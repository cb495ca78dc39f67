"""Purge, litter, bookmarks: what is old goes whole, and nothing else goes."""

from __future__ import annotations

import pytest

from packhorse.core import lifecycle
from packhorse.core.plan import DEFAULT_KEEP, Status
from packhorse.errors import Conflict
from packhorse.store.base import Filter, Store
from packhorse.store.collections.workers import get_bookmark, put_bookmark
from tests.contract.builders import (
    BROKEN,
    ONLY,
    SLOT,
    SLOTTED,
    UNKNOWN,
    cancel,
    cancelled,
    claim,
    completed,
    dump,
    fail,
    failed,
    finish,
    held,
    ids,
    line,
    made,
    marked,
    plan,
    refused,
    report,
    sample,
    stage,
    started,
    submit,
    sure,
    waiting,
)
from tests.contract.stores import Clock

pytestmark = pytest.mark.cluster

BRIEF = plan(stage("only"), keep={Status.COMPLETED: 60.0, Status.FAILED: 30.0})


# purgeable


async def test_an_ended_job_is_purgeable_when_its_time_is_over_and_not_before(timed: Store, clock: Clock) -> None:
    job = await completed(timed)
    clock.forward(DEFAULT_KEEP - 0.5)
    assert await timed.purgeable(limit=10) == []

    clock.forward(0.5)

    assert await timed.purgeable(limit=10) == [job]


async def test_each_status_is_kept_for_its_own_time(timed: Store, clock: Clock) -> None:
    _completed, broken = await completed(timed, BRIEF), await failed(timed, BRIEF)

    clock.forward(30.0)

    assert ids(await timed.purgeable(limit=10)) == [broken.id]


async def test_an_active_job_is_never_purgeable(timed: Store, clock: Clock) -> None:
    await submit(timed)
    await started(timed)

    clock.forward(100 * DEFAULT_KEEP)

    assert await timed.purgeable(limit=10) == []


async def test_a_job_whose_purge_was_begun_is_purgeable_until_it_is_erased(timed: Store, clock: Clock) -> None:
    job = await marked(timed, await completed(timed))

    found = await timed.purgeable(limit=10)

    assert found == [job]
    assert job.purge_at is not None
    assert job.purge_at > clock()


async def test_a_retried_job_is_not_purgeable_any_more(timed: Store, clock: Clock) -> None:
    job = await failed(timed)
    await made(timed, lifecycle.retry(job, now=clock()))

    clock.forward(100 * DEFAULT_KEEP)

    assert await timed.purgeable(limit=10) == []


async def test_a_purge_in_small_steps_takes_every_job(timed: Store, clock: Clock) -> None:
    for _ in range(5):
        await completed(timed)
    clock.forward(DEFAULT_KEEP)

    while found := await timed.purgeable(limit=2):
        assert len(found) <= 2
        for job in found:
            await made(timed, lifecycle.purge(job, now=clock()))
            await timed.erase(job.id)

    assert await timed.find(Filter()) == []


# erase


async def test_an_erased_job_has_left_nothing(store: Store, other: Store) -> None:
    claimed = await started(store, SLOTTED, key="k")
    assert await store.find_by_key("k") == (claimed.job.id, "")
    await store.report([report(claimed, 50)])
    await store.log([line(claimed.job, "hello")], keep=100)
    await store.sample([sample(claimed.job, 1.0)], keep=10)
    job = await marked(store, await finish(store, claimed))

    await store.erase(job.id)

    assert await other.get([job.id]) == [None]
    assert await other.events(job.id) == []
    assert await other.lines(job.id) == []
    assert await other.samples(job.id) == []
    assert await other.specs([job.id]) == {}
    assert await other.results([job.id]) == {}
    assert await other.progress([job.id]) == {}
    assert await other.existing_ids([job.id]) == set()
    assert await other.find_by_key("k") is None


async def test_an_erased_job_is_in_no_list(timed: Store, clock: Clock) -> None:
    job = await failed(timed)
    clock.forward(DEFAULT_KEEP)
    await marked(timed, job)

    await timed.erase(job.id)

    assert await timed.purgeable(limit=10) == []
    assert await timed.jobs_with_litter(limit=10) == []
    assert await timed.find(Filter(status=Status.FAILED)) == []


async def test_the_key_of_an_erased_job_may_be_used_again(store: Store) -> None:
    job = await marked(store, await completed(store, key="k"))
    await store.erase(job.id)

    again = await submit(store, key="k", fingerprint="g")

    assert await store.find_by_key("k") == (again.id, "g")


async def test_the_id_of_an_erased_job_has_no_past(store: Store) -> None:
    job = await marked(store, await completed(store))
    await store.erase(job.id)

    again = await submit(store, job_id=job.id)

    assert [event.n for event in await store.events(job.id)] == [1]
    assert await waiting(store) == [(again.id, ONLY)]


async def test_erasing_a_job_leaves_the_slot_to_who_holds_it_now(store: Store) -> None:
    old = await marked(store, await completed(store, SLOTTED))
    active = await submit(store, SLOTTED)

    await store.erase(old.id)

    assert await store.holder(SLOT) == active.id


async def test_erasing_a_job_leaves_its_neighbours_whole(store: Store) -> None:
    neighbour = await started(store, key="k2")
    await store.report([report(neighbour, 50)])
    await store.log([line(neighbour.job, "hello")], keep=100)
    await store.sample([sample(neighbour.job, 1.0)], keep=10)
    before = await dump(store)
    job = await marked(store, await cancelled(store, key="k"))

    await store.erase(job.id)

    assert await dump(store) == before


@pytest.mark.parametrize("point", ["submitted", "running", "completed", "retried"])
async def test_a_job_that_is_not_marked_is_left_alone(store: Store, point: str) -> None:
    if point == "submitted":
        job = await submit(store, key="k")
    elif point == "running":
        job = (await started(store, key="k")).job
    elif point == "completed":
        job = await completed(store, key="k")
    else:
        job = await made(store, lifecycle.retry(await failed(store, key="k"), now=store.now()))
    before = await dump(store)

    await store.erase(job.id)

    assert await dump(store) == before


async def test_erasing_twice_or_what_never_was_is_nothing(store: Store) -> None:
    job = await marked(store, await completed(store))
    await store.erase(job.id)

    await store.erase(job.id)
    await store.erase(UNKNOWN)

    assert await store.existing_ids([job.id, UNKNOWN]) == set()


# purge against retry


async def test_a_purge_decided_before_a_retry_is_refused(store: Store, other: Store) -> None:
    job = await failed(store, SLOTTED)
    assert job.purge_at is not None
    purge = sure(lifecycle.purge(job, now=job.purge_at))
    again = await made(other, lifecycle.retry(job, now=other.now()))

    error = await refused(store, purge)
    await store.erase(job.id)

    assert type(error) is Conflict
    assert await held(store, job.id) == again
    assert await store.holder(SLOT) == job.id


async def test_a_retry_decided_before_a_purge_is_refused_and_takes_no_slot(store: Store, other: Store) -> None:
    job = await failed(store, SLOTTED)
    retry = sure(lifecycle.retry(job, now=store.now()))
    await marked(other, job)

    error = await refused(store, retry)

    assert type(error) is Conflict
    assert (await held(store, job.id)).is_purging
    assert await store.holder(SLOT) is None
    assert await claim(store) == []


# littered


async def test_an_ended_job_with_spent_attempts_is_littered(store: Store, other: Store) -> None:
    job = await failed(store)

    assert await other.jobs_with_litter(limit=10) == [job]


async def test_a_job_that_went_well_at_once_is_not_littered(store: Store) -> None:
    await completed(store)

    assert await store.jobs_with_litter(limit=10) == []


async def test_an_active_job_is_not_littered_yet(store: Store) -> None:
    job = await fail(store, await started(store), BROKEN)
    assert job.has_litter
    assert await store.jobs_with_litter(limit=10) == []

    await cancel(store, job.id)

    assert ids(await store.jobs_with_litter(limit=10)) == [job.id]


async def test_a_tidied_job_is_not_littered_any_more(store: Store) -> None:
    job = await failed(store)

    await made(store, lifecycle.tidy(job, now=store.now()))

    assert await store.jobs_with_litter(limit=10) == []


async def test_the_littered_are_cut_at_the_limit(store: Store) -> None:
    jobs = [await failed(store) for _ in range(3)]

    found = await store.jobs_with_litter(limit=2)

    assert len(found) == 2
    assert {job.id for job in found} < set(ids(jobs))


# bookmarks and trimming


async def test_a_bookmark_is_where_it_was_put(store: Store, other: Store) -> None:
    assert await get_bookmark(other, "orphans") is None

    await put_bookmark(store, "orphans", "jobs/ü")

    assert await get_bookmark(other, "orphans") == "jobs/ü"


async def test_a_bookmark_moves(store: Store, other: Store) -> None:
    await put_bookmark(store, "orphans", "a")
    await put_bookmark(store, "else", "z")

    await put_bookmark(other, "orphans", "b")

    assert (await get_bookmark(store, "orphans"), await get_bookmark(store, "else")) == ("b", "z")


async def test_trimming_drops_nothing_but_what_serves_watchers(store: Store) -> None:
    await completed(store, key="k")
    claimed = await started(store)
    await store.log([line(claimed.job, "hello")], keep=100)
    await submit(store)
    before = await dump(store)

    await store.trim()

    assert await dump(store) == before
    assert len(await waiting(store)) == 1
