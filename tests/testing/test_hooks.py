"""A test can look on and step in while a job runs."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from packhorse import Context, Permanent
from packhorse.define import Pipeline
from packhorse.testing import Bench, BenchJob
from tests.testing.pipelines import Convert, Split, add, bie, convert, lengths, nef, onnx, poll, split


def cancel(job: BenchJob[object]) -> None:
    job.cancel()


def test_a_hook_sees_the_job_as_it_is_at_that_moment(packhorse: Bench, params: Convert) -> None:
    seen: list[tuple[str, str, float]] = []

    def look(job: BenchJob[object]) -> None:
        seen.append((job.status.value, job.status_of(onnx).value, job.progress))

    packhorse.before(onnx, look)
    packhorse.during(onnx, look, report=4)
    packhorse.after(onnx, look)
    packhorse.after(nef, look)
    packhorse.run(convert, params)

    assert seen == [
        ("running", "running", 0.0),
        ("running", "running", 33.33),
        ("running", "completed", 33.33),
        ("completed", "completed", 100.0),
    ]


def test_a_hook_is_called_for_as_many_attempts_as_it_was_asked_to(packhorse: Bench) -> None:
    once: list[str] = []
    always: list[str] = []
    packhorse.before(lengths, lambda job: once.append(job.id))
    packhorse.before(lengths, lambda job: always.append(job.id), times=None)
    packhorse.before(lengths, lambda job: always.append("second"), element=1)

    job = packhorse.run(split, Split(text="a b c"))

    assert once == [job.id]
    assert always == [job.id, job.id, "second", job.id]


def test_a_job_cancelled_between_two_stages_goes_no_further(packhorse: Bench, params: Convert) -> None:
    packhorse.after(onnx, cancel)

    job = packhorse.run(convert, params)

    assert job.status == "cancelled"
    assert job.attempts_of(bie) == 0
    assert job.result_of(onnx).size > 0  # what has been done is kept


def test_a_job_cancelled_before_a_stage_is_called_ends_without_the_call(packhorse: Bench, params: Convert) -> None:
    called: list[int] = []
    packhorse.replace(onnx, lambda ctx, p: called.append(1))
    packhorse.before(onnx, cancel)

    job = packhorse.run(convert, params)

    assert job.status == "cancelled"
    assert called == []
    assert [event.type for event in job.events] == ["submitted", "started", "stage_started", "cancelling", "cancelled"]


def test_a_stage_that_is_cancelled_inside_can_tidy_up_and_goes_no_further(packhorse: Bench, params: Convert) -> None:
    steps: list[object] = []

    def careful(ctx: Context, p: Convert) -> None:
        try:
            ctx.progress(1, 3)
            steps.append("first")
            ctx.progress(2, 3)
            steps.append("second")
        finally:
            steps.append(ctx.cancelled)
            ctx.progress(3, 3)
            steps.append("tidied")

    packhorse.replace(onnx, careful)
    packhorse.during(onnx, cancel, report=2)

    job = packhorse.run(convert, params)

    assert steps == ["first", True, "tidied"]
    assert job.status == "cancelled"


def test_a_stage_that_does_not_look_is_ended_all_the_same(packhorse: Bench) -> None:
    def deaf(ctx: Context, params: object) -> int:
        try:
            ctx.progress(1)
        except BaseException:
            return 7
        raise AssertionError

    packhorse.replace(add, deaf)
    packhorse.during(add, cancel)

    job = packhorse.call(add, 1)

    assert job.status == "cancelled"
    assert job.status_of(add) == "cancelled"


def test_an_async_stage_is_cancelled_where_it_waits(packhorse: Bench) -> None:
    steps: list[object] = []

    async def waiting(ctx: Context, params: object) -> None:
        try:
            ctx.progress(1)
            steps.append("reported")
            await asyncio.sleep(60)
            steps.append("slept")
        finally:
            steps.append(ctx.cancelled)

    packhorse.replace(poll, waiting)
    packhorse.during(poll, cancel)

    job = packhorse.call(poll, "http://a")

    assert steps == ["reported", True]
    assert job.status == "cancelled"


def test_a_hook_inside_an_async_stage_can_let_time_pass_and_others_run(packhorse: Bench) -> None:
    other = packhorse.submit(poll.pipeline, poll.params_from("http://b"), delay="1m")

    async def reporting(ctx: Context, params: object) -> str:
        ctx.progress(1)
        await asyncio.sleep(0)
        return "slow"

    packhorse.replace(poll, reporting)
    packhorse.during(poll, lambda job: packhorse.pass_time("2m"))

    job = packhorse.call(poll, "http://a")

    assert (job.result, other.result) == ("slow", "slow")
    assert other.record.completed_at == packhorse.now - 60


@pytest.mark.parametrize("when", ["before", "during", "after"])
@pytest.mark.parametrize("stage", [onnx, bie])
def test_what_a_hook_raises_is_raised_in_the_test(packhorse: Bench, params: Convert, when: str, stage: object) -> None:
    def check(job: BenchJob[object]) -> None:
        assert job.status == "completed", "not yet"

    getattr(packhorse, when)(stage, check)

    with pytest.raises(AssertionError, match="not yet"):
        packhorse.run(convert, params)
    assert packhorse.call(add, 1).result == 2  # the bench has not lost its footing


@pytest.mark.parametrize(
    ("pipeline", "params"), [(add.pipeline, add.params_from(1)), (poll.pipeline, poll.params_from(""))]
)
def test_a_stand_in_can_fail_the_test(packhorse: Bench, pipeline: Pipeline[Any], params: object) -> None:
    def never(ctx: Context, params: object) -> None:
        pytest.fail("It must not be called.")

    packhorse.replace(add, never)
    packhorse.replace(poll, never)

    with pytest.raises(pytest.fail.Exception, match="must not be called"):
        packhorse.run(pipeline, params)


def test_an_interrupt_from_the_keyboard_ends_the_test_not_the_stage(packhorse: Bench) -> None:
    packhorse.fail(add, KeyboardInterrupt)

    with pytest.raises(KeyboardInterrupt):
        packhorse.call(add, 1)


def test_a_job_is_cancelled_at_once_if_nothing_runs(packhorse: Bench) -> None:
    job = packhorse.submit(split, Split(text="a"))

    job.cancel()

    assert job.status == "cancelled"


def test_during_a_stage_that_does_not_report_fails_and_names_the_alternative(packhorse: Bench, params: Convert) -> None:
    packhorse.during(nef, cancel)

    with pytest.raises(AssertionError, match=r"nef called ctx\.progress 0 times.*before\(\) or after\(\)"):
        packhorse.run(convert, params)
    assert packhorse.call(add, 1).result == 2  # reported once


def test_during_a_report_that_does_not_come_fails(packhorse: Bench, params: Convert) -> None:
    packhorse.during(onnx, cancel, report=9)

    with pytest.raises(AssertionError, match=r"report=9.*onnx called ctx\.progress 4 times"):
        packhorse.run(convert, params)


def test_during_an_element_that_does_not_exist_fails(packhorse: Bench) -> None:
    packhorse.during(lengths, cancel, element=7)
    packhorse.submit(split, Split(text="a b"))

    with pytest.raises(AssertionError, match=r"element=7"):
        packhorse.work()


def test_during_a_later_attempt_is_not_reported_early(packhorse: Bench, params: Convert) -> None:
    packhorse.fail(onnx)
    packhorse.crash(onnx)
    packhorse.during(onnx, cancel)

    assert packhorse.run(convert, params).status == "cancelled"


def test_during_a_later_run_is_not_reported_early(packhorse: Bench, params: Convert) -> None:
    packhorse.fail(onnx, Permanent("Not yet."))
    packhorse.during(bie, cancel)
    job = packhorse.run(convert, params)

    job.retry()
    packhorse.work()

    assert job.status == "cancelled"


def test_during_a_stage_that_no_job_runs_fails_when_the_bench_is_closed() -> None:
    with pytest.raises(AssertionError, match="onnx was not called"), Bench() as bench:
        bench.during(onnx, cancel)


def test_an_error_in_the_test_is_not_hidden_by_what_was_not_called() -> None:
    bench = Bench()
    bench.during(onnx, cancel)

    with pytest.raises(ZeroDivisionError), bench:
        bench.call(add, 1 // 0)
