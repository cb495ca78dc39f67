"""Conditions on parameters: when they hold, how they read, and what they leave out of a job."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from packhorse.core import json, lifecycle, models
from packhorse.core.changes import MakeDue
from packhorse.core.conditions import Condition, all_, any_, contains, equals, is_set, not_
from packhorse.core.models import Job, Spec, TaskId
from packhorse.core.plan import Plan, Status, TaskStatus
from packhorse.errors import InvalidInput
from tests.core.plans import (
    NOW,
    SPEC,
    due,
    each,
    failed,
    gather,
    needs,
    plan,
    ran,
    retried,
    stage,
    started,
    statuses,
    sure,
    told,
)

TOP, LEFT, END = TaskId("top"), TaskId("left"), TaskId("end")


@pytest.mark.parametrize(
    ("condition", "parameters", "holds"),
    [
        (contains("tags", "a"), {"tags": ["b", "a"]}, True),
        (contains("tags", "a"), {"tags": ["b"]}, False),
        (contains("tags", 1), {"tags": [True]}, False),
        (contains("text", "bc"), {"text": "abcd"}, True),
        (contains("text", 1), {"text": "1"}, False),
        (contains("tags", "a"), {}, False),
        (contains("tags", "a"), {"tags": None}, False),
        (replace(contains("tags", "a"), default=["a"]), {}, True),
        (equals("n", 3), {"n": 3}, True),
        (equals("n", 1), {"n": True}, False),
        (equals("n", None), {}, True),
        (is_set("n"), {"n": 0}, True),
        (is_set("n"), {"n": False}, True),
        (is_set("tags"), {"tags": []}, False),
        (is_set("text"), {"text": ""}, False),
        (is_set("file"), {"file": {"$file": 0}}, True),
        (is_set("file"), {}, False),
        (not_(is_set("n")), {}, True),
        (all_(is_set("n"), equals("m", 2)), {"n": 1, "m": 2}, True),
        (all_(is_set("n"), equals("m", 2)), {"n": 1, "m": 3}, False),
        (any_(is_set("n"), equals("m", 2)), {"m": 2}, True),
        (any_(is_set("n"), equals("m", 2)), {}, False),
    ],
)
def test_condition_holds(condition: Condition, parameters: dict[str, Any], holds: bool) -> None:
    assert condition.holds(parameters) is holds
    assert json.decode(json.encode(condition), Condition).holds(parameters) is holds


def test_condition_reads_as_a_sentence() -> None:
    condition = any_(not_(is_set("tags")), all_(contains("tags", "ocr"), equals("fast", value=True)))

    assert str(condition) == 'not (tags is set) or (tags contains "ocr" and fast is true)'


def on(tag: str) -> dict[str, Any]:
    return {"when": contains("tags", tag)}


ASIDE = plan(stage("top"), stage("left", needs("top"), **on("left")), stage("end", needs("left"), optional=("left",)))
IN_A_ROW = plan(stage("top"), stage("left", needs("top"), **on("left")), stage("end", needs("left")))
LIST = plan(
    stage("list", **on("list")), stage("top"), stage("left", each("list")), stage("end", needs("top"), gather("left"))
)


def submitted(plan: Plan, *tags: str) -> Job:
    spec = Spec(json.encode({"tags": tags}))
    return lifecycle.submit(plan, spec, job_id="j", user="ann", now=NOW).after


def test_stage_whose_condition_is_not_met_is_skipped_at_submit() -> None:
    job = submitted(ASIDE)

    assert job.stage_status("left") is TaskStatus.SKIPPED
    assert job.stage("left").reason == 'it runs only if tags contains "left"'
    assert job.stage("left").tasks == ()


def test_stage_whose_condition_is_met_runs() -> None:
    assert due(lifecycle.finish(started(submitted(ASIDE, "left"), TOP), TOP, token="t", result=models.Result(b"1"),
                                now=NOW)) == [LEFT]  # fmt: skip


def test_stage_that_needs_a_skipped_one_only_if_it_is_there_runs() -> None:
    job = submitted(ASIDE)
    change = lifecycle.finish(started(job, TOP), TOP, token="t", result=models.Result(b"1"), now=NOW)

    assert due(change) == [END]
    assert ran(change.after, END).status is Status.COMPLETED


def test_stage_that_needs_a_skipped_one_is_skipped_too_in_its_place() -> None:
    job = submitted(IN_A_ROW)
    change = lifecycle.finish(started(job, TOP), TOP, token="t", result=models.Result(b"1"), now=NOW)

    assert statuses(job, "end") == ["pending"]
    assert change.after.status is Status.COMPLETED
    assert change.after.stage("end").reason == "stage left was skipped"
    assert told(change)[1][1:] == ("stage_skipped", {"stage": "end", "reason": "stage left was skipped"})


def test_stages_over_a_skipped_list_are_skipped() -> None:
    job = submitted(LIST)

    assert [job.stage_status(name) for name in ("list", "left")] == [TaskStatus.SKIPPED] * 2
    assert ran(job, TOP).stage_status("end") is TaskStatus.SKIPPED
    assert ran(job, TOP).status is Status.COMPLETED


def test_job_of_which_no_stage_would_run_is_refused() -> None:
    with pytest.raises(InvalidInput, match="no stage of the pipeline would run"):
        submitted(plan(stage("left", **on("left")), stage("end", needs("left"))))


def test_stage_that_returns_skip_has_the_status_and_the_reason() -> None:
    change = lifecycle.skip(started(ran(submitted(ASIDE, "left"), TOP), LEFT), LEFT, token="t", reason="none", now=NOW)

    assert (change.after.stage_status("left"), change.after.stage("left").reason) == (TaskStatus.SKIPPED, "none")
    assert due(change) == [END]
    assert told(change)[0][1:] == ("stage_skipped", {"stage": "left", "attempt": 1, "reason": "none"})


def test_element_that_returns_skip_is_left_out() -> None:
    pages = plan(stage("top"), stage("left", each("top")), stage("end", gather("left")))
    job = ran(lifecycle.submit(pages, SPEC, job_id="j", user="ann", now=NOW).after, TOP, width=2)
    job = lifecycle.skip(started(job, LEFT), LEFT, token="t", reason="none", now=NOW).after

    job = ran(job, TaskId("left", 1))

    assert (job.stage_status("left"), job.stage("left").reason) == (TaskStatus.COMPLETED, None)
    assert ran(job, END).status is Status.COMPLETED


@pytest.mark.parametrize("again", [None, "*", "left", "top"])
def test_retry_keeps_what_its_condition_has_left_out(again: str | None) -> None:
    job = retried(failed(started(ran(submitted(ASIDE), TOP), END), END, error=models.Failure("X", "x", permanent=True)),
                  again)  # fmt: skip

    assert job.stage_status("left") is TaskStatus.SKIPPED
    assert (ran(ran(job, TOP), END) if again in ("*", "top") else ran(job, END)).status is Status.COMPLETED


def test_retry_of_a_stage_that_returned_skip_runs_it_again() -> None:
    skipped = lifecycle.skip(started(ran(submitted(ASIDE, "left"), TOP), LEFT), LEFT, token="t", reason="none", now=NOW)
    job = ran(skipped.after, END)

    change = sure(lifecycle.retry(job, stage="left", now=NOW))

    assert due(change) == [LEFT]
    assert [effect.task for effect in change.effects if isinstance(effect, MakeDue)] == [LEFT]
    assert statuses(retried(job, "end"), "left") == ["skipped"]


def test_stage_skipped_after_another_runs_when_that_one_has_a_result() -> None:
    job = lifecycle.skip(started(ran(submitted(IN_A_ROW, "left"), TOP), LEFT), LEFT, token="t", reason="x", now=NOW)
    assert job.after.stage("end").reason == "stage left was skipped"

    assert ran(ran(retried(job.after, "left"), LEFT), END).status is Status.COMPLETED
