"""Progress, log and samples: the latest is kept, the rest is bounded, and none of it is history."""

from __future__ import annotations

import pytest

from packhorse.core import lifecycle
from packhorse.core.models import Job
from packhorse.store.base import Progress, Store
from tests.contract.builders import (
    APART,
    BROKEN,
    FAN,
    LEFT,
    ONLY,
    RIGHT,
    UNKNOWN,
    claim,
    claim_one,
    completed,
    fail,
    finish,
    held,
    line,
    made,
    page,
    report,
    sample,
    settled,
    split,
    started,
    submit,
)

pytestmark = pytest.mark.cluster


async def _peak(store: Store, job: Job) -> float:
    return (await store.progress([job.id]))[job.id][ONLY].peak


async def _texts(store: Store, job: Job) -> list[str]:
    return [found.text for found in await store.lines(job.id)]


async def _again(store: Store, job: Job) -> Job:
    """The job, failed and retried by a person: its next run."""
    return await made(store, lifecycle.retry(await held(store, job.id), now=store.now()))


# progress


async def test_a_report_is_read_back_whole(store: Store, other: Store) -> None:
    claimed = await started(store)

    await store.report([report(claimed, 3, 12, at=7.5, message="page 3 of 12 ✓")])

    assert await other.progress([claimed.job.id]) == {
        claimed.job.id: {ONLY: Progress(ONLY, 1, 7.5, 3, 12, "page 3 of 12 ✓", 0.25)}
    }


async def test_a_job_that_has_reported_nothing_has_no_progress(store: Store) -> None:
    claimed = await started(store)

    assert await store.progress([claimed.job.id, UNKNOWN]) == {}


async def test_the_latest_report_replaces_the_one_before(store: Store) -> None:
    claimed = await started(store)

    await store.report([report(claimed, 10, at=1.0), report(claimed, 20, at=2.0, message="on")])
    await store.report([report(claimed, 30, at=3.0)])

    found = (await store.progress([claimed.job.id]))[claimed.job.id][ONLY]
    assert (found.current, found.at, found.message) == (30, 3.0, "")


async def test_every_task_has_progress_of_its_own(store: Store) -> None:
    job = await split(store, 12)
    claims = await claim(store)

    await store.report([report(claimed, claimed.task.element) for claimed in claims])

    found = (await store.progress([job.id]))[job.id]
    assert {at: progress.current for at, progress in found.items()} == {page(n): n for n in range(12)}


async def test_progress_of_several_jobs_is_told_apart(store: Store) -> None:
    first, second = await started(store), await started(store)

    await store.report([report(first, 1), report(second, 2)])

    found = await store.progress([second.job.id, first.job.id])
    assert {id: at[ONLY].current for id, at in found.items()} == {first.job.id: 1, second.job.id: 2}


async def test_a_report_under_a_superseded_token_is_dropped(store: Store) -> None:
    old = await started(store)
    await settled(store, old.job.id, lambda job: lifecycle.hand_back(job, ONLY, token=old.token, now=store.now()))
    new = await claim_one(store)
    await store.report([report(new, 5)])

    await store.report([report(old, 99, message="I am late")])

    found = (await store.progress([new.job.id]))[new.job.id][ONLY]
    assert (found.current, found.message, found.peak) == (5, "", 0.05)


async def test_a_report_after_the_end_of_the_attempt_is_dropped(store: Store) -> None:
    claimed = await started(store)
    await store.report([report(claimed, 50)])
    await finish(store, claimed)

    await store.report([report(claimed, 99)])

    assert (await store.progress([claimed.job.id]))[claimed.job.id][ONLY].current == 50


async def test_a_dropped_report_harms_no_neighbour(store: Store) -> None:
    first, gone, last = [await started(store) for _ in range(3)]
    await finish(store, gone)

    await store.report([report(first, 1), report(gone, 1), report(last, 1)])

    assert set(await store.progress([first.job.id, gone.job.id, last.job.id])) == {first.job.id, last.job.id}


