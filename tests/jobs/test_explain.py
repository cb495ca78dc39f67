"""Why a job is not running: the first thing a person would have to do comes first."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
from msgspec.structs import replace

from packhorse import host
from packhorse.core import lifecycle
from packhorse.core.changes import Change
from packhorse.core.models import Job
from packhorse.jobs.explain import Around, Fleet, explain_job, is_live, read_fleet, reasons
from packhorse.schemas.job_details import Reason
from packhorse.store.base import Store
from packhorse.store.collections import workers
from packhorse.store.collections.queues import Pause, put_pause
from packhorse.store.collections.workers import WorkerCard
from tests.contract.builders import (
    ONNX,
    RESULT,
    SLOTTED,
    SPEC,
    cancel,
    card,
    needs,
    plan,
    stage,
    submission,
    submit,
)
from tests.worker.processes import born, dead, running

NOW = 1_800_000_000.0
GPU = plan(stage("onnx"), stage("bie", needs("onnx"), queue="gpu"))
ABLE = card(kinds=("onnx", "bie"), queues={"default": 2, "gpu": 1})


def job(**options: Any) -> Job:
    return submission(GPU, SPEC, now=NOW, **options).after


def moved(change: Change | None) -> Job:
    assert change is not None
    return change.after


def at_second_stage() -> Job:
    begun = moved(lifecycle.start(job(), ONNX, token="t", worker="w", lease=15, now=NOW))
    return moved(lifecycle.finish(begun, ONNX, token="t", result=RESULT, now=NOW))


def codes(job: Job, *live: WorkerCard) -> list[str]:
    return [reason.code for reason in reasons(job, Around(Fleet(live)), NOW)]


def test_nobody_serves_the_queue() -> None:
    found = reasons(at_second_stage(), Around(Fleet([card(queues={"default": 8}, kinds=("onnx", "bie"))])), NOW)

    assert found == [Reason("NO_WORKER", "no live worker serves queue `gpu`")]


def test_nobody_has_the_stage_as_it_was_submitted() -> None:
    found = reasons(at_second_stage(), Around(Fleet([card(queues={"gpu": 1}, kinds=("onnx", "bie#new"))])), NOW)

    assert [reason.code for reason in found] == ["NO_CODE"]
    assert found[0].message == "no live worker has stage `bie` of pipeline `convert` as it was submitted"


def test_the_slots_of_those_who_could_run_it_are_counted() -> None:
    found = reasons(job(), Around(Fleet([ABLE, card("w2", queues={"default": 5}, kinds=("other",))])), NOW)

    assert found == [Reason("QUEUED", "`onnx` waits for one of 2 slots in queue `default`")]


def test_a_single_slot_or_stage_is_not_counted() -> None:
    begun = moved(lifecycle.start(job(), ONNX, token="t", worker="w", lease=15, now=NOW))

    [queued] = reasons(at_second_stage(), Around(Fleet([ABLE])), NOW)
    [stopping] = reasons(moved(lifecycle.cancel(begun, now=NOW)), Around(Fleet([ABLE])), NOW)

    assert queued.message == "`bie` waits for the only slot in queue `gpu`"
    assert stopping.message == "the job is stopping: it ends when the last running stage has stopped"


def test_workers_that_can_start_no_process_have_no_slots() -> None:
    stuck = card(kinds=("onnx", "bie"), queues={"default": 0, "gpu": 0})

    [found] = reasons(job(), Around(Fleet([stuck])), NOW)

    assert found == Reason("NO_PROCESS", "no live worker can start a process for `onnx` now; their logs say why")
    assert codes(job(), stuck, ABLE) == ["QUEUED"]
    assert codes(job(delay=60.0), stuck) == ["NOT_BEFORE", "NO_PROCESS"]


def test_a_worker_that_is_too_old_to_say_what_it_has_may_have_it() -> None:
    assert codes(job(), card(kinds=())) == ["QUEUED"]


def test_a_delay_is_told_before_the_worker_that_will_be_missing_then() -> None:
    delayed = job(delay=60.0)

    assert codes(delayed) == ["NOT_BEFORE", "NO_WORKER"]
    assert codes(delayed, ABLE) == ["NOT_BEFORE"]


def test_elements_that_wait_for_the_same_are_told_once() -> None:
    many = submission(plan(*(stage(f"s{n}", kind="k") for n in range(3))), SPEC, now=NOW).after

    assert codes(many) == ["NO_WORKER"]


def test_what_runs_waits_for_nothing() -> None:
    begun = moved(lifecycle.start(job(), ONNX, token="t", worker="w", lease=15, now=NOW))

    assert codes(begun, ABLE) == []


def test_what_ran_on_a_worker_that_is_gone_waits_for_another() -> None:
    begun = moved(lifecycle.start(job(), ONNX, token="t", worker="w", lease=15, now=NOW))
    elsewhere = card("w2", queues={"gpu": 5}, kinds=("onnx", "bie"))

    [reason] = reasons(begun, Around(Fleet([elsewhere])), NOW)

    assert reason.code == "NO_WORKER"
    assert reason.message == "the worker that ran `onnx` is gone, and no other worker serves queue `default`"
    assert codes(moved(lifecycle.cancel(begun, now=NOW)), elsewhere) == ["STOPPING", "NO_WORKER"]


def test_what_is_being_stopped_or_has_ended_says_so() -> None:
    begun = moved(lifecycle.start(job(), ONNX, token="t", worker="w", lease=15, now=NOW))

    assert codes(moved(lifecycle.cancel(begun, now=NOW)), ABLE) == ["STOPPING"]
    assert codes(moved(lifecycle.cancel(job(), now=NOW))) == ["ENDED"]


OPERATOR = Pause("default", NOW - 60, "ab12", "the disk is full")


def test_a_paused_queue_is_told_with_who_and_why() -> None:
    found = reasons(job(), Around(Fleet([ABLE], {"default": OPERATOR})), NOW)

    assert found == [
        Reason("PAUSED", "queue `default` was paused by ab12 at 2027-01-15 07:59:00 UTC: the disk is full")
    ]


def test_a_pause_comes_after_the_time_and_before_the_worker() -> None:
    found = reasons(job(delay=60.0), Around(Fleet(pauses={"default": OPERATOR})), NOW)

    assert [reason.code for reason in found] == ["NOT_BEFORE", "PAUSED", "NO_WORKER"]


def test_the_pause_of_another_queue_is_no_reason() -> None:
    assert [each.code for each in reasons(job(), Around(Fleet([ABLE], {"gpu": OPERATOR})), NOW)] == ["QUEUED"]


@pytest.mark.parametrize(
    ("ahead", "said"), [(0, ", and is next"), (3, ", with 3 ahead of it"), (1000, ", with 1000 or more ahead of it")]
)
def test_those_ahead_are_counted(ahead: int, said: str) -> None:
    [found] = reasons(job(), Around(Fleet([ABLE]), ahead={"onnx": ahead}), NOW)

    assert found.message == f"`onnx` waits for one of 2 slots in queue `default`{said}"


def test_an_ended_job_whose_slot_is_taken_cannot_be_retried() -> None:
    found = reasons(moved(lifecycle.cancel(job(), now=NOW)), Around(holder="j7"), NOW)

    assert [each.code for each in found] == ["ENDED", "SLOT_TAKEN"]
    assert "job j7" in found[1].message


async def test_what_is_around_a_job_is_read_from_the_store(store: Store) -> None:
    await workers.enroll(store, card(queues={"default": 1}, kinds=("only",), seen_at=store.now()))
    await submit(store, SLOTTED, user="bob")
    second = await submit(store, SLOTTED, user="ann")

    before = await explain_job(store, second, partial(read_fleet, store, 15))
    await put_pause(store, replace(OPERATOR, at=store.now()))
    after = await explain_job(store, second, partial(read_fleet, store, 15))

    assert [each.code for each in before + after] == ["QUEUED", "PAUSED"]
    assert before[0].message.endswith("with 1 ahead of it")


async def test_who_holds_the_slot_of_an_ended_job_is_read_from_the_store(store: Store) -> None:
    ended = await cancel(store, (await submit(store, SLOTTED)).id)
    free = await explain_job(store, ended, partial(read_fleet, store, 15))
    holder = await submit(store, SLOTTED)

    found = await explain_job(store, ended, partial(read_fleet, store, 15))

    assert [each.code for each in free] == ["ENDED"]
    assert [each.code for each in found] == ["ENDED", "SLOT_TAKEN"]
    assert holder.id in found[1].message


def test_a_worker_is_alive_while_it_is_heard_of() -> None:
    assert is_live(card(seen_at=NOW - 15), NOW, lease=15)
    assert not is_live(card(seen_at=NOW - 15.1), NOW, lease=15)


@pytest.mark.parametrize("is_dead", [False, True])
def test_a_worker_of_this_machine_is_looked_at(is_dead: bool) -> None:
    with running() as process:
        pid, since = dead() if is_dead else (process.pid, born(process.pid))
        seen = card(boot=host.boot(), pid_space=host.pid_space(), pid=pid, born=since, seen_at=NOW)

        assert is_live(seen, NOW, lease=15) is not is_dead


async def test_a_job_in_line_names_the_active_job_and_how_many_are_ahead(store: Store) -> None:
    queue = replace(SLOTTED, on_conflict="queue", fingerprint="queue-1")
    first, second, third = [await submit(store, queue) for _ in range(3)]

    async def fleet() -> Fleet:
        return Fleet([card(kinds=("only",))])

    assert await explain_job(store, second, fleet) == [
        Reason("SLOT_TAKEN", f"it waits until the user's active job {first.id} has ended", 1)
    ]
    [found] = await explain_job(store, third, fleet)
    assert found.ahead == 2
    assert found.message.endswith("has ended, and 1 more of the user's jobs is ahead of it")
    await cancel(store, first.id)
    assert [reason.code for reason in await explain_job(store, second, fleet)] == ["QUEUED"]
