"""Claims that meet: nobody waits for anybody, nobody gets what another has, and each takes the same few statements."""

from __future__ import annotations

import asyncio
import math
import time

import pytest

from packhorse.core import lifecycle
from packhorse.core.changes import Change
from packhorse.core.models import Job, TaskId
from packhorse.core.plan import Status
from packhorse.store.postgres import PostgresStore
from packhorse.store.postgres.batch import SQL as LOOKUPS
from packhorse.store.postgres.claim import SQL as CLAIM
from packhorse.store.postgres.limits import PROMOTED
from tests.contract.builders import (
    APART,
    CHAIN,
    KINDS,
    LEASE,
    ONLY,
    cancel,
    claim,
    claim_one,
    finish,
    held,
    ids,
    made,
    split,
    starter,
    submit,
    submit_many,
    sure,
    tasks,
    waiting,
)
from tests.contract.stores import Clock
from tests.store.postgres.inside import Raw, blocks, call, recorded, somebody_waits_for

MORE_THAN_THE_MARGIN = 300


@pytest.mark.parametrize("table", ["jobs", "due"])
async def test_a_claim_passes_by_what_somebody_else_has_locked(pg: PostgresStore, raw: Raw, table: str) -> None:
    jobs = await submit_many(pg, MORE_THAN_THE_MARGIN + 2)
    key = "id" if table == "jobs" else "job_id"
    rival = raw.transaction()
    await rival.start()
    await raw.execute(f"SELECT FROM {table} WHERE {key} < $1 FOR UPDATE", jobs[MORE_THAN_THE_MARGIN].id)

    claims = await claim(pg, 1)

    assert [claimed.job.id for claimed in claims] == [jobs[MORE_THAN_THE_MARGIN].id]
    await rival.rollback()


async def test_what_was_locked_is_claimed_when_it_is_free_again(pg: PostgresStore, raw: Raw) -> None:
    job = await submit(pg)
    rival = raw.transaction()
    await rival.start()
    await raw.execute("SELECT FROM jobs FOR UPDATE")
    assert await claim(pg) == []

    await rival.rollback()

    assert await waiting(pg) == [(job.id, ONLY)]


async def test_a_claim_locks_no_more_than_it_takes(pg: PostgresStore, raw: Raw) -> None:
    """Else one that wants a single task would hide a whole page of others from everybody else."""
    jobs = await submit_many(pg, 10)
    start, seen = starter(pg), []

    def decide(job: Job, at: TaskId) -> Change:
        seen.append(job.id)
        return start(job, at) or pytest.fail("a job that waits can be started")

    claims = await pg.claim({"default": 3}, KINDS, decide)

    assert ids([claimed.job for claimed in claims]) == seen == ids(jobs[:3])
    assert await raw.fetchval("SELECT count(*) FROM due") == 7
    assert await raw.fetchval("SELECT count(*) FROM leases") == 3


async def _claimed_around(url: str, pg: PostgresStore) -> tuple[list[str], list[str]]:
    """What two claims get, of which the second runs from beginning to end inside the first."""
    loop, start = asyncio.get_running_loop(), starter(pg)
    second: list[str] = []

    def decide(job: Job, at: TaskId) -> Change | None:
        if not second:
            inner = asyncio.run_coroutine_threadsafe(_claimed_elsewhere(url), aside)
            second.extend(inner.result(30))
        return start(job, at)

    aside = asyncio.new_event_loop()
    running = loop.run_in_executor(None, aside.run_forever)
    claims = await pg.claim({"default": 2}, KINDS, decide)
    aside.call_soon_threadsafe(aside.stop)
    await running
    aside.close()
    return ids([claimed.job for claimed in claims]), second


async def test_two_claims_in_flight_do_not_wait_for_each_other(url: str, pg: PostgresStore) -> None:
    jobs = await submit_many(pg, 4)
    pg._rivals_until = math.inf  # as after a claim that came too late

    first, second = await _claimed_around(url, pg)

    assert (first, second) == (ids(jobs[:2]), ids(jobs[2:]))


async def test_a_claim_that_comes_too_late_takes_what_is_next_and_locks_from_then_on(
    url: str, pg: PostgresStore
) -> None:
    jobs, began = await submit_many(pg, 4), time.monotonic()

    first, second = await _claimed_around(url, pg)

    assert (second, first) == (ids(jobs[:2]), ids(jobs[2:]))
    assert pg._rivals_until > began


async def _claimed_elsewhere(url: str) -> list[str]:
    store = await PostgresStore.open(url)
    claims = await claim(store, 2, worker="other")
    await store.close()
    return ids([claimed.job for claimed in claims])


async def test_a_cancel_that_meets_a_claim_neither_waits_for_ever_nor_is_lost(pg: PostgresStore, raw: Raw) -> None:
    """A claim that waited for the job, holding the entry that the cancel wants, would wait for ever."""
    job = await submit(pg)
    rival = raw.transaction()
    await rival.start()
    await raw.execute("SELECT FROM due FOR UPDATE")  # as a claim does
    stop = asyncio.create_task(pg.commit([sure(lifecycle.cancel(job, now=1.0))]))
    await somebody_waits_for(raw)

    assert await raw.fetch("SELECT FROM jobs FOR NO KEY UPDATE SKIP LOCKED") == []
    await rival.rollback()

    assert await stop == [None]
    assert (await held(pg, job.id)).status is Status.CANCELLED


