"""How far a job is: by weight, from 0 to 100, and within a run never backwards."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from packhorse.core import lifecycle
from packhorse.core.changes import Change
from packhorse.core.models import Result, Stage, Task, TaskId
from packhorse.core.plan import Status, TaskStatus
from packhorse.schemas import progress
from packhorse.schemas.progress import SHORT, job_percent
from packhorse.store.base import Claim, Progress, Store
from packhorse.store.sqlite import SqliteStore
from tests.contract.builders import (
    BROKEN,
    FAN,
    KINDS,
    cancel,
    claim,
    claim_one,
    completed,
    each,
    fail,
    finish,
    gather,
    held,
    lease_of,
    needs,
    plan,
    report,
    settled,
    split,
    stage,
    started,
    submit,
)
from tests.contract.stores import Clock, quick_folder
from tests.worker.builders import EPOCH, lose, retry

WEIGHED = plan(
    stage("onnx", weight=1.0), stage("bie", needs("onnx"), weight=6.0), stage("nef", needs("bie"), weight=3.0)
)


async def seen(store: Store, job_id: str) -> float:
    """What a person sees of it."""
    return job_percent(await held(store, job_id), await reported(store, job_id))


async def reported(store: Store, job_id: str) -> dict[TaskId, Progress]:
    return (await store.progress([job_id])).get(job_id, {})


# The whole


async def test_a_job_that_waits_is_at_the_start_and_one_that_completed_at_the_end(store: Store) -> None:
    done, waiting = await completed(store), await submit(store)

    assert await seen(store, waiting.id) == 0.0
    assert await seen(store, done.id) == 100.0


async def test_each_stage_counts_by_its_weight(store: Store) -> None:
    job = await submit(store, WEIGHED)
    found = [await seen(store, job.id)]

    for _ in range(2):
        claimed = await claim_one(store)
        await store.report([report(claimed, 1.0, 2.0)])
        found.append(await seen(store, job.id))
        await finish(store, claimed)
        found.append(await seen(store, job.id))

    assert found == [0.0, 5.0, 10.0, 40.0, 70.0]


async def test_elements_share_the_weight_of_their_stage(store: Store) -> None:
    job = await split(store, 4)
    pages = await claim(store)
    found = [await seen(store, job.id)]

    await finish(store, pages[0])
    await store.report([report(pages[1], 5.0, 10.0)])
    found.append(await seen(store, job.id))

    assert found == [33.33, pytest.approx(100 / 3 * (1 + 1.5 / 4), abs=0.01)]


async def test_a_stage_over_an_empty_list_is_done(store: Store) -> None:
    job = await split(store, 0)

    assert await seen(store, job.id) == 66.67
    assert progress.stage_percent(job, "page", {}) == 100.0
    assert progress.current_stage(job) == "book"


async def test_an_attempt_that_starts_over_does_not_take_the_whole_back(store: Store, clock: Clock) -> None:
    first = await started(store)
    await store.report([report(first, 8.0, 10.0)])
    await fail(store, first, BROKEN)
    between = await seen(store, first.job.id)
    clock.forward(60.0)
    second = await claim_one(store)

    await store.report([report(second, 1.0, 10.0)])

    job, told = await held(store, first.job.id), await reported(store, first.job.id)
    assert between == 80.0
    assert job_percent(job, told) == 80.0
    assert progress.stage_percent(job, "only", told) == 10.0


async def test_a_stage_that_was_stopped_shows_how_far_it_had_got(store: Store) -> None:
    claimed = await started(store)
    await store.report([report(claimed, 8.0, 10.0)])
    job_id, token = claimed.job.id, claimed.token

    await settled(store, job_id, lambda job: lifecycle.cancel(job, now=store.now()))
    await settled(store, job_id, lambda job: lifecycle.hand_back(job, claimed.task, token=token, now=store.now()))

    job = await held(store, job_id)
    assert job.status is Status.CANCELLED
    assert progress.stage_percent(job, "only", await reported(store, job_id)) == 80.0


async def test_what_reports_all_of_it_and_then_fails_was_not_at_its_end(store: Store) -> None:
    claimed = await started(store)
    await store.report([report(claimed, 10.0, 10.0)])
    before = await seen(store, claimed.job.id)

    job = await fail(store, claimed)

    assert job.status is Status.FAILED
    assert (before, await seen(store, job.id)) == (SHORT, SHORT)
    assert progress.stage_percent(job, "only", await reported(store, job.id)) == SHORT


async def test_what_reports_all_of_it_and_is_cancelled_was_not_at_its_end(store: Store) -> None:
    claimed = await started(store)
    await store.report([report(claimed, 10.0, 10.0)])
    job_id, token = claimed.job.id, claimed.token

    await settled(store, job_id, lambda job: lifecycle.cancel(job, now=store.now()))
    await settled(store, job_id, lambda job: lifecycle.hand_back(job, claimed.task, token=token, now=store.now()))

    job = await held(store, job_id)
    assert (job.status, await seen(store, job_id)) == (Status.CANCELLED, SHORT)
    assert progress.stage_percent(job, "only", await reported(store, job.id)) == SHORT


async def test_a_stage_that_never_started_says_why(store: Store) -> None:
    claimed = await started(store, FAN)

    await fail(store, claimed)

    stages = progress.stages_to_json(await held(store, claimed.job.id), {})
    assert [(stages[name]["status"], stages[name].get("reason")) for name in ("split", "page", "book")] == [
        ("failed", None),
        ("skipped", "stage split failed"),
        ("skipped", "stage split failed"),
    ]
    assert stages["page"]["progress"] == 0.0


async def test_a_stage_without_elements_is_completed_when_a_later_one_fails(store: Store) -> None:
    job = await split(store, 0)

    await fail(store, await claim_one(store))

    page = progress.stages_to_json(await held(store, job.id), {})["page"]
    assert (page["status"], "reason" in page) == ("completed", False)


async def test_elements_that_never_started_are_counted_and_say_why(store: Store) -> None:
    job = await split(store, 3)
    first = await claim_one(store)
    await finish(store, first)

    await cancel(store, job.id)

    page = progress.stages_to_json(await held(store, job.id), {})["page"]
    assert (page["status"], page["reason"]) == ("cancelled", "the job was cancelled")
    assert page["elements"] == {"total": 3, "completed": 1, "failed": 0, "running": 0, "skipped": 2}


async def test_one_failed_element_of_very_many_is_not_rounded_away(store: Store) -> None:
    job = await split(store, 2)
    done, failed = Task(TaskStatus.COMPLETED), Task(TaskStatus.FAILED)
    pages = Stage((failed, *[done] * 99_999))
    many = replace(job, status=Status.FAILED, stages=(job.stages[0], pages, *job.stages[2:]))

    assert progress.stage_percent(many, "page", {}) == 99.99


async def test_a_stage_that_will_be_tried_again_is_at_its_start(store: Store) -> None:
    claimed = await started(store)
    await store.report([report(claimed, 8.0, 10.0)])

    await fail(store, claimed, BROKEN)

    job = await held(store, claimed.job.id)
    assert progress.stage_percent(job, "only", await reported(store, job.id)) == 0.0


async def test_a_report_of_a_superseded_attempt_does_not_count(store: Store, clock: Clock) -> None:
    first = await started(store)
    await lose(store, first)
    await claim_one(store)

    await store.report([report(first, 9.0, 10.0)])

    assert await seen(store, first.job.id) == 0.0


async def test_a_new_run_begins_where_its_finished_stages_are(store: Store) -> None:
    job = await submit(store, WEIGHED)
    await finish(store, await claim_one(store))
    second = await claim_one(store)
    await store.report([report(second, 5.0, 10.0)])
    await fail(store, second)
    before = await seen(store, job.id)

    again = await retry(store, job.id)

    assert before == 40.0
    assert (again.run, await seen(store, job.id)) == (2, 10.0)


@pytest.mark.parametrize(
    ("current", "total", "percent", "of_whole"),
    [
        (5.0, None, 0.0, 0.0),
        (5.0, 0.0, 0.0, 0.0),
        (-5.0, 10.0, 0.0, 0.0),
        (15.0, 10.0, 100.0, 99.99),
        (5.0, -10.0, 0.0, 0.0),
    ],
)
async def test_odd_numbers_stay_between_nothing_and_all(
    store: Store, current: float, total: float | None, percent: float, of_whole: float
) -> None:
    claimed = await started(store)

    await store.report([report(claimed, current, total)])

    job, told = await held(store, claimed.job.id), await reported(store, claimed.job.id)
    assert job_percent(job, told) == of_whole
    assert progress.stage_percent(job, "only", told) == percent


# One stage


async def test_the_current_stage_is_the_earliest_unfinished_one(store: Store) -> None:
    job = await submit(store, WEIGHED)

    later = [await finish(store, await claim_one(store)) for _ in range(3)]

    assert [progress.current_stage(found) for found in (job, *later)] == ["onnx", "bie", "nef", None]


async def test_a_stage_that_does_not_know_its_elements_is_at_the_start(store: Store) -> None:
    job = await submit(store, FAN)

    assert progress.stage_percent(job, "page", {}) == 0.0


async def test_a_stage_is_as_far_as_its_elements_are_in_the_mean(store: Store) -> None:
    job = await split(store, 4)
    pages = await claim(store)
    await finish(store, pages[0])
    await store.report([report(pages[1], 1.0, 2.0)])

    assert progress.stage_percent(await held(store, job.id), "page", await reported(store, job.id)) == 37.5


async def test_a_stage_that_waits_for_its_next_attempt_reports_nothing(store: Store) -> None:
    claimed = await started(store)
    await store.report([report(claimed, 8.0, 10.0)])
    job = await fail(store, claimed, BROKEN)

    assert progress.stage_percent(job, "only", await reported(store, job.id)) == 0.0


# Never backwards

WEIGHED_FAN = plan(
    stage("split", weight=2.0, retries=2),
    stage("page", each("split"), weight=5.0, retries=2),
    stage("seal", each("page"), weight=0.5, retries=2),
    stage("book", gather("seal"), weight=3.0, retries=2),
    stage("cover", retries=2),
)
PLANS = [WEIGHED_FAN, WEIGHED, plan(stage("only", retries=1))]
ALL_KINDS = {*KINDS, "seal", "cover"}
ENDINGS: dict[str, Callable[..., Change]] = {
    "finish": partial(lifecycle.finish, result=Result(b"1"), width=2),
    "finish empty": partial(lifecycle.finish, result=Result(b"1"), width=0),
    "fail": partial(lifecycle.fail, error=BROKEN, luck=0.0),
    "lose": partial(lifecycle.lose, witnessed=True),
    "later": partial(lifecycle.later, seconds=1.0),
    "hand back": lifecycle.hand_back,
}
numbers = st.floats(-1e6, 1e6) | st.sampled_from([0.0, 1.0, 5.0, 10.0])


# Not shrunk: each step goes to a real store, and minutes are too long to wait for a shorter story.
@settings(max_examples=40, deadline=None, phases=[Phase.explicit, Phase.reuse, Phase.generate])
@given(st.data())
def test_whatever_stages_report_the_whole_never_goes_backwards_within_a_run(data: st.DataObject) -> None:
    asyncio.run(_watched(data))


async def _watched(data: st.DataObject) -> None:
    clock = Clock(EPOCH)
    with quick_folder() as folder:
        store = await SqliteStore.open(folder / "store.db", clock)
        try:
            await _story(store, clock, data)
        finally:
            await store.close()


async def _story(store: Store, clock: Clock, data: st.DataObject) -> None:
    job_id = (await submit(store, data.draw(st.sampled_from(PLANS)))).id
    claims: list[Claim] = []
    run, last = 1, 0.0
    for _ in range(data.draw(st.integers(5, 25))):
        clock.forward(61.0)
        claims += await claim(store, kinds=ALL_KINDS)
        await _step(store, job_id, claims, data)
        job = await held(store, job_id)
        now = job_percent(job, await reported(store, job_id))
        if job.run != run:
            run, last = job.run, 0.0
        assert 0.0 <= last <= now <= 100.0
        assert (now == 100.0) == (job.status is Status.COMPLETED)
        last = now


async def _step(store: Store, job_id: str, claims: list[Claim], data: st.DataObject) -> None:
    """Report or end an attempt, maybe one that no longer counts; or start the next run."""
    job = await held(store, job_id)
    if job.status.is_terminal:
        if data.draw(st.booleans()):
            await retry(store, job_id, data.draw(st.sampled_from(["*", job.plan.stages[-1].name])))
        return
    claimed = data.draw(st.sampled_from(claims))
    if data.draw(st.integers(0, 2)):
        await store.report([report(claimed, data.draw(numbers), data.draw(st.none() | numbers))])
    elif not (await store.renew([lease_of(claimed)], None)).lost:
        ending = ENDINGS[data.draw(st.sampled_from(sorted(ENDINGS)))]
        await settled(store, job_id, lambda job: ending(job, claimed.task, token=claimed.token, now=store.now()))
