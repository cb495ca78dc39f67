"""One attempt: it runs only while it holds its lease, and tells once how it ended, however long that takes."""

from __future__ import annotations

import asyncio
import dataclasses
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import pytest
from msgspec.structs import replace

from packhorse.blobs.base import Blobs
from packhorse.core.models import Failure, Input, Job, Spec, Stored
from packhorse.core.plan import Status
from packhorse.errors import BlobUnavailable, CorruptRecord, StoreUnavailable, UnknownOutcome
from packhorse.jobs.transact import Transactor
from packhorse.store.base import Claim, Store
from packhorse.testing.inline import run_attempt
from packhorse.worker import files
from packhorse.worker.attempt import Attempt, StopReason
from packhorse.worker.child.messages import Made, Moved, Postponed, Raised, Run
from packhorse.worker.process import ChildDied, Listener, Outcome, OverMemory
from tests.contract.blob_fixtures import content
from tests.contract.builders import ONE, ONLY, attempt_of, cancel, claim_one, held, started, submit, words
from tests.contract.schedules import claimed, created, fired
from tests.worker.builders import lose, objects, put
from tests.worker.faulty import Faults
from tests.worker.puppets import Act, Puppet, PuppetPool, dies, resources, returns, returns_files


class Stand:
    """One claimed task, and a puppet to run it."""

    def __init__(
        self, store: Store, blobs: Blobs, transact: Transactor, scratch: Path, claimed: Claim, act: Act
    ) -> None:
        self.store = store
        self.claimed = claimed
        self.puppet = Puppet(act)
        self.pool = PuppetPool(self.puppet)
        self.resources = resources(store, blobs, transact, scratch, self.pool)
        self.attempt = Attempt(claimed, self.resources)
        self.scratch = scratch / claimed.token

    async def carry(self) -> None:
        await run_attempt(self.attempt)

    async def job(self) -> Job:
        return await held(self.store, self.claimed.job.id)

    async def error(self) -> Failure:
        """Of the latest attempt."""
        task = (await self.job()).task(self.claimed.task)
        assert task is not None
        assert task.error is not None
        return task.error


MakeStand = Callable[[Claim, Act], Stand]


@pytest.fixture(autouse=True)
def no_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """What waits for a store to come back tries again at once."""
    monkeypatch.setattr("packhorse.worker.attempt.PATIENCE", 0.0)


@pytest.fixture
def stand(store: Store, shaky_blobs: Blobs, transact: Transactor, folder: Path) -> MakeStand:
    return lambda claimed, act: Stand(store, shaky_blobs, transact, folder / "scratch", claimed, act)


# How it ends


async def test_what_a_stage_returned_is_recorded_and_its_scratch_is_gone(
    store: Store, blobs: Blobs, stand: MakeStand
) -> None:
    on = stand(await started(store), returns_files("a.txt"))

    await on.carry()

    [result] = (await store.results([on.claimed.job.id]))[on.claimed.job.id].values()
    assert (await on.job()).status is Status.COMPLETED
    assert await content(blobs, result.files[0].file.key) == b"a.txt"
    assert not on.scratch.exists()
    assert on.pool.given_back == 1


async def test_a_stage_is_told_who_it_runs_for_and_finds_its_inputs(
    store: Store, blobs: Blobs, stand: MakeStand
) -> None:
    await put(blobs, "jobs/x/a", b"came in")
    spec = Spec(b'{"$file":0}', (Input("text", 0, Stored("jobs/x/a", "a.txt", 7, "")),))
    await submit(store, ONE, spec, trace_id="trace")
    read: list[str] = []
    on = stand(await claim_one(store), lambda run, _: read.append(Path(run.parameters.files[0][0]).read_text()))

    carrying = asyncio.create_task(on.carry())
    await on.puppet.has_begun.wait()
    on.attempt.stop(StopReason.LEAVING)
    await carrying

    [run] = on.puppet.runs
    assert read == ["came in"]
    assert (run.kind, run.job_id, run.user_id, run.trace_id) == ("only", on.claimed.job.id, "ann", "trace")
    assert (run.attempt, run.element, run.limit) == (1, 0, 1000)


