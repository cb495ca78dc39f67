"""What a stage prints and logs is its job's log, as in a worker, and still reaches who captured it before."""

from __future__ import annotations

import logging
import sys

import pytest

from packhorse import Context
from packhorse.testing import Bench
from tests.testing.pipelines import Convert, Split, add, convert, poll, split, words


def test_printed_and_logged_lines_are_kept_in_order(packhorse: Bench, params: Convert) -> None:
    job = packhorse.run(convert, params)

    assert job.log == [
        "INFO stage.convert.onnx: read the model",
        "INFO stage.convert.onnx: check the model",
        "INFO stage.convert.onnx: write the model",
        "platform 520",
    ]


def test_lines_know_where_they_come_from(packhorse: Bench) -> None:
    def speak(ctx: Context, p: Split) -> list[str]:
        print("attempt", ctx.attempt)
        if ctx.attempt == 1:
            raise RuntimeError
        return []

    packhorse.replace(words, speak)

    job = packhorse.run(split, Split(text=""))

    told = [(line.task.stage, line.attempt, line.text) for line in job.lines]
    assert (told[0], told[-1]) == (("words", 1, "attempt 1"), ("words", 2, "attempt 2"))
    assert told[-2] == ("words", 1, "RuntimeError")  # the end of its traceback
    assert job.lines[-1].at - job.lines[0].at == packhorse.elapsed


def test_a_line_without_an_end_is_a_line(packhorse: Bench) -> None:
    packhorse.replace(add, lambda ctx, params: sys.stderr.writelines(["a", "\nb"]))
    packhorse.replace(poll, lambda ctx, params: print("c", end=""))

    assert packhorse.call(add, 1).log == ["a", "b"]
    assert packhorse.call(poll, "http://a").log == ["c"]


def test_debugging_is_not_the_jobs_log_and_a_traceback_is(packhorse: Bench) -> None:
    def speak(ctx: Context, params: object) -> None:
        ctx.log.debug("silent")
        try:
            raise ValueError("odd")
        except ValueError:
            ctx.log.exception("caught")

    packhorse.replace(add, speak)

    log = packhorse.call(add, 1).log

    assert log[:2] == ["ERROR stage.add.add: caught", "Traceback (most recent call last):"]
    assert log[-1] == "ValueError: odd"


def test_it_reaches_who_captured_it_before(
    packhorse: Bench, params: Convert, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    packhorse.run(convert, params)

    assert capsys.readouterr().out == "platform 520\n"
    assert "read the model" in caplog.text


def test_nothing_stays_in_place_afterwards(packhorse: Bench, params: Convert, caplog: pytest.LogCaptureFixture) -> None:
    root = logging.getLogger()
    caplog.set_level(logging.ERROR)
    before = sys.stdout, sys.stderr, root.level, list(root.handlers)
    packhorse.fail(convert.stages["nef"], times=None)

    job = packhorse.run(convert, params)

    assert job.log[0] == "INFO stage.convert.onnx: read the model"
    assert (sys.stdout, sys.stderr, root.level, list(root.handlers)) == before


def test_of_a_stage_inside_another_only_the_inner_one_is_heard(packhorse: Bench) -> None:
    def outer(ctx: Context, params: object) -> int:
        print("before")
        inner.append(packhorse.run(split, Split(text="a")).id)
        print("after")
        logging.getLogger("outer").warning("logged")
        return 0

    def quiet(ctx: Context, p: Split) -> list[str]:
        print("inside")
        logging.getLogger("inner").warning("logged")
        return []

    inner: list[str] = []
    packhorse.replace(add, outer)
    packhorse.replace(words, quiet)

    job = packhorse.call(add, 1)

    assert job.log == ["before", "after", "WARNING outer: logged"]
    assert len(inner) == 1


def test_who_keeps_the_stream_of_a_stage_can_go_on_writing_to_it(
    packhorse: Bench, capsys: pytest.CaptureFixture[str]
) -> None:
    kept = []
    packhorse.replace(add, lambda ctx, params: kept.append(sys.stdout))
    job = packhorse.call(add, 1)

    kept[0].write("late\n")
    kept[0].flush()

    assert packhorse.call(add, 1).log == job.log == []
    assert capsys.readouterr().out == "late\n"
