"""Admission: what a submit asks of the store, what it leaves there, what it tells."""

from __future__ import annotations

import pytest

from packhorse.core import lifecycle
from packhorse.core.changes import AT_ONCE, KeepSpec, KeyUnused, MakeDue, RememberKey, SlotFree, TakeSlot
from packhorse.core.models import Job, Stage, Task, TaskId
from packhorse.core.plan import Status
from tests.core.plans import APART, CHAIN, FAN, NOW, ONE, ONLY, SPEC, due, plan, stage, submitted, told

SINGLE = plan(stage("only"), slot="convert")


def test_a_submitted_job_is_pending_in_its_first_run() -> None:
    job = submitted(ONE, tenant="acme", client="c1", priority=5, trace_id="trace")

    assert job == Job(
        id="j",
        plan=ONE,
        user="ann",
        tenant="acme",
        client="c1",
        priority=5,
        created_at=NOW,
        not_before=NOW,
        trace_id="trace",
        status=Status.PENDING,
        run=1,
        version=1,
        events=1,
        updated_at=NOW,
        deadline_at=NOW + ONE.deadline,
        lineage=job.lineage,
        stages=(Stage((Task(ready_at=NOW),)),),
    )


def test_a_submit_is_for_a_job_that_does_not_exist_yet() -> None:
    change = lifecycle.submit(ONE, SPEC, job_id="j", user="ann", now=NOW)

    assert change.before is None


def test_a_submit_without_key_or_slot_asks_for_nothing() -> None:
    change = lifecycle.submit(ONE, SPEC, job_id="j", user="ann", now=NOW)

    assert change.guards == ()


def test_a_submit_keeps_the_spec_and_makes_the_first_stage_due_on_its_queue() -> None:
    queued = plan(stage("only", queue="gpu", kind="convert.only"))

    change = lifecycle.submit(queued, SPEC, job_id="j", user="ann", priority=7, now=NOW)

    assert change.effects == (KeepSpec(SPEC), MakeDue(ONLY, "gpu", "convert.only", 7, AT_ONCE))


def test_a_submit_is_told_as_event_number_one() -> None:
    change = lifecycle.submit(ONE, SPEC, job_id="j", user="ann", now=NOW)

    assert told(change) == [(1, "submitted", {"pipeline": "convert", "user_id": "ann"})]
    assert change.events[0].at == NOW


def test_only_stages_that_need_nothing_are_due_at_first() -> None:
    change = lifecycle.submit(CHAIN, SPEC, job_id="j", user="ann", now=NOW)

    assert due(change) == [TaskId("onnx")]


def test_stages_with_no_path_between_them_are_due_together() -> None:
    change = lifecycle.submit(APART, SPEC, job_id="j", user="ann", now=NOW)

    assert due(change) == [TaskId("left"), TaskId("right")]


def test_a_stage_over_elements_does_not_know_them_at_first() -> None:
    job = submitted(FAN)

    assert job.stage("page").tasks is None


def test_a_delay_moves_the_first_stage_and_the_deadline_but_not_the_creation() -> None:
    job = submitted(ONE, delay=30.0)

    assert (job.created_at, job.not_before, job.deadline_at) == (NOW, NOW + 30, NOW + 30 + ONE.deadline)
    assert job.task(ONLY) == Task(ready_at=NOW + 30, delay=30.0)


def test_a_delayed_submit_makes_its_stage_due_later() -> None:
    change = lifecycle.submit(ONE, SPEC, job_id="j", user="ann", delay=30.0, now=NOW)

    assert change.effects[-1] == MakeDue(ONLY, "default", "", 0, NOW + 30, 30.0)


def test_a_plan_with_a_slot_takes_it_only_if_it_is_free() -> None:
    change = lifecycle.submit(SINGLE, SPEC, job_id="j", user="ann", now=NOW)

    assert change.guards == (SlotFree("default/ann/convert"),)
    assert TakeSlot("default/ann/convert") in change.effects
    assert change.after.slot == "default/ann/convert"


def test_a_key_is_remembered_only_if_it_is_unused() -> None:
    change = lifecycle.submit(ONE, SPEC, job_id="j", user="ann", key="k", fingerprint="f", now=NOW)

    assert change.guards == (KeyUnused("k"),)
    assert RememberKey("k", "f") in change.effects


def test_the_key_is_asked_before_the_slot() -> None:
    change = lifecycle.submit(SINGLE, SPEC, job_id="j", user="ann", key="k", fingerprint="f", now=NOW)

    assert change.guards == (KeyUnused("k"), SlotFree("default/ann/convert"))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (("a", "b/c", "s"), ("a/b", "c", "s")),
        (("a", "b", "c/s"), ("a", "b/c", "s")),
        (("a", "b%2Fc", "s"), ("a", "b/c", "s")),
        (("a", "", "s"), ("", "a", "s")),
    ],
)
def test_no_user_name_can_spell_the_slot_of_another(one: tuple[str, str, str], other: tuple[str, str, str]) -> None:
    assert lifecycle.slot_key(*one) != lifecycle.slot_key(*other)