async def test_the_inputs_of_a_stage_that_used_no_scratch_itself_are_gone_too(
    store: Store, blobs: Blobs, stand: MakeStand
) -> None:
    await put(blobs, "jobs/x/a", b"came in")
    await submit(store, ONE, Spec(b'{"$file":0}', (Input("text", 0, Stored("jobs/x/a", "a.txt", 7, "")),)))
    on = stand(await claim_one(store), returns())

    await on.carry()

    assert Path(on.puppet.runs[0].parameters.files[0][0]).is_relative_to(on.scratch)
    assert not on.scratch.exists()


async def test_a_stage_of_a_scheduled_job_is_told_its_tick_and_what_the_run_before_returned(
    store: Store, stand: MakeStand
) -> None:
    schedule, run = await claimed(store, await created(store), store.now() + 1.0)
    await fired(store, run)
    await stand(await claim_one(store), returns(b'"first"')).carry()
    _, run = await claimed(store, schedule, store.now() + 2.0)
    await fired(store, run)
    on = stand(await claim_one(store), returns())

    await on.carry()

    [told] = on.puppet.runs
    assert (told.schedule, told.tick, told.previous) == ("nightly", run.tick, b'"first"')


@pytest.mark.parametrize(
    ("act", "code", "is_last"),
    [
        (lambda run, _: Raised(run.call, "EXCEPTION", "no", False, "where"), "EXCEPTION", False),
        (lambda run, _: Raised(run.call, "INVALID", "no", True, ""), "INVALID", True),
        (lambda _run, _: ChildDied("was killed by SIGKILL"), "CRASHED", False),
        (lambda _run, _: ValueError("a fault of ours"), "INTERNAL", False),
    ],
)
async def test_a_failure_is_recorded_with_its_code(
    store: Store, stand: MakeStand, act: Act, code: str, is_last: bool
) -> None:
    on = stand(await started(store), act)

    await on.carry()

    assert (await on.error()).code == code
    assert (await on.job()).status is (Status.FAILED if is_last else Status.RUNNING)


async def test_a_stage_that_asked_to_be_called_later_spends_no_attempt(store: Store, stand: MakeStand) -> None:
    on = stand(await started(store), lambda run, _: Postponed(run.call, 5.0))

    await on.carry()

    assert attempt_of(await on.job()) == 0
    assert (await words(store, on.claimed.job.id))[-1] == "retrying"


@pytest.mark.parametrize(
    ("why", "code"),
    [(StopReason.TIMEOUT, "TIMEOUT"), (StopReason.STALLED, "STALLED"), (StopReason.MEMORY, "OUT_OF_MEMORY")],
)
async def test_an_attempt_that_was_ended_for_its_own_sake_is_counted(
    store: Store, stand: MakeStand, why: StopReason, code: str
) -> None:
    on = stand(await started(store), lambda _run, _: None)
    carrying = asyncio.create_task(on.carry())
    await on.puppet.has_begun.wait()

    on.attempt.stop(why)
    await carrying

    assert (await on.error()).code == code
    assert attempt_of(await on.job()) == 1


@pytest.mark.parametrize("is_opted_in", [False, True])
@pytest.mark.parametrize("limit", ["timeout", "memory"])
async def test_an_attempt_that_exceeded_its_own_limit_is_the_last_unless_the_stage_says_otherwise(
    store: Store, stand: MakeStand, limit: Literal["timeout", "memory"], is_opted_in: bool
) -> None:
    other: Literal["timeout", "memory"] = "memory" if limit == "timeout" else "timeout"
    stage = replace(ONE.stages[0], memory=1000, retries=3, retry_on=(limit if is_opted_in else other,))
    on = stand(await started(store, replace(ONE, stages=(stage,))), lambda _run, _: None)
    carrying = asyncio.create_task(on.carry())
    await on.puppet.has_begun.wait()

    on.attempt.stop(StopReason.TIMEOUT if limit == "timeout" else StopReason.MEMORY)
    await carrying

    assert (await on.job()).status is (Status.RUNNING if is_opted_in else Status.FAILED)