async def test_the_peak_never_goes_back_within_an_attempt(store: Store) -> None:
    claimed = await started(store)
    await store.report([report(claimed, 80)])

    await store.report([report(claimed, 10)])

    found = (await store.progress([claimed.job.id]))[claimed.job.id][ONLY]
    assert (found.current, found.peak) == (10, 0.8)


async def test_the_peak_never_goes_back_within_a_run_when_the_next_attempt_starts_over(store: Store) -> None:
    claimed = await started(store)
    await store.report([report(claimed, 80)])
    await settled(
        store, claimed.job.id, lambda job: lifecycle.hand_back(job, ONLY, token=claimed.token, now=store.now())
    )
    again = await claim_one(store)

    await store.report([report(again, 10)])

    assert await _peak(store, again.job) == 0.8


async def test_the_peak_starts_anew_in_the_next_run(store: Store) -> None:
    claimed = await started(store)
    await store.report([report(claimed, 80)])
    await fail(store, claimed)
    await _again(store, claimed.job)
    again = await claim_one(store)

    await store.report([report(again, 10)])

    found = (await store.progress([again.job.id]))[again.job.id][ONLY]
    assert (found.run, found.peak) == (2, 0.1)


async def test_progress_without_a_total_has_no_peak(store: Store) -> None:
    claimed = await started(store)

    await store.report([report(claimed, 5, None)])

    found = (await store.progress([claimed.job.id]))[claimed.job.id][ONLY]
    assert (found.current, found.total, found.peak) == (5, None, 0.0)


async def test_more_than_all_is_all(store: Store) -> None:
    claimed = await started(store)

    await store.report([report(claimed, 300, 100)])

    assert await _peak(store, claimed.job) == 1.0


async def test_notes_are_no_history(store: Store) -> None:
    claimed = await started(store)
    events = await store.events(claimed.job.id)

    await store.report([report(claimed, 5)])
    await store.log([line(claimed.job, "hello")], keep=1000)
    await store.sample([sample(claimed.job, 1.0)], keep=10)

    assert await held(store, claimed.job.id) == claimed.job
    assert await store.events(claimed.job.id) == events


async def test_an_attempt_may_finish_after_it_has_reported(store: Store) -> None:
    """Notes have no version, so a change decided before a report is not refused."""
    claimed = await started(store)
    change = lifecycle.fail(claimed.job, ONLY, token=claimed.token, error=BROKEN, luck=0.0, now=store.now())

    await store.report([report(claimed, 5)])
    await made(store, change)

    assert (await held(store, claimed.job.id)).status is change.after.status


# log


async def test_lines_are_read_back_whole_in_the_order_they_came(store: Store, other: Store) -> None:
    job = await submit(store, APART)
    first = line(job, "übergröße ✓\n\tand more", task=LEFT, attempt=2, at=3.5)

    await store.log([first, line(job, "", task=RIGHT)], keep=1000)

    found = await other.lines(job.id)
    assert [(each.text, each.task, each.attempt, each.at) for each in found] == [
        ("übergröße ✓\n\tand more", LEFT, 2, 3.5),
        ("", RIGHT, 1, 1.0),
    ]


async def test_lines_are_numbered_and_the_numbers_rise(store: Store, other: Store) -> None:
    job = await submit(store)

    await store.log([line(job, "a"), line(job, "b")], keep=1000)
    await other.log([line(job, "c")], keep=1000)

    found = await store.lines(job.id)
    numbers = [each.n for each in found]
    assert [each.text for each in found] == ["a", "b", "c"]
    assert numbers == sorted(set(numbers))
    assert numbers[0] > 0


async def test_a_reader_of_the_log_resumes_by_number(store: Store) -> None:
    job = await submit(store)
    await store.log([line(job, text) for text in "abcdef"], keep=1000)
    seen: list[str] = []
    after = 0

    while found := await store.lines(job.id, after=after, limit=4):
        seen += [each.text for each in found]
        after = found[-1].n

    assert seen == list("abcdef")


