"""The clock of a bench stands still while stages run, and jumps when there is nothing to do but wait."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from packhorse import Context, File, Later, Limit
from packhorse.define import Pipeline
from packhorse.errors import JobNotFound
from packhorse.testing import Bench
from tests.testing.pipelines import Convert, Split, add, convert, onnx, poll, split, words

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def test_a_bench_begins_at_the_same_moment_every_time(packhorse: Bench) -> None:
    assert packhorse.now == 1_767_225_600
    assert packhorse.elapsed == 0


def test_time_stands_still_while_nothing_waits(packhorse: Bench, params: Convert) -> None:
    packhorse.run(convert, params)

    assert packhorse.elapsed == 0


def test_a_delayed_job_is_run_at_its_time(packhorse: Bench) -> None:
    job = packhorse.run(split, Split(text="a"), delay="5m")

    assert packhorse.elapsed == 300
    assert job.record.started_at == packhorse.now


def test_passing_time_does_what_is_due_and_no_more(packhorse: Bench) -> None:
    job = packhorse.submit(split, Split(text="a"), delay="5m")

    packhorse.pass_time("299s")
    before = job.status
    packhorse.pass_time(1)

    assert (before, job.status) == ("pending", "completed")
    assert packhorse.elapsed == 300


def test_a_retry_waits_for_its_backoff(packhorse: Bench) -> None:
    packhorse.fail(words, times=2)

    job = packhorse.run(split, Split(text="a"))

    waits = [event.data["at"] - event.at for event in job.events if event.type == "retrying"]
    assert 0.5 <= waits[0] < 1
    assert 1 <= waits[1] < 2
    assert packhorse.elapsed == pytest.approx(sum(waits))


def test_jitter_is_the_same_in_every_run_and_another_with_another_seed() -> None:
    def waited(seed: int) -> float:
        with Bench(seed=seed) as bench:
            bench.fail(add)
            bench.call(add, 1)
            return bench.elapsed

    assert waited(0) == waited(0) != waited(1)


def test_later_is_called_again_later_and_not_counted(packhorse: Bench) -> None:
    answers: list[str | Later] = [Later(30), Later(60), "done"]
    attempts: list[int] = []

    def ask(ctx: Context, params: object) -> str | Later:
        attempts.append(ctx.attempt)
        return answers.pop(0)

    packhorse.replace(poll, ask)

    job = packhorse.call(poll, "http://a")

    assert job.result == "done"
    assert packhorse.elapsed == 90
    assert attempts == [1, 1, 1]
    assert job.attempts_of(poll) == 1


def test_later_until_a_time_is_called_again_at_that_time(packhorse: Bench) -> None:
    start = datetime.fromtimestamp(packhorse.now, UTC)
    answers: list[str | Later] = [Later(until=start + timedelta(hours=1)), Later(until=start), "done"]
    packhorse.replace(poll, lambda ctx, params: answers.pop(0))

    job = packhorse.call(poll, "http://a")

    assert (job.result, packhorse.elapsed) == ("done", 3600)


@pytest.mark.parametrize("wrong", [{"seconds": 1, "until": NOON}, {"until": NOON.replace(tzinfo=None)}])
def test_later_that_means_two_things_is_refused(wrong: Any) -> None:
    with pytest.raises(ValueError, match="either seconds or until="):
        Later(**wrong)


def test_a_rate_is_waited_for(packhorse: Bench) -> None:
    paced = Pipeline("paced", Split, limits=[Limit("user", per_minute=2)])

    @paced.stage
    def fetch(ctx: Context, p: Split) -> str:
        return p.text

    for _ in range(4):
        packhorse.submit(paced, Split(text="a"))
    last = packhorse.run(paced, Split(text="z"))

    assert last.result == "z"
    assert packhorse.elapsed == pytest.approx(120, abs=1)


def test_tasks_with_a_limit_run_one_after_the_other_and_cost_no_time(packhorse: Bench) -> None:
    single = Pipeline("single", Split, limits=[Limit("user", at_once=1)], fair="user")

    @single.stage
    def work(ctx: Context, p: Split) -> str:
        return p.text

    waiting = [packhorse.submit(single, Split(text=text)) for text in "ab"]
    last = packhorse.run(single, Split(text="c"))

    assert [job.result for job in (*waiting, last)] == ["a", "b", "c"]
    assert packhorse.elapsed == 0


def test_job_submitted_for_a_time_starts_then(packhorse: Bench, params: Convert) -> None:
    at = datetime.fromtimestamp(packhorse.now, UTC) + timedelta(hours=2)

    job = packhorse.run(convert, params, at=at)

    assert (job.status, packhorse.elapsed) == ("completed", 7200)


def test_a_stage_that_is_always_later_ends_at_the_deadline(packhorse: Bench, params: Convert) -> None:
    packhorse.replace(onnx, lambda ctx, p: Later(600))

    job = packhorse.run(convert, params)

    assert job.error is not None
    assert job.error.code == "DEADLINE"
    assert packhorse.elapsed == 7200


def test_a_stage_that_never_lets_time_pass_does_not_hang_the_test(packhorse: Bench) -> None:
    packhorse.replace(poll, lambda ctx, params: Later(0))

    with pytest.raises(AssertionError, match="Later"):
        packhorse.call(poll, "http://a")


def test_an_ended_job_is_purged_when_its_time_is_over(packhorse: Bench, params: Convert) -> None:
    job = packhorse.run(convert, params)
    downloaded = job.result

    packhorse.pass_time("6d")
    early = job.is_purged
    packhorse.pass_time("1d")

    assert (early, job.is_purged) == (False, True)
    assert repr(job) == f"<job {job.id} purged>"
    with pytest.raises(JobNotFound):
        job.result_of(onnx)
    assert downloaded.read_bytes() == b"model checked quantised"


def test_a_stage_in_which_too_much_time_passes_is_timed_out(packhorse: Bench, params: Convert) -> None:
    packhorse.during(onnx, lambda job: packhorse.pass_time("30s"), report=1)
    packhorse.during(onnx, lambda job: packhorse.pass_time("50s"), report=2)
    slow = packhorse.run(convert, params)
    packhorse.during(onnx, lambda job: packhorse.pass_time("1m"), report=1)
    stalled = packhorse.run(convert, params)

    assert slow.attempts_of(onnx) == 1
    assert [event.data["code"] for event in stalled.events if event.type == "retrying"] == ["STALLED"]


def test_a_stage_that_takes_long_keeps_its_lease(packhorse: Bench) -> None:
    packhorse.before(add, lambda job: packhorse.pass_time("9m"))

    job = packhorse.call(add, 1)

    assert packhorse.elapsed == 540
    assert job.attempts_of(add) == 1


def test_other_jobs_go_on_while_a_stage_takes_long(packhorse: Bench) -> None:
    other = packhorse.submit(split, Split(text="a"), delay="1m")
    packhorse.before(add, lambda job: packhorse.pass_time("2m"))
    packhorse.after(add, lambda job: seen.append(other.status))
    seen: list[str] = []

    packhorse.call(add, 1)

    assert seen == ["completed"]


def test_real_time_does_not_pass(packhorse: Bench, params: Convert, monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    monkeypatch.setattr(time, "sleep", slept.append)

    packhorse.run(convert, params, delay="30d")
    packhorse.pass_time("365d")

    assert packhorse.elapsed >= timedelta(days=365).total_seconds()
    assert slept == []


def test_a_moment_to_begin_at_can_be_chosen() -> None:
    with Bench(start=1000.0) as bench:
        bench.pass_time("1m")

        assert (bench.now, bench.elapsed) == (1060, 60)


def test_a_file_can_be_made_for_a_submit(packhorse: Bench) -> None:
    first, second = packhorse.file("a.txt", "one"), packhorse.file("a.txt", b"two")

    assert (first.read_text(), second.read_text()) == ("one", "two")
    assert isinstance(first, File)
    assert first.name == second.name == "a.txt"
