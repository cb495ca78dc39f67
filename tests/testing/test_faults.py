"""What a test arranges to go wrong goes wrong the way it does in production."""

from __future__ import annotations

import pytest

from packhorse import App, Context, Params, Permanent
from packhorse.errors import NotFinished
from packhorse.settings import Settings
from packhorse.testing import Bench, BenchJob
from packhorse.testing.bench import START
from tests.testing.pipelines import Convert, Split, add, bie, convert, lengths, nef, onnx, poll, split, total, words


def retries(job: BenchJob[object]) -> list[str]:
    return [event.data["code"] for event in job.events if event.type == "retrying"]


def test_a_stage_that_fails_twice_is_tried_three_times(packhorse: Bench, params: Convert) -> None:
    packhorse.fail(bie, times=2, error=RuntimeError("boom"))

    job = packhorse.run(convert, params)

    assert job.status == "completed"
    assert job.attempts_of(bie) == 3
    assert [event.data["message"] for event in job.events if event.type == "retrying"] == ["RuntimeError: boom"] * 2


def test_a_stage_that_always_fails_fails_the_job(packhorse: Bench, params: Convert) -> None:
    packhorse.fail(bie, ValueError, times=None)

    job = packhorse.run(convert, params)

    assert job.status == "failed"
    assert (job.status_of(onnx), job.status_of(bie), job.status_of(nef)) == ("completed", "failed", "skipped")
    assert job.attempts_of(bie) == 4
    assert job.attempts_of(nef) == 0
    with pytest.raises(
        NotFinished, match=r"Stage nef of job \S+ is not started \(stage bie failed\) and has no result"
    ):
        job.result_of(nef)
    assert job.error is not None
    assert (job.error.code, job.error.message) == ("EXCEPTION", "ValueError")


def test_a_permanent_error_is_not_tried_again(packhorse: Bench, params: Convert) -> None:
    packhorse.fail(onnx, Permanent("The model is empty.", code="EMPTY"))

    job = packhorse.run(convert, params)

    assert job.attempts_of(onnx) == 1
    assert job.error is not None
    assert job.error.code == "EMPTY"


def test_a_function_can_be_made_to_fail(packhorse: Bench) -> None:
    packhorse.fail(add)

    assert packhorse.call(add, 1).attempts_of(add) == 2


def test_one_element_can_be_made_to_fail(packhorse: Bench) -> None:
    packhorse.fail(lengths, element=1)

    job = packhorse.run(split, Split(text="a bb ccc"))

    assert [job.attempts_of(lengths, element) for element in range(3)] == [1, 2, 1]
    assert job.attempts_of(lengths) == 4
    assert job.result == 6


def test_an_element_that_fails_for_good_fails_the_job_and_what_waits_is_not_begun(packhorse: Bench) -> None:
    packhorse.fail(lengths, Permanent("no"), element=0)

    job = packhorse.run(split, Split(text="a bb"))

    assert job.error is not None
    assert (job.error.stage, job.error.element) == ("lengths", 0)
    assert job.attempts_of(lengths, 1) == 0
    assert job.attempts_of(total) == 0


def test_mishaps_happen_in_the_order_they_were_arranged(packhorse: Bench) -> None:
    packhorse.fail(words)
    packhorse.lose(words)
    packhorse.crash(words)

    job = packhorse.run(split, Split(text="a"))

    assert retries(job) == ["EXCEPTION", "WORKER_LOST", "CRASHED"]


def test_a_lost_worker_is_noticed_when_its_lease_has_run_out(packhorse: Bench) -> None:
    packhorse.lose(add)

    job = packhorse.call(add, 1)

    assert job.result == 2
    assert job.attempts_of(add) == 2
    assert packhorse.elapsed == Settings().lease


def test_a_worker_that_dies_every_time_ends_the_job(packhorse: Bench) -> None:
    packhorse.lose(poll, times=None)

    job = packhorse.call(poll, "http://a")

    assert job.error is not None
    assert job.error.code == "WORKER_LOST"
    assert job.attempts_of(poll) == 2