async def test_callers_that_claim_together_share_one_transaction(pg: PostgresStore) -> None:
    jobs = await submit_many(pg, 20)
    await claim(pg, kinds=["another"])

    async with recorded(pg) as recorder:
        found = await asyncio.gather(*(claim(pg, 2) for _ in range(10)))

    assert sorted(claimed.job.id for claims in found for claimed in claims) == ids(jobs)
    assert [len(claims) for claims in found] == [2] * 10
    assert len([query for query, _ in recorder.statements if "SKIP LOCKED" in query]) <= 4


async def test_callers_with_different_kinds_get_what_they_can_run(pg: PostgresStore) -> None:
    only, chain = await submit_many(pg, 2), await submit_many(pg, 2, CHAIN)

    few, all_kinds = await asyncio.gather(claim(pg, 1, kinds=["only"]), claim(pg, 10, worker="w2"))

    assert ids([claimed.job for claimed in few]) == [only[0].id]
    assert sorted(ids([claimed.job for claimed in all_kinds])) == sorted(ids([only[1], *chain]))


async def test_a_mistake_of_one_caller_is_not_told_to_another(pg: PostgresStore) -> None:
    await submit_many(pg, 3)

    def mistaken(_job: Job, _at: TaskId) -> Change | None:
        raise ZeroDivisionError

    found = await asyncio.gather(pg.claim({"default": 1}, KINDS, mistaken), claim(pg, 2), return_exceptions=True)

    assert isinstance(found[0], ZeroDivisionError)
    assert not isinstance(found[1], BaseException)
    assert len(found[1]) == 2


async def test_a_claim_of_many_takes_as_many_statements_as_a_claim_of_one(pg: PostgresStore) -> None:
    counts = []
    for n in (1, 1, 100):  # at first, plans are read
        await submit_many(pg, n)
        async with recorded(pg) as recorder:
            assert len(await claim(pg, n)) == n
        counts.append(len(recorder.statements))

    assert counts[1] == counts[2]


async def test_elements_that_need_results_take_as_many_statements_as_one(pg: PostgresStore) -> None:
    counts = []
    for n in (1, 1, 50):
        await split(pg, n)
        async with recorded(pg) as recorder:
            assert len(await claim(pg, n)) == n
        counts.append(len(recorder.statements))

    assert counts[1] == counts[2]


async def test_an_entry_taken_back_while_it_becomes_due_does_not_come(
    timed: PostgresStore, raw: Raw, clock: Clock
) -> None:
    """A claim is just moving the entry from the delayed to the due; the cancel must find it in either place."""
    job = await submit(timed, delay=60.0)
    clock.forward(61.0)
    moving = raw.transaction()
    await moving.start()
    await raw.execute("INSERT INTO due SELECT queue, kind, rank, job_id, stage, element FROM delayed")
    await raw.execute("DELETE FROM delayed")

    stop = asyncio.create_task(timed.commit([sure(lifecycle.cancel(job, now=clock()))]))
    await somebody_waits_for(raw)
    await moving.commit()

    assert await stop == [None]
    assert await raw.fetchval("SELECT count(*) FROM due") == 0


async def test_what_becomes_due_is_moved_once_by_claims_that_meet(timed: PostgresStore, raw: Raw, clock: Clock) -> None:
    first, second = await submit(timed, delay=60.0), await submit(timed, delay=61.0)
    clock.forward(62.0)
    rival = raw.transaction()
    await rival.start()
    await raw.execute("SELECT FROM delayed WHERE job_id = $1 FOR UPDATE", first.id)

    claims = await claim(timed)

    assert tasks(claims) == [(second.id, ONLY)]
    await rival.rollback()
    assert await waiting(timed) == [(first.id, ONLY)]


async def test_a_task_that_waits_for_its_time_is_started_by_nobody_who_was_told_its_name(timed: PostgresStore) -> None:
    job = await submit(timed, delay=60.0)

    [error] = await timed.commit([lifecycle.start(job, ONLY, token="t", worker="w", lease=LEASE, now=timed.now())])

    assert error is not None
    assert await timed.held_by("w", limit=10) == []


async def test_parallel_tasks_of_one_job_are_claimed_one_after_the_other(pg: PostgresStore) -> None:
    job = await submit(pg, APART)
    left = await claim_one(pg)
    right = await claim_one(pg)

    await finish(pg, left)
    done = await finish(pg, right)

    assert done.status is Status.COMPLETED
    assert (await held(pg, job.id)).version == job.version + 4


async def test_a_job_cancelled_and_retried_is_claimed_once(pg: PostgresStore) -> None:
    job = await cancel(pg, (await submit(pg)).id)
    await made(pg, lifecycle.retry(job, now=pg.now()))

    assert await waiting(pg) == [(job.id, ONLY)]


# By the server's own clock


async def test_what_is_not_due_for_long_costs_those_who_look_for_what_is_nothing(pg: PostgresStore, raw: Raw) -> None:
    job = await submit(pg)
    await raw.execute(
        "INSERT INTO delayed SELECT 4e9 + n, 'default', 'only', 0, gen_random_uuid(), 'only', 0, 0.0"
        " FROM generate_series(1, 20000) AS n"
    )
    await raw.execute("ANALYZE delayed")

    claiming = await blocks(pg, lambda session: session.fetch(CLAIM.promote, None, PROMOTED))
    asking = await blocks(pg, lambda session: session.fetch(LOOKUPS.heads, "default", ["only"], None))
    counting = await blocks(pg, lambda session: call(pg.ahead, session, job, ONLY))

    assert max(claiming, asking, counting) < 30


async def test_jobs_whose_deadline_is_far_cost_the_sweep_nothing(pg: PostgresStore) -> None:
    await submit_many(pg, 2000)

    assert await blocks(pg, lambda session: call(pg.expired, session, 10)) < 30