async def test_a_reader_of_the_log_gets_no_more_than_the_limit(store: Store) -> None:
    job = await submit(store)
    await store.log([line(job, text) for text in "abcdef"], keep=1000)

    assert [each.text for each in await store.lines(job.id, limit=2)] == ["a", "b"]


async def test_the_log_of_one_stage_is_read_by_its_name(store: Store) -> None:
    job = await submit(store, APART)
    await store.log([line(job, f"{at.stage} {n}", task=at) for n in range(2) for at in (LEFT, RIGHT)], keep=1000)

    found = await store.lines(job.id, stage="right")

    assert [each.text for each in found] == ["right 0", "right 1"]


async def test_the_end_of_a_log_is_read_in_order_of_one_stage_too(store: Store) -> None:
    job = await submit(store, APART)
    await store.log([line(job, f"{at.stage} {n}", task=at) for n in range(4) for at in (LEFT, RIGHT)], keep=1000)

    async def last(limit: int, stage: str | None = None, after: int = 0) -> list[str]:
        found = await store.lines(job.id, after=after, limit=limit, stage=stage, newest=True)
        return [each.text for each in found]

    assert await last(3) == ["right 2", "left 3", "right 3"]
    assert await last(2, "left") == ["left 2", "left 3"]
    assert await last(9, "left", after=5) == ["left 3"]
    assert len(await last(9)) == 8


async def test_a_log_over_its_bytes_loses_its_oldest_lines_and_no_more(store: Store) -> None:
    job = await submit(store)

    await store.log([line(job, text * 4) for text in "abcde"], keep=10)

    assert await _texts(store, job) == ["dddd", "eeee"]


async def test_a_log_of_exactly_its_bytes_loses_nothing(store: Store) -> None:
    job = await submit(store)

    await store.log([line(job, text * 5) for text in "ab"], keep=10)

    assert await _texts(store, job) == ["aaaaa", "bbbbb"]


async def test_a_log_is_counted_in_bytes_not_in_letters(store: Store) -> None:
    job = await submit(store)

    await store.log([line(job, text) for text in ("ääää", "öööö", "üüüü")], keep=17)

    assert await _texts(store, job) == ["öööö", "üüüü"]


async def test_a_log_stays_within_its_bytes_over_many_calls(store: Store) -> None:
    job = await submit(store)

    for n in range(60):
        await store.log([line(job, "ü" * (n % 7)), line(job, "x" * (n % 5))], keep=50)

    texts = await _texts(store, job)
    assert 35 < sum(len(text.encode()) for text in texts) <= 50


async def test_numbers_go_on_after_lines_were_dropped(store: Store) -> None:
    job = await submit(store)
    await store.log([line(job, "aaaa"), line(job, "bbbb")], keep=1000)
    [_, last] = await store.lines(job.id)

    await store.log([line(job, "cccc")], keep=4)

    [found] = await store.lines(job.id)
    assert (found.text, found.n) == ("cccc", last.n + 1)


async def test_numbers_go_on_after_every_line_was_dropped(store: Store) -> None:
    job = await submit(store)
    await store.log([line(job, "a" * 100), line(job, "b" * 100)], keep=10)
    assert await store.lines(job.id) == []

    await store.log([line(job, "c")], keep=10)

    assert [(each.text, each.n) for each in await store.lines(job.id)] == [("c", 3)]


async def test_the_logs_of_two_jobs_in_one_call_are_kept_and_bounded_apart(store: Store) -> None:
    first, second = await submit(store), await submit(store)

    await store.log([line(job, text * 4) for text in "abc" for job in (second, first)], keep=8)

    assert await _texts(store, first) == ["bbbb", "cccc"]
    assert await _texts(store, second) == ["bbbb", "cccc"]


async def test_logging_nothing_is_nothing(store: Store) -> None:
    job = await submit(store)

    await store.log([], keep=10)
    await store.sample([], keep=10)
    await store.report([])

    assert await store.lines(job.id) == []


async def test_a_job_without_a_log_has_no_lines_and_no_samples(store: Store) -> None:
    job = await submit(store)

    assert await store.lines(job.id) == []
    assert await store.samples(job.id) == []
    assert await store.lines(UNKNOWN) == []