@pytest.mark.parametrize(
    ("code", "memory", "status"),
    [
        ("OUT_OF_MEMORY", 1000, Status.FAILED),
        ("OUT_OF_MEMORY", None, Status.RUNNING),
        ("TIMEOUT", 1000, Status.RUNNING),
        ("CALL_TIMEOUT", 1000, Status.RUNNING),
    ],
)
async def test_what_a_stage_raised_is_the_last_only_if_the_kernel_kept_its_limit(
    store: Store, stand: MakeStand, code: str, memory: int | None, status: Status
) -> None:
    plan = replace(ONE, stages=(replace(ONE.stages[0], memory=memory, retries=3),))
    on = stand(await started(store, plan), lambda run, _: Raised(run.call, code, "", False, ""))

    await on.carry()

    assert (await on.job()).status is status


async def test_an_attempt_whose_worker_leaves_is_handed_back_uncounted(store: Store, stand: MakeStand) -> None:
    on = stand(await started(store), lambda _run, _: None)
    carrying = asyncio.create_task(on.carry())
    await on.puppet.has_begun.wait()

    on.attempt.stop(StopReason.LEAVING)
    await carrying

    assert attempt_of(await on.job()) == 0
    assert (await claim_one(store)).task == ONLY


async def test_an_attempt_of_a_cancelled_job_ends_the_job(store: Store, stand: MakeStand) -> None:
    on = stand(await started(store), lambda _run, _: None)
    carrying = asyncio.create_task(on.carry())
    await on.puppet.has_begun.wait()
    await cancel(store, on.claimed.job.id)

    on.attempt.stop(StopReason.STOPPED)
    await carrying

    assert (await on.job()).status is Status.CANCELLED


async def test_the_first_reason_to_end_it_counts(store: Store, stand: MakeStand) -> None:
    on = stand(await started(store), lambda _run, _: None)
    carrying = asyncio.create_task(on.carry())
    await on.puppet.has_begun.wait()

    on.attempt.stop(StopReason.TIMEOUT)
    on.attempt.stop(StopReason.LEAVING)
    await carrying

    assert (await on.error()).code == "TIMEOUT"


# Without the lease


async def test_a_stage_whose_lease_is_lost_before_it_begins_is_never_run(store: Store, stand: MakeStand) -> None:
    on = stand(await started(store), returns())
    on.pool.may_give.clear()
    carrying = asyncio.create_task(on.carry())
    await on.pool.is_asked.wait()
    taken = await lose(store, on.claimed)

    on.attempt.stop(StopReason.LOST)
    on.pool.may_give.set()
    await carrying

    assert on.puppet.runs == []
    assert on.pool.given_back == 0
    assert await on.job() == taken


async def test_while_its_files_are_stored_an_attempt_has_no_hold_on_the_process_any_more(
    store: Store, stand: MakeStand, monkeypatch: pytest.MonkeyPatch
) -> None:
    on = stand(await started(store), returns_files("a.txt"))
    publish, held = files.publish, []

    async def publishing(*args: Any) -> Any:
        held.append(on.attempt.child)
        return await publish(*args)

    monkeypatch.setattr(files, "publish", publishing)
    await on.carry()

    assert held == [None]
    assert (await on.job()).status is Status.COMPLETED


@pytest.mark.parametrize("at_end", [dies, returns_files("a.txt")], ids=["dies", "returns"])
async def test_what_becomes_of_a_stage_after_its_lease_was_lost_is_neither_published_nor_told(
    store: Store, stand: MakeStand, faults: Faults, blob_faults: Faults, at_end: Act
) -> None:
    on = stand(await started(store), lambda _run, _: None)
    on.puppet.at_end = at_end
    taken = await lose(store, on.claimed)
    carrying = asyncio.create_task(on.carry())
    await on.puppet.has_begun.wait()

    on.attempt.stop(StopReason.LOST)
    await carrying

    assert faults.calls == []
    assert blob_faults.calls == []
    assert await on.job() == taken
    assert not on.scratch.exists()


