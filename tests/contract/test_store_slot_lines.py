"""The line of a slot: `one_per` with `on_conflict="queue"` or `"replace"`. Held by every store."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest
from msgspec.structs import replace

from packhorse.core import lifecycle
from packhorse.core.limits import Fair
from packhorse.core.models import Job, TaskId
from packhorse.core.plan import Need, Plan, StagePlan, Status
from packhorse.errors import SlotTaken
from packhorse.store.base import Store
from tests.contract import builders as b
from tests.contract.builders import SLOT
from tests.contract.limited import at_once

QUEUE = Plan("convert", (StagePlan("only", kind="only"),), slot="convert", on_conflict="queue", fingerprint="queue-1")
REFUSE = replace(QUEUE, on_conflict="refuse", fingerprint="refuse-1")
REPLACE = replace(QUEUE, on_conflict="replace", fingerprint="replace-1")
TWO = replace(
    QUEUE,
    stages=(
        StagePlan("onnx", kind="onnx"),
        StagePlan("only", kind="only"),
        StagePlan("both", kind="both", needs=(Need("a", "onnx", "needs"), Need("b", "only", "needs"))),
    ),
    fingerprint="two-1",
)


async def lined_up(store: Store, count: int, plan: Plan = QUEUE, **options: Any) -> list[Job]:
    """The first holds the slot."""
    return [await b.submit(store, plan, **options) for _ in range(count)]


async def line(store: Store) -> list[str]:
    return await store.line(SLOT, limit=100)


async def due(store: Store) -> list[str]:
    """The jobs that a worker could start, read without starting them."""
    return sorted({job_id for job_id, _ in await b.offered(store)})


async def test_only_the_first_of_a_line_is_due(store: Store, other: Store) -> None:
    first, second, third = await lined_up(store, 3)

    assert await other.line(SLOT, limit=100) == [first.id, second.id, third.id]
    assert await other.line(SLOT, limit=2) == [first.id, second.id]
    assert await other.holder(SLOT) == first.id
    assert await b.waiting(store) == [(first.id, b.ONLY)]


async def test_nobody_is_in_the_line_of_a_slot_that_nobody_took(store: Store) -> None:
    assert await line(store) == []


@pytest.mark.parametrize("end", [b.finish, b.fail])
async def test_the_end_of_a_job_hands_its_slot_to_the_next(store: Store, end: Any) -> None:
    _, second, third = await lined_up(store, 3)

    await end(store, await b.claim_one(store))

    assert await line(store) == [second.id, third.id]
    claimed = await b.claim_one(store)
    assert claimed.job.id == second.id
    assert await b.waiting(store) == []


async def test_a_whole_line_runs_one_after_the_other_in_the_order_of_its_commits(store: Store) -> None:
    jobs = await lined_up(store, 5)
    ran = []

    for _ in jobs:
        [claimed] = await b.claim(store)
        ran.append(claimed.job.id)
        await b.finish(store, claimed)

    assert ran == b.ids(jobs)
    assert (await store.holder(SLOT), await line(store)) == (None, [])


async def test_all_first_stages_of_the_next_job_become_due(store: Store) -> None:
    first, second = await lined_up(store, 2, TWO)
    await b.cancel(store, first.id)

    assert sorted(await b.waiting(store)) == [(second.id, TaskId("only", 0)), (second.id, TaskId("onnx", 0))]


async def test_a_job_that_is_cancelled_while_it_waits_leaves_the_line(store: Store) -> None:
    first, second, third = await lined_up(store, 3)

    cancelled = await b.cancel(store, second.id)

    assert cancelled.status is Status.CANCELLED
    assert await line(store) == [first.id, third.id]
    await b.finish(store, await b.claim_one(store))
    assert await b.waiting(store) == [(third.id, b.ONLY)]


async def test_a_job_that_expires_while_it_waits_leaves_the_line(store: Store) -> None:
    first, second = await lined_up(store, 2)

    await b.made(store, lifecycle.expire(second, now=store.now() + 90_000))

    assert await line(store) == [first.id]


async def test_a_running_job_keeps_its_slot_until_what_runs_has_stopped(store: Store) -> None:
    _, second = await lined_up(store, 2)
    claimed = await b.claim_one(store)
    stopping = await b.cancel(store, claimed.job.id)

    assert await line(store) == [stopping.id, second.id]
    assert await due(store) == []
    await b.finish(store, claimed)
    assert await b.waiting(store) == [(second.id, b.ONLY)]


async def test_a_job_with_a_delay_waits_for_the_slot_first_and_then_for_its_time(timed: Any, clock: Any) -> None:
    first = await b.submit(timed, QUEUE)
    second = await b.submit(timed, QUEUE, delay=50.0)
    await b.cancel(timed, first.id)

    assert await line(timed) == [second.id]
    assert await due(timed) == []
    clock.forward(60.0)
    assert await b.waiting(timed) == [(second.id, b.ONLY)]


async def test_a_retry_joins_the_end_of_the_line(store: Store) -> None:
    first, second, third = await lined_up(store, 3)
    await b.fail(store, await b.claim_one(store))

    await b.made(store, lifecycle.retry(await b.held(store, first.id), now=store.now()))

    assert await line(store) == [second.id, third.id, first.id]


async def test_a_job_may_leave_and_join_again_in_one_commit(store: Store) -> None:
    first, second, third = await lined_up(store, 3)
    out = b.sure(lifecycle.cancel(second, now=store.now()))
    again = b.sure(lifecycle.retry(out.after, now=store.now()))

    assert await store.commit([out, again]) == [None, None]

    assert await line(store) == [first.id, third.id, second.id]


async def test_submits_and_ends_in_one_commit_follow_each_other(store: Store) -> None:
    first = b.submission(QUEUE, now=store.now())
    second, third = b.submission(QUEUE, now=store.now()), b.submission(QUEUE, now=store.now())
    gone = b.sure(lifecycle.cancel(first.after, now=store.now()))
    fourth = b.submission(QUEUE, now=store.now())

    assert await store.commit([first, second, third, gone, fourth]) == [None] * 5

    assert await line(store) == [second.after.id, third.after.id, fourth.after.id]
    assert await b.waiting(store) == [(second.after.id, b.ONLY)]


async def test_a_pipeline_that_refuses_is_refused_while_others_wait_for_its_slot(store: Store) -> None:
    first, second = await lined_up(store, 2)

    error = await b.refused(store, b.submission(REFUSE, now=store.now()))

    assert isinstance(error, SlotTaken)
    assert error.facts["active_job_id"] == first.id
    assert await line(store) == [first.id, second.id]


async def test_a_job_of_a_pipeline_that_refuses_hands_over_too(store: Store) -> None:
    first = await b.submit(store, REFUSE)
    second = await b.submit(store, QUEUE)

    await b.finish(store, await b.claim_one(store))

    assert await line(store) == [second.id]
    assert await b.waiting(store) == [(second.id, b.ONLY)]
    assert (await b.held(store, first.id)).status is Status.COMPLETED


async def test_a_retry_of_a_pipeline_that_replaces_is_refused_while_the_slot_is_taken(store: Store) -> None:
    old = await b.failed(store, REPLACE)
    active = await b.submit(store, REPLACE)

    error = await b.refused(store, lifecycle.retry(old, now=store.now()))

    assert isinstance(error, SlotTaken)
    assert await line(store) == [active.id]


async def test_a_refused_submit_does_not_join(store: Store) -> None:
    first = await b.submit(store, QUEUE, key="k")

    await b.refused(store, b.submission(QUEUE, key="k", now=store.now()))

    assert await line(store) == [first.id]


async def test_lines_of_users_do_not_meet(store: Store) -> None:
    mine, yours = await b.submit(store, QUEUE), await b.submit(store, QUEUE, user="bob")

    assert await due(store) == sorted([mine.id, yours.id])


async def test_the_end_of_the_job_before_is_news_about_the_next(store: Store, other: Store) -> None:
    first, second = await lined_up(store, 2)
    cursor, _ = await other.changed_jobs(None)
    await b.cancel(store, first.id)

    _, news = await other.changed_jobs(cursor)

    assert news is None or second.id in news


@pytest.mark.parametrize("seed", range(4))
async def test_races_for_a_slot_start_one_job_at_a_time(store: Store, other: Store, seed: int) -> None:
    """Submits, cancels and ends through two handles at once: whoever holds is due or runs, and at the end nobody is."""
    rng, jobs, ran = random.Random(seed), [], []

    async def act(handle: Store) -> None:
        for _ in range(12):
            await asyncio.sleep(0)
            if rng.random() < 0.5:
                jobs.append(await b.submit(handle, QUEUE))
            elif rng.random() < 0.3 and jobs:
                await b.settled(handle, rng.choice(jobs).id, _cancelled(handle))
            else:
                claims = await b.claim(handle)
                assert len(claims) <= 1
                for claimed in claims:
                    assert await handle.holder(SLOT) == claimed.job.id
                    ran.append(claimed.job.id)
                    await b.finish(handle, claimed)

    await asyncio.gather(act(store), act(other), act(store))
    while await line(store):
        [claimed] = await b.claim(store)
        ran.append(claimed.job.id)
        await b.finish(store, claimed)

    ended = await store.get(b.ids(jobs))
    assert all(job is not None and job.status.is_terminal for job in ended)
    assert len(ran) == len({*ran})


def _cancelled(store: Store) -> Any:
    return lambda job: None if job.status.is_terminal else lifecycle.cancel(job, now=store.now())


@pytest.mark.parametrize("options", [{"limits": (at_once(1, "name:gpu", "gpu"),)}, {"fair": Fair("user")}])
async def test_a_job_that_is_handed_the_slot_keeps_to_limits_and_turns(store: Store, options: dict[str, Any]) -> None:
    plan = replace(QUEUE, stages=(StagePlan("only", kind="only", **options),), fingerprint=f"q-{'-'.join(options)}")
    await lined_up(store, 2, plan, user="ann")
    await b.submit(store, plan, user="bob")
    started: list[str] = []

    while claims := await b.claim(store, 1 if "fair" in options else 10):
        started.append(" ".join(each.job.user for each in claims))
        for each in claims:
            await b.finish(store, each)

    assert sorted(started) == ["ann", "ann", "bob"]
    assert [len(state.holders) for state in await store.limit_states(name="gpu", limit=10)] in ([], [0])


async def test_a_group_that_wants_a_slot_and_ends_its_holder_hands_it_to_who_waits(store: Store) -> None:
    """Pipelines that share a slot may differ in what a second submit does."""
    holder = await b.started(store, REFUSE)
    waiting = await b.submit(store, QUEUE)
    second = b.submission(REFUSE, now=store.now())

    refused, ended = await store.commit([second, b.finishing(holder, now=store.now())])

    assert (type(refused), ended) == (SlotTaken, None)
    assert await store.holder(SLOT) == waiting.id
    assert await due(store) == [waiting.id]