# samples


async def test_samples_are_read_back_whole_in_the_order_of_time(store: Store, other: Store) -> None:
    job = await submit(store, APART)
    samples = [sample(job, n, task=LEFT, cpu=n / 8, memory=n * 2**40) for n in range(3)]

    await store.sample(samples, keep=10)

    assert await other.samples(job.id) == samples


async def test_a_job_keeps_the_newest_samples(store: Store) -> None:
    job = await submit(store)
    await store.sample([sample(job, float(n)) for n in range(5)], keep=3)

    await store.sample([sample(job, 5.0)], keep=3)

    assert [each.at for each in await store.samples(job.id)] == [3.0, 4.0, 5.0]


async def test_as_many_samples_as_may_be_kept_are_kept(store: Store) -> None:
    job = await submit(store)

    await store.sample([sample(job, float(n)) for n in range(3)], keep=3)

    assert [each.at for each in await store.samples(job.id)] == [0.0, 1.0, 2.0]


async def test_samples_of_parallel_tasks_taken_at_one_time_are_told_apart(store: Store) -> None:
    job = await submit(store, APART)

    await store.sample([sample(job, 1.0, task=at, cpu=cpu) for at, cpu in ((LEFT, 0.25), (RIGHT, 0.5))], keep=10)

    assert {each.task: each.cpu for each in await store.samples(job.id)} == {LEFT: 0.25, RIGHT: 0.5}


async def test_of_samples_taken_at_one_time_no_more_are_dropped_than_must_be(store: Store) -> None:
    job = await submit(store, FAN)
    crowd = [sample(job, 2.0, task=page(n)) for n in range(4)]

    await store.sample([sample(job, 1.0), *crowd], keep=3)

    found = await store.samples(job.id)
    assert (len(found), {each.at for each in found}) == (3, {2.0})


async def test_the_samples_of_two_jobs_are_bounded_apart(store: Store) -> None:
    first, second = await submit(store), await submit(store)
    await store.sample([sample(first, float(n)) for n in range(3)], keep=3)

    await store.sample([sample(second, float(n)) for n in range(5)], keep=3)

    assert [each.at for each in await store.samples(first.id)] == [0.0, 1.0, 2.0]
    assert [each.at for each in await store.samples(second.id)] == [2.0, 3.0, 4.0]


# snapshot


async def test_a_snapshot_is_what_the_single_reads_find(store: Store, other: Store) -> None:
    job = await completed(store)
    await store.log([line(job, text) for text in "abc"], keep=1000)
    await store.sample([sample(job, 1.0)], keep=10)

    found = await other.snapshot(job.id, events=1000, lines=2)

    assert found is not None
    assert found.job == (await store.get([job.id]))[0]
    assert found.spec == (await store.specs([job.id]))[job.id]
    assert found.results == (await store.results([job.id]))[job.id]
    assert found.progress == (await store.progress([job.id])).get(job.id, {})
    assert found.events == await store.events(job.id)
    assert [each.text for each in found.lines] == ["b", "c"]
    assert found.last_line == 3
    assert found.samples == await store.samples(job.id)


async def test_a_snapshot_has_the_newest_events(store: Store) -> None:
    job = await completed(store)
    all = await store.events(job.id)

    found = await store.snapshot(job.id, events=2, lines=1)

    assert found is not None
    assert found.events == all[-2:]


async def test_the_last_line_of_a_snapshot_is_that_of_all_stages(store: Store) -> None:
    job = await submit(store, APART)
    await store.log([line(job, "a", task=LEFT), line(job, "b", task=RIGHT)], keep=1000)

    found = await store.snapshot(job.id, events=1, lines=10, stage=LEFT.stage)

    assert found is not None
    assert ([each.text for each in found.lines], found.last_line) == (["a"], 2)


async def test_there_is_no_snapshot_of_what_is_not_there(store: Store) -> None:
    assert await store.snapshot(UNKNOWN, events=1, lines=1) is None