async def test_a_late_attempt_leaves_nothing_and_does_not_touch_what_the_next_one_published(
    store: Store, blobs: Blobs, stand: MakeStand
) -> None:
    first = await started(store)
    await lose(store, first)
    on = stand(await claim_one(store), returns_files("a.txt"))
    await on.carry()
    done, there = await on.job(), await objects(blobs)

    await stand(first, returns_files("a.txt")).carry()

    assert done.status is Status.COMPLETED
    assert await on.job() == done
    assert await objects(blobs) == there


# A store that fails


async def test_an_outcome_is_told_when_the_store_is_back(store: Store, stand: MakeStand, faults: Faults) -> None:
    on = stand(await started(store), returns())
    faults.refuse("get", StoreUnavailable, times=2)
    faults.refuse("commit", StoreUnavailable, times=2)

    await on.carry()

    assert (await on.job()).status is Status.COMPLETED


async def test_a_slot_is_free_while_the_outcome_cannot_be_told(store: Store, stand: MakeStand, faults: Faults) -> None:
    on = stand(await started(store), returns())
    hold = faults.hold("commit")

    carrying = asyncio.create_task(on.carry())
    await hold.arrived.wait()

    assert on.attempt.has_returned
    hold.release.set()
    await carrying


async def test_an_outcome_whose_answer_was_lost_is_recorded_once_and_keeps_its_files(
    store: Store, blobs: Blobs, stand: MakeStand, faults: Faults
) -> None:
    on = stand(await started(store), returns_files("a.txt"))
    faults.lose_answer("commit", UnknownOutcome)

    await on.carry()

    [result] = (await store.results([on.claimed.job.id]))[on.claimed.job.id].values()
    assert len(faults.args("commit")) == 1
    assert (await words(store, on.claimed.job.id)).count("stage_completed") == 1
    assert await content(blobs, result.files[0].file.key) == b"a.txt"


@pytest.mark.parametrize("found", [(), None], ids=["behind", "empty"])
async def test_files_are_kept_if_another_server_may_have_the_outcome(
    store: Store, blobs: Blobs, stand: MakeStand, faults: Faults, found: tuple[()] | None
) -> None:
    """After a fail-over, the old primary may answer for a moment, with the job as it was, or without it."""
    waiting = await submit(store)
    on = stand(await claim_one(store), returns_files("a.txt"))
    faults.alter("get", lambda jobs: jobs)
    faults.lose_answer("commit", UnknownOutcome)
    for _ in range(4):
        faults.alter("has_change", lambda _: False)
        faults.alter("get", lambda _: [None if found is None else waiting])

    await on.carry()
    faults.mend()

    [result] = (await store.results([on.claimed.job.id]))[on.claimed.job.id].values()
    assert (await on.job()).status is Status.COMPLETED
    assert await content(blobs, result.files[0].file.key) == b"a.txt"


# Objects that fail


async def test_inputs_that_cannot_be_had_fail_the_attempt_not_the_job(
    store: Store, blobs: Blobs, stand: MakeStand, blob_faults: Faults
) -> None:
    await put(blobs, "jobs/x/a")
    await submit(store, ONE, Spec(b"{}", (Input("text", 0, Stored("jobs/x/a", "a.txt", 7, "")),)))
    blob_faults.refuse("fetch", lambda: BlobUnavailable(reason="away"))
    on = stand(await claim_one(store), returns())

    await on.carry()

    assert on.puppet.runs == []
    assert (await on.error()).code == "BLOB_UNAVAILABLE"
    assert (await on.job()).status is Status.RUNNING


async def test_a_job_whose_record_is_broken_fails_for_good_and_says_so(store: Store, stand: MakeStand) -> None:
    claimed = await started(store)
    trouble = CorruptRecord(what="spec", job_id=claimed.job.id, reason="it is missing")
    on = stand(replace(claimed, trouble=trouble), returns())

    await on.carry()

    assert on.puppet.runs == []
    assert await on.error() == Failure("CORRUPT", str(trouble), stage="only", permanent=True)
    assert (await on.job()).status is Status.FAILED