def test_a_cancelled_job_ends_when_the_lease_of_its_lost_worker_has(packhorse: Bench) -> None:
    packhorse.lose(add)
    packhorse.after(add, lambda job: job.cancel())
    packhorse.after(add, lambda job: between.append(job.status))
    between: list[str] = []

    job = packhorse.call(add, 1)

    assert between == ["running"]
    assert job.status == "cancelled"
    assert packhorse.elapsed == Settings().lease


@pytest.mark.parametrize("text", ["a", "a b"])
def test_a_crashed_stage_is_tried_again(packhorse: Bench, text: str) -> None:
    packhorse.crash(words)

    job = packhorse.run(split, Split(text=text))

    assert job.status == "completed"
    assert retries(job) == ["CRASHED"]


def test_an_async_stage_whose_process_crashed_runs_alone_the_next_time(packhorse: Bench) -> None:
    packhorse.crash(poll)

    job = packhorse.call(poll, "http://a")

    assert job.result == "http://a"
    assert job.attempts_of(poll) == 2


def test_a_stage_that_hangs_is_ended_by_its_stall(packhorse: Bench, params: Convert) -> None:
    packhorse.stall(onnx)

    job = packhorse.run(convert, params)

    assert job.status == "completed"
    assert retries(job) == ["STALLED"]
    assert 60 < packhorse.elapsed < 61


def test_a_stage_that_hangs_and_has_no_stall_is_ended_by_its_timeout(packhorse: Bench) -> None:
    packhorse.stall(add)

    job = packhorse.call(add, 1)

    assert job.error is not None
    assert (job.error.code, job.attempts_of(add)) == ("TIMEOUT", 1)


def test_a_stage_that_goes_on_and_on_is_ended_by_its_timeout(packhorse: Bench, params: Convert) -> None:
    packhorse.time_out(onnx)

    job = packhorse.run(convert, params)

    assert job.status == "completed"
    assert retries(job) == ["TIMEOUT"]
    assert 600 < packhorse.elapsed < 601


def test_an_async_stage_can_hang_too(packhorse: Bench, params: Convert) -> None:
    packhorse.time_out(bie, times=2)

    job = packhorse.run(convert, params)

    assert retries(job) == ["TIMEOUT", "TIMEOUT"]
    assert job.status == "completed"


@pytest.mark.parametrize("mishap", ["stall", "time_out"])
def test_the_deadline_ends_a_stage_that_hangs_longer(packhorse: Bench, mishap: str) -> None:
    brief = App("brief").pipeline("brief", Params, deadline="5m")

    @brief.stage
    def endless(ctx: Context, p: Params) -> None: ...

    getattr(packhorse, mishap)(endless)

    job = packhorse.run(brief, Params())

    assert job.error is not None
    assert job.error.code == "DEADLINE"
    assert packhorse.elapsed == 300
    assert job.status_of(endless) == "cancelled"


def test_a_run_timeout_ends_the_run_and_no_attempt_is_left(packhorse: Bench) -> None:
    brief = App("brief").pipeline("brief", Params, run_timeout="10m")

    @brief.stage(timeout="7m", retries=3, retry_on=("timeout",), backoff="1ms")
    def endless(ctx: Context, p: Params) -> None: ...

    packhorse.time_out(endless, times=4)

    job = packhorse.run(brief, Params())

    assert job.error is not None
    assert (job.error.code, job.attempts_of(endless)) == ("RUN_TIMEOUT", 2)
    assert packhorse.elapsed == pytest.approx(600)


def test_what_is_due_while_a_stage_hangs_is_done(packhorse: Bench, params: Convert) -> None:
    other = packhorse.submit(split, Split(text="a"), delay="1m")
    packhorse.time_out(onnx)

    packhorse.run(convert, params)

    assert other.record.completed_at == START + 60
