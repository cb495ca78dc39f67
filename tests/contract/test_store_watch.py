"""Watching: who waits is woken by anybody's commit, and can ask which jobs have something new."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from packhorse.store.base import Store
from packhorse.store.collections import workers
from packhorse.store.collections.workers import put_bookmark
from tests.contract.builders import (
    LEASE,
    cancel,
    card,
    claim,
    finish,
    lease_of,
    line,
    report,
    started,
    submit,
    submit_many,
)

LONG = 10.0
"""Seconds nobody has to wait in a store that works; a limit, not a measure."""


# changed


async def _reported(store: Store) -> None:
    await store.report([report(await started(store), 5)])


async def _logged(store: Store) -> None:
    await store.log([line(await submit(store), "hello")], keep=100)


async def _claimed(store: Store) -> None:
    await started(store)


async def _enrolled(store: Store) -> None:
    await workers.enroll(store, card())


async def _bookmarked(store: Store) -> None:
    await put_bookmark(store, "here", "now")


ANYTHING: dict[str, Callable[[Store], Awaitable[object]]] = {
    "commit": submit,
    "claim": _claimed,
    "report": _reported,
    "log": _logged,
    "enroll": _enrolled,
    "bookmark": _bookmarked,
}


@pytest.mark.parametrize("is_working", [False, True])
@pytest.mark.parametrize("commit", ANYTHING.values(), ids=ANYTHING)
async def test_who_waits_is_woken_by_anything_another_handle_commits(
    store: Store, other: Store, commit: Callable[[Store], Awaitable[object]], is_working: bool
) -> None:
    mark = await store.wait_for_change(None, 0)
    woken = asyncio.create_task(store.wait_for_change(mark, LONG * 2, is_working=is_working))
    await asyncio.sleep(0)

    await commit(other)

    assert await asyncio.wait_for(woken, LONG) != mark


async def test_who_waits_is_woken_by_its_own_handle_too(store: Store) -> None:
    mark = await store.wait_for_change(None, 0)
    woken = asyncio.create_task(store.wait_for_change(mark, LONG * 2))
    await asyncio.sleep(0)

    await submit(store)

    assert await asyncio.wait_for(woken, LONG) != mark


@pytest.mark.parametrize("is_between", [False, True])
async def test_who_works_is_told_of_what_becomes_due_by_its_own_handle(store: Store, is_between: bool) -> None:
    """Attempts that begin and end here need not wake it; what it could claim must, heard while it waits or before."""
    claimed = await started(store)
    mark = await store.wait_for_change(None, 0, is_working=True)
    mark = await store.wait_for_change(mark, 0.05, is_working=True)
    await finish(store, claimed)

    if is_between:
        await submit(store)
    woken = asyncio.create_task(store.wait_for_change(mark, LONG * 2, is_working=True))
    await asyncio.sleep(0)
    if not is_between:
        await submit(store)

    assert await asyncio.wait_for(woken, LONG) != mark


async def test_who_works_is_told_that_a_job_of_its_own_handle_is_to_stop(store: Store) -> None:
    claimed = await started(store)
    mark = await store.wait_for_change(None, 0, is_working=True)
    woken = asyncio.create_task(store.wait_for_change(mark, LONG * 2, is_working=True))
    await asyncio.sleep(0)

    await cancel(store, claimed.job.id)

    assert await asyncio.wait_for(woken, LONG) != mark


@pytest.mark.parametrize("turns", range(8))
async def test_who_is_told_to_stop_waiting_stops_even_if_something_came_at_that_moment(
    store: Store, turns: int
) -> None:
    """However many turns of the loop lie between the two: one who missed it would keep its worker from leaving."""
    has_looked = asyncio.Event()

    async def follow() -> None:
        mark: int | None = None
        while True:
            mark = await store.wait_for_change(mark, LONG)
            has_looked.set()

    watching = asyncio.create_task(follow())
    await has_looked.wait()  # it has a mark, and waits for what comes after

    await submit(store)
    for _ in range(turns):
        await asyncio.sleep(0)
    watching.cancel()
    done, left = await asyncio.wait([watching], timeout=LONG / 2)
    for each in left:
        each.cancel()

    assert done
    assert watching.cancelled()


async def test_what_was_committed_before_the_waiting_began_is_not_missed(store: Store, other: Store) -> None:
    mark = await store.wait_for_change(None, 0)
    await submit(other)

    found = await asyncio.wait_for(store.wait_for_change(mark, LONG * 2), LONG)

    assert found != mark


async def test_every_commit_can_be_waited_for_in_turn(store: Store, other: Store) -> None:
    mark = await store.wait_for_change(None, 0)

    for _ in range(5):
        await submit(other)
        found = await asyncio.wait_for(store.wait_for_change(mark, LONG * 2), LONG)
        assert found != mark
        mark = found


async def test_several_who_wait_are_all_woken(store: Store, other: Store) -> None:
    mark = await store.wait_for_change(None, 0)
    woken = [asyncio.create_task(store.wait_for_change(mark, LONG * 2)) for _ in range(3)]
    await asyncio.sleep(0)

    await submit(other)

    assert mark not in await asyncio.wait_for(asyncio.gather(*woken), LONG)


async def test_without_a_mark_nobody_waits(store: Store) -> None:
    mark = await asyncio.wait_for(store.wait_for_change(None, LONG * 2), LONG)

    assert isinstance(mark, int)


async def test_where_nothing_happens_the_mark_stays_the_same(store: Store) -> None:
    await submit(store)
    mark = await store.wait_for_change(None, 0)

    found = await store.wait_for_change(mark, 0.05)

    assert found == mark


async def test_reading_wakes_nobody(store: Store, other: Store) -> None:
    job = await submit(store)
    mark = await store.wait_for_change(None, 0)

    await other.get([job.id])
    await other.events(job.id)

    assert await store.wait_for_change(mark, 0.05) == mark


# touched


async def test_who_comes_without_a_cursor_is_told_to_look_at_everything(store: Store) -> None:
    await submit(store)

    _, ids = await store.changed_jobs(None)

    assert ids is None


async def test_nothing_new_is_an_empty_answer(store: Store) -> None:
    await submit(store)
    cursor, _ = await store.changed_jobs(None)

    _, ids = await store.changed_jobs(cursor)

    assert ids is not None
    assert set(ids) == set()


async def test_an_empty_store_has_a_cursor_from_which_nothing_is_missed(store: Store, other: Store) -> None:
    cursor, _ = await store.changed_jobs(None)

    job = await submit(other)

    _, ids = await store.changed_jobs(cursor)
    assert ids is None or set(ids) == {job.id}


async def test_the_jobs_changed_since_the_cursor_are_named_once_each(store: Store, other: Store) -> None:
    first, second, _third = await submit_many(store, 3)
    cursor, _ = await store.changed_jobs(None)

    await cancel(other, second.id)
    await cancel(other, first.id)

    _, ids = await store.changed_jobs(cursor)
    assert ids is not None
    assert sorted(ids) == [first.id, second.id]


async def test_a_watcher_that_follows_the_cursor_hears_of_each_change_once(store: Store, other: Store) -> None:
    jobs = await submit_many(store, 3)
    cursor, _ = await store.changed_jobs(None)
    heard: list[list[str]] = []

    for job in jobs:
        await cancel(other, job.id)
        cursor, ids = await store.changed_jobs(cursor)
        heard.append(sorted(ids or ()))

    assert heard == [[job.id] for job in jobs]


async def test_a_claimed_job_has_something_new(store: Store) -> None:
    job = await submit(store)
    cursor, _ = await store.changed_jobs(None)

    await claim(store)

    assert set((await store.changed_jobs(cursor))[1] or ()) == {job.id}


async def test_progress_and_log_are_something_new(store: Store) -> None:
    reporting, logging = await started(store), await started(store)
    cursor, _ = await store.changed_jobs(None)

    await store.report([report(reporting, 5)])
    await store.log([line(logging.job, "hello")], keep=100)

    assert set((await store.changed_jobs(cursor))[1] or ()) == {reporting.job.id, logging.job.id}


async def test_a_dropped_report_and_a_renewal_are_nothing_new(store: Store) -> None:
    claimed = await started(store)
    stale = report(claimed, 5)
    wrong = type(stale)(stale.job_id, stale.task, "somebody else", stale.run, stale.at)
    cursor, _ = await store.changed_jobs(None)

    await store.report([wrong])
    await store.renew([lease_of(claimed)], LEASE)

    assert set((await store.changed_jobs(cursor))[1] or ()) == set()


async def test_trimming_takes_nothing_from_a_watcher_that_is_a_little_behind(store: Store, other: Store) -> None:
    await submit_many(store, 3)
    cursor, _ = await store.changed_jobs(None)
    job = await submit(store)

    await other.trim()

    assert set((await store.changed_jobs(cursor))[1] or ()) == {job.id}