async def test_files_that_cannot_be_stored_fail_the_attempt_and_leave_nothing(
    store: Store, blobs: Blobs, stand: MakeStand, blob_faults: Faults
) -> None:
    on = stand(await started(store), returns_files("a.txt", "b.txt"))
    blob_faults.after("put_file", lambda: asyncio.sleep(0))
    blob_faults.refuse("put_file", lambda: BlobUnavailable(reason="full"))

    await on.carry()

    assert (await on.error()).code == "BLOB_UNAVAILABLE"
    assert await objects(blobs) == []


async def test_a_file_outside_scratch_fails_the_job_for_good_and_leaves_nothing(
    store: Store, blobs: Blobs, stand: MakeStand, folder: Path
) -> None:
    (folder / "secret.txt").write_text("secret")

    def act(run: Run, listener: Listener) -> Outcome | Exception | None:
        listener.on_artifact(Made(run.call, "b.txt", str(folder / "secret.txt")))
        return returns_files("a.txt")(run, listener)

    on = stand(await started(store), act)

    await on.carry()

    job = await on.job()
    assert job.status is Status.FAILED
    assert job.error is not None
    assert job.error.code == "INVALID_RESULT"
    assert await objects(blobs) == []


# What it says


async def test_what_a_stage_reports_reaches_the_store(store: Store, stand: MakeStand) -> None:
    claimed = await started(store)
    on = stand(claimed, lambda _run, _: None)

    on.attempt.on_progress(Moved(1, 3.0, 4.0, "three of four"))
    on.attempt.on_lines(["a line"])
    await on.resources.reporter.flush()

    told = (await store.progress([claimed.job.id]))[claimed.job.id][ONLY]
    assert (told.current, told.total, told.message, told.peak) == (3.0, 4.0, "three of four", 0.75)
    assert [(found.text, found.attempt) for found in await store.lines(claimed.job.id)] == [("a line", 1)]


@pytest.mark.parametrize("odd", [math.nan, math.inf, -math.inf])
async def test_a_number_that_is_none_does_not_keep_others_from_being_heard(
    store: Store, stand: MakeStand, odd: float
) -> None:
    claimed, other = await started(store), await started(store)
    on, beside = stand(claimed, returns()), stand(other, returns())
    beside.resources.reporter = on.resources.reporter

    on.attempt.on_progress(Moved(1, odd, odd, "lost count"))
    beside.attempt.on_progress(Moved(1, 1.0, 2.0, "halfway"))
    await on.resources.reporter.flush()

    told = await store.progress([claimed.job.id, other.job.id])
    assert told[other.job.id][ONLY].peak == 0.5
    assert (told[claimed.job.id][ONLY].message, told[claimed.job.id][ONLY].peak) == ("lost count", 0.0)


async def test_a_stage_that_the_kernel_ended_over_its_memory_is_out_of_memory(store: Store, stand: MakeStand) -> None:
    on = stand(await started(store), lambda _run, _: OverMemory("was killed by SIGKILL"))

    await on.carry()

    assert (await on.error()).code == "OUT_OF_MEMORY"


async def test_a_child_that_names_too_many_artifacts_fails_for_good_and_publishes_nothing(
    store: Store, blobs: Blobs, stand: MakeStand
) -> None:
    def act(run: Run, listener: Listener) -> Outcome | Exception | None:
        for n in range(20):
            listener.on_artifact(Made(run.call, f"{n}", f"{run.scratch}/a.txt"))
        return returns_files("a.txt")(run, listener)

    on = stand(await started(store), act)
    on.resources.settings = dataclasses.replace(on.resources.settings, artifacts_limit=10)

    await on.carry()

    error = await on.error()
    assert (error.code, error.permanent) == ("TOO_MANY_ARTIFACTS", True)
    assert len(on.attempt._made) == 11
    assert await objects(blobs) == []


async def test_a_flood_of_lines_is_cut_and_counted(store: Store, stand: MakeStand) -> None:
    on = stand(await started(store), returns())

    on.attempt.on_lines(["short", "y" * 1001])  # more than a second may bring
    await on.carry()
    await on.resources.reporter.flush()

    lines = [found.text for found in await store.lines(on.claimed.job.id)]
    assert lines == ["short", "... 1 line held back ..."]
