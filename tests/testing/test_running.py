"""A pipeline runs inline, through the real lifecycle, and its job can be looked at from every side."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import assert_type

import pytest

from packhorse import App, Context, File, Params, Permanent, Secret, gather, needs
from packhorse.errors import InvalidInput, KeyReused, NotFinished, SlotTaken, StoreUnavailable
from packhorse.settings import Settings
from packhorse.testing import Bench, environment
from tests.testing.pipelines import Convert, Split, add, bie, convert, lengths, nef, onnx, poll, split, total, words


def test_a_job_goes_through_all_its_stages(packhorse: Bench, params: Convert) -> None:
    job = packhorse.run(convert, params, user="ann")

    assert job.status == "completed"
    assert job.result.read_bytes() == b"model checked quantised"
    assert job.progress == 100
    assert job.error is None
    assert job.record.user == "ann"


def test_a_jobs_events_are_those_of_the_lifecycle(packhorse: Bench, params: Convert) -> None:
    job = packhorse.run(convert, params)

    stage = ["stage_started", "stage_completed"]
    assert [event.type for event in job.events] == ["submitted", "started", *stage, *stage, *stage, "completed"]
    assert [event.n for event in job.events] == list(range(1, 10))
    assert {event.at for event in job.events} == {packhorse.now}


def test_the_result_of_each_stage_has_the_type_it_returns(packhorse: Bench, params: Convert) -> None:
    job = packhorse.run(convert, params)

    assert_type(job.result_of(onnx), File)
    assert_type(job.result_of(bie), File)  # awaited
    assert job.result_of(onnx).read_bytes() == b"model checked"
    assert job.result_of(bie).name == "model.bie"
    assert job.result_of(nef).size == len(b"model checked quantised")


def test_elements_run_in_order_and_are_gathered_in_order(packhorse: Bench) -> None:
    job = packhorse.run(split, Split(text="a bb ccc"))

    assert job.result == 6
    assert job.result_of(words) == ["a", "bb", "ccc"]
    assert assert_type(job.result_of(gather(lengths)), list[int]) == [1, 2, 3]
    assert job.result_of(total) == 6
    started = [event.data for event in job.events if event.type == "stage_started"]
    assert [data["element"] for data in started if data["stage"] == "lengths"] == [0, 1, 2]


def test_a_list_without_elements_is_passed_through(packhorse: Bench) -> None:
    job = packhorse.run(split, Split(text=""))

    assert job.result == 0
    assert job.attempts_of(lengths) == 0


def test_a_function_is_called_with_its_own_arguments(packhorse: Bench) -> None:
    assert assert_type(packhorse.call(add, 1, b=2).result, int) == 3
    assert assert_type(packhorse.call(poll, "http://a").result, str) == "http://a"
    assert packhorse.call(add.using(user="ann", priority=3), 1).record.user == "ann"


def test_every_progress_report_is_kept(packhorse: Bench, params: Convert) -> None:
    job = packhorse.run(convert, params)

    assert [(r.task.stage, r.current, r.total, r.message) for r in job.reports] == [
        ("onnx", 0, 3, "checking"),
        ("onnx", 1, 3, "checking"),
        ("onnx", 2, 3, "checking"),
        ("onnx", 3, 3, "checking"),
        ("bie", 1, 1, ""),
    ]


def test_a_failed_job_shows_how_far_it_came(packhorse: Bench, params: Convert) -> None:
    def half(ctx: Context, p: Convert) -> None:
        ctx.progress(1, 2)
        raise Permanent("no")

    packhorse.replace(onnx, half)

    assert packhorse.run(convert, params).progress == 16.67


def test_reports_are_those_of_the_job_alone(packhorse: Bench, params: Convert) -> None:
    first = packhorse.run(convert, params)
    second = packhorse.run(convert, params)

    assert {report.job_id for report in first.reports} == {first.id}
    assert {report.job_id for report in second.reports} == {second.id}


def test_what_a_stage_returns_or_publishes_is_an_artifact(packhorse: Bench, params: Convert) -> None:
    job = packhorse.run(convert, params)

    assert sorted(job.artifacts) == ["bie/model.bie", "bie/table.txt", "nef/model.bie", "onnx/model.onnx"]
    assert job.artifacts["bie/table.txt"].read_text() == "0.5 0.25"


def test_a_failed_job_says_why(packhorse: Bench) -> None:
    job = packhorse.call(poll, "http://gone")

    assert job.status == "failed"
    assert job.error is not None
    assert (job.error.code, job.error.stage, job.error.permanent) == ("GONE", "poll", True)
    assert repr(job) == "<job poll failed: GONE in poll: There is nothing there.>"


def test_asking_a_failed_job_for_its_result_tells_what_went_wrong_in_the_stage(packhorse: Bench) -> None:
    job = packhorse.call(poll, "http://gone")

    with pytest.raises(NotFinished) as missing:
        _ = job.result
    notes = "\n".join(missing.value.__notes__)
    assert repr(job) in notes
    assert "pipelines.py" in notes  # the traceback
    with pytest.raises(NotFinished):
        job.result_of(poll.stage)


def test_wrong_parameters_are_refused_as_by_any_submit(packhorse: Bench) -> None:
    with pytest.raises(InvalidInput) as refused:
        packhorse.run(convert, Convert(model=File("missing.onnx")))

    assert refused.value.errors[0]["field"] == "model"


def test_a_user_with_an_active_job_is_refused_the_second(packhorse: Bench, params: Convert) -> None:
    first = packhorse.submit(convert, params, user="ann")

    with pytest.raises(SlotTaken) as refused:
        packhorse.submit(convert, params, user="ann")
    packhorse.submit(convert, params, user="bob")

    assert refused.value.facts["active_job_id"] == first.id


def test_a_repeated_key_gives_the_first_job(packhorse: Bench) -> None:
    first = packhorse.run(split, Split(text="a"), key="once")
    again = packhorse.run(split, Split(text="a"), key="once")

    assert again is first
    with pytest.raises(KeyReused):
        packhorse.run(split, Split(text="b"), key="once")


def test_a_submitted_job_waits_until_there_is_work_done(packhorse: Bench) -> None:
    job = packhorse.submit(split, Split(text="a"))
    before = job.status

    packhorse.work()

    assert (before, job.status) == ("pending", "completed")


def test_the_more_urgent_job_goes_first(packhorse: Bench) -> None:
    order: list[str] = []
    packhorse.before(words, lambda job: order.append(job.id), times=None)
    lazy = packhorse.submit(split, Split(text="a"), priority=-1)
    urgent = packhorse.submit(split, Split(text="b"), priority=5)

    packhorse.work()

    assert order == [urgent.id, lazy.id]


def test_a_stage_can_be_replaced(packhorse: Bench, params: Convert) -> None:
    packhorse.replace(onnx, lambda ctx, p: p.model)
    packhorse.replace(bie, lambda ctx, p, model: model)  # not a coroutine, and need not be one

    job = packhorse.run(convert, params)

    assert job.result.read_bytes() == b"model"


def test_a_job_made_of_a_function_can_be_replaced(packhorse: Bench) -> None:
    packhorse.replace(add, lambda ctx, params: params.a * 100)

    assert packhorse.call(add, 2).result == 200


def test_a_retry_from_a_stage_does_it_and_what_follows_again(packhorse: Bench, params: Convert) -> None:
    job = packhorse.run(convert, params)
    packhorse.replace(bie, lambda ctx, p, model: model)

    job.retry(bie)

    assert (job.status, job.run) == ("completed", 2)
    assert job.result.read_bytes() == b"model checked"
    started = [event.data["stage"] for event in job.events if event.type == "stage_started"]
    assert started == ["onnx", "bie", "nef", "bie", "nef"]


def test_a_retry_of_a_failed_job_keeps_what_has_finished(packhorse: Bench, params: Convert) -> None:
    packhorse.fail(bie, times=4)
    job = packhorse.run(convert, params)
    failed = job.status

    job.retry()

    assert (failed, job.status) == ("failed", "completed")
    assert [report.task.stage for report in job.reports] == ["onnx"] * 4 + ["bie"]
    assert job.attempts_of(bie) == 1  # counted anew


def test_a_retry_of_everything_begins_at_the_first_stage(packhorse: Bench) -> None:
    job = packhorse.run(split, Split(text="a b"))

    job.retry("*")

    assert sum(event.type == "stage_completed" for event in job.events) == 8


def test_a_value_that_cannot_be_kept_fails_as_it_would_in_a_worker(packhorse: Bench) -> None:
    packhorse.replace(add, lambda ctx, params: object())

    job = packhorse.call(add, 1)

    assert job.error is not None
    assert job.error.code == "INVALID"
    assert job.attempts_of(add) == 1


def test_limits_come_from_the_settings() -> None:
    with Bench(settings=Settings(result_limit=10)) as bench:
        bench.replace(add, lambda ctx, params: "x" * 10)

        job = bench.call(add, 1)

        assert job.error is not None
        assert job.error.code == "RESULT_TOO_LARGE"


def test_stages_see_the_job_they_work_for(packhorse: Bench) -> None:
    seen: list[tuple[str, str, int]] = []

    def look(ctx: Context, p: Split) -> list[str]:
        seen.append((ctx.job_id, ctx.user_id, ctx.attempt))
        return []

    packhorse.replace(words, look)
    packhorse.fail(words)

    job = packhorse.run(split, Split(text=""), user="ann")

    assert seen == [(job.id, "ann", 2)]


def test_a_stage_runs_in_the_thread_of_the_test_without_a_loop(packhorse: Bench) -> None:
    where: list[threading.Thread] = []

    def nested(ctx: Context, params: object) -> int:
        where.append(threading.current_thread())
        return asyncio.run(asyncio.sleep(0, 7))

    packhorse.replace(add, nested)

    assert packhorse.call(add, 1).result == 7
    assert where == [threading.current_thread()]


def test_async_stages_of_a_bench_share_a_loop_as_in_a_worker(packhorse: Bench) -> None:
    loops: list[asyncio.AbstractEventLoop] = []

    async def remember(ctx: Context, params: object) -> str:
        loops.append(asyncio.get_running_loop())
        return ""

    packhorse.replace(poll, remember)
    packhorse.call(poll, "http://a")
    packhorse.call(poll, "http://b")

    assert loops[0] is loops[1]


def test_stages_without_a_path_between_them_all_run(packhorse: Bench) -> None:
    app = App("diamond")
    diamond = app.pipeline("diamond", Params)

    @diamond.stage(queue="z")
    def left(ctx: Context, p: Params) -> int:
        return 1

    @diamond.stage(queue="a")
    def right(ctx: Context, p: Params) -> int:
        return 2

    @diamond.stage
    def sink(ctx: Context, p: Params, a: int = needs(left), b: int = needs(right)) -> int:
        return a + b

    job = packhorse.run(diamond, Params())

    assert job.result == 3


def test_scratch_is_gone_when_the_attempt_has_ended_and_results_are_not(packhorse: Bench, params: Convert) -> None:
    folders: list[File] = []

    def leave(ctx: Context, p: Convert) -> File:
        folders.append(File(ctx.scratch))
        return p.model

    packhorse.replace(onnx, leave)
    job = packhorse.run(convert, params)

    assert not folders[0].path.exists()
    assert job.result_of(onnx).read_bytes() == b"model"


def test_nothing_is_left_of_a_bench_that_is_closed() -> None:
    with Bench() as bench:
        job = bench.call(add, 1)
        kept = bench.file("a.txt", "text")
        assert kept.read_text() == "text"

    bench.close()  # once more does no harm
    assert not kept.path.exists()
    with pytest.raises(StoreUnavailable):
        _ = job.status


def test_a_bench_works_where_nothing_can_be_kept_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "MEMORY", tmp_path / "missing")

    with Bench() as bench:
        job = bench.run(convert, Convert(model=bench.file("m.onnx", b"model")))

        assert job.result.read_bytes() == b"model checked quantised"


def test_a_stage_has_its_secret_and_the_record_has_dots(packhorse: Bench) -> None:
    app = App("secretive")

    @app.job
    def unlock(key: Secret) -> int:
        print("the key is", key.reveal())
        return len(key.reveal())

    job = packhorse.call(unlock, Secret("canary-0123"))

    assert job.result == 11
    assert job.log == ["the key is ••••"]
