"""Async stages that need nothing but their process: the worker begins and ends them without a task for each."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from packhorse.blobs.base import Blobs
from packhorse.core.models import Input, Spec, Stored
from packhorse.core.plan import Status
from packhorse.errors import CorruptRecord, StoreUnavailable, UnknownOutcome
from packhorse.jobs.transact import Transactor
from packhorse.settings import Settings
from packhorse.store.base import Claim, Store
from packhorse.worker.attempt import Attempt, StopReason
from packhorse.worker.child.messages import Made, Moved, Postponed, Raised, Run
from packhorse.worker.pool import Description
from packhorse.worker.process import Listener, Outcome
from packhorse.worker.worker import Worker
from tests.contract.builders import (
    KINDS,
    ONE,
    attempt_of,
    cancel,
    claim,
    claim_one,
    held,
    needs,
    plan,
    stage,
    started,
    submit,
    words,
)  # fmt: skip
from tests.contract.stores import Clock
from tests.worker.builders import lose, put
from tests.worker.faulty import Faults
from tests.worker.puppets import Act, Puppet, PuppetPool, dies, resources, returns, returns_files

LIGHT = replace(ONE, fingerprint="light", stages=(replace(ONE.stages[0], is_async=True, retries=1),))
CHAIN = plan(stage("only", is_async=True), stage("next", needs("only"), kind="only", is_async=True))


class Desk(Worker):
    """A worker whose stages a puppet runs. It writes down for which attempts it makes a task."""

    def __init__(self, store: Store, blobs: Blobs, scratch: Path, act: Act) -> None:
        super().__init__(store, blobs, Settings(scratch=str(scratch)), Description((), {"default": frozenset(KINDS)}))
        self.puppet = Puppet(act)
        self.puppet.is_shared = True
        self._resources = resources(store, blobs, Transactor(store), scratch, PuppetPool(self.puppet))
        self._handoffs.worker = "w"
        self.tasked: list[Attempt] = []

    def _spawn(self, attempt: Attempt) -> None:
        self.tasked.append(attempt)
        super()._spawn(attempt)

    def begin(self, *claims: Claim) -> list[Attempt]:
        return [self._begin(claim) for claim in claims]

    async def carry(self, *claims: Claim) -> None:
        self.begin(*claims)
        await self._all_ended()

    @property
    def busy(self) -> int:
        return self._slots.busy["default"]

    async def drain(self) -> None:
        await self._drain(self._has_ended)


MakeDesk = Callable[[Act], Desk]


@pytest.fixture(autouse=True)
def no_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """What waits for a store to come back tries again at once."""
    monkeypatch.setattr("packhorse.worker.attempt.PATIENCE", 0.0)


@pytest.fixture
def desk(shaky: Store, blobs: Blobs, folder: Path) -> MakeDesk:
    return lambda act: Desk(shaky, blobs, folder / "scratch", act)


def never(_run: Run, _listener: Listener) -> None:
    """Runs until it is stopped."""


async def test_a_stage_that_returns_a_value_needs_no_task(store: Store, desk: MakeDesk) -> None:
    at = desk(returns(b"7"))
    claimed = await started(store, LIGHT)

    await at.carry(claimed)

    [result] = (await store.results([claimed.job.id]))[claimed.job.id].values()
    assert result.value == b"7"
    assert (at.tasked, at.busy, at._running) == ([], 0, {})
    assert (await words(store, claimed.job.id))[-1] == "completed"


async def test_stages_that_end_together_are_committed_together(store: Store, desk: MakeDesk, faults: Faults) -> None:
    at = desk(returns())
    for _ in range(3):
        await submit(store, LIGHT)

    await at.carry(*await claim(store, 3))

    assert [len(changes) for (changes,) in faults.args("commit")] == [3]


@pytest.mark.parametrize(
    ("act", "word", "spent"),
    [
        (lambda run, _: Raised(run.call, "EXCEPTION", "no", False, ""), "retrying", 1),
        (lambda run, _: Raised(run.call, "INVALID", "no", True, ""), "failed", 1),
        (lambda run, _: Postponed(run.call, 5.0), "retrying", 0),
    ],
)
async def test_a_stage_that_fails_or_asks_for_later_needs_no_task_either(
    store: Store, desk: MakeDesk, act: Act, word: str, spent: int
) -> None:
    at = desk(act)
    claimed = await started(store, LIGHT)

    await at.carry(claimed)

    assert (await words(store, claimed.job.id))[-1] == word
    assert attempt_of(await held(store, claimed.job.id)) == spent
    assert (at.tasked, at.busy) == ([], 0)


async def test_the_stage_that_follows_takes_over_the_slot(store: Store, desk: MakeDesk, faults: Faults) -> None:
    at = desk(returns(b"7"))
    claimed = await started(store, CHAIN)

    await at.carry(claimed)

    assert (await held(store, claimed.job.id)).status is Status.COMPLETED
    assert (at.tasked, at.busy, len(faults.args("claim")), len(faults.args("commit"))) == ([], 0, 0, 2)


# Where a task goes on


def _prints(run: Run, listener: Listener) -> Outcome:
    listener.on_lines(["said"])
    return returns()(run, listener)  # type: ignore[return-value]


def _reports(run: Run, listener: Listener) -> Outcome:
    listener.on_progress(Moved(run.call, 1.0, 2.0, "half"))
    return returns()(run, listener)  # type: ignore[return-value]


def _publishes(run: Run, listener: Listener) -> Outcome:
    outcome = returns_files("a.txt")(run, listener)
    listener.on_artifact(Made(run.call, "b.txt", f"{run.scratch}/a.txt"))
    return outcome  # type: ignore[return-value]


@pytest.mark.parametrize(
    ("act", "kept"),
    [
        (_prints, (["said"], 0, 0)),
        (_reports, ([], 1, 0)),
        (_publishes, ([], 0, 2)),
        (returns_files("a.txt"), ([], 0, 1)),
    ],
)
async def test_what_a_stage_leaves_is_stored_before_its_end_is_committed(
    store: Store, desk: MakeDesk, faults: Faults, folder: Path, act: Act, kept: object
) -> None:
    at = desk(act)
    claimed = await started(store, LIGHT)
    hold = faults.hold("commit")

    at.begin(claimed)
    await hold.arrived.wait()
    said = [line.text for line in await store.lines(claimed.job.id)]
    moved = (await store.progress([claimed.job.id])).get(claimed.job.id, {})
    hold.release.set()
    await at._all_ended()

    results = (await store.results([claimed.job.id]))[claimed.job.id]
    names = [each.name for result in results.values() for each in result.artifacts]
    assert (said, len(moved), len(names)) == kept
    assert not (folder / "scratch" / claimed.token).exists()
    assert (len(at.tasked), at.busy) == (1, 0)


async def test_a_process_that_dies_costs_each_attempt_in_flight_one_attempt(store: Store, desk: MakeDesk) -> None:
    at = desk(never)
    for _ in range(3):
        await submit(store, LIGHT)
    claims = await claim(store, 3)
    at.begin(*claims)

    at.puppet.end()
    await at._all_ended()

    jobs = [await held(store, each.job.id) for each in claims]
    tasks = [job.task(each.task) for job, each in zip(jobs, claims, strict=True)]
    assert [(task.attempt, task.is_alone, task.error and task.error.code) for task in tasks if task is not None] == [
        (1, True, "CRASHED")
    ] * 3
    assert [(await words(store, job.id)).count("retrying") for job in jobs] == [1, 1, 1]
    assert at.busy == 0


async def test_the_next_attempt_of_a_stage_whose_process_died_runs_alone(
    store: Store, clock: Clock, desk: MakeDesk
) -> None:
    at = desk(dies)
    await at.carry(await started(store, LIGHT))
    clock.forward(60.0)
    again = desk(returns())

    await again.carry(await claim_one(store))

    assert len(again.tasked) == 1  # which takes a process of its own


@pytest.mark.parametrize(("why", "code"), [(StopReason.TIMEOUT, "TIMEOUT"), (StopReason.STALLED, "STALLED")])
async def test_an_attempt_that_is_ended_for_its_own_sake_is_counted(
    store: Store, desk: MakeDesk, why: StopReason, code: str
) -> None:
    at = desk(never)
    [attempt] = at.begin(await started(store, LIGHT))

    attempt.stop(why)
    await at._all_ended()

    job = await held(store, attempt.lease.job_id)
    task = job.task(attempt.lease.task)
    assert task is not None
    assert (task.attempt, task.error and task.error.code) == (1, code)


async def test_an_attempt_of_a_cancelled_job_ends_the_job(store: Store, desk: MakeDesk) -> None:
    at = desk(never)
    [attempt] = at.begin(await started(store, LIGHT))
    await cancel(store, attempt.lease.job_id)

    attempt.stop(StopReason.STOPPED)
    await at._all_ended()

    assert (await held(store, attempt.lease.job_id)).status is Status.CANCELLED


async def test_nothing_is_written_of_an_attempt_whose_lease_was_lost(
    store: Store, desk: MakeDesk, faults: Faults
) -> None:
    at = desk(never)
    claimed = await started(store, LIGHT)
    [attempt] = at.begin(claimed)
    taken = await lose(store, claimed)

    attempt.stop(StopReason.LOST)
    await at._all_ended()

    assert await held(store, claimed.job.id) == taken
    assert faults.args("commit") == []


async def test_a_late_end_is_refused_and_the_token_is_not_taken_for_an_orphan(store: Store, desk: MakeDesk) -> None:
    at = desk(returns())
    claimed = await started(store, LIGHT)
    taken = await lose(store, claimed)

    await at.carry(claimed)

    assert await held(store, claimed.job.id) == taken
    assert claimed.token in at._orphans._unwritten


@pytest.mark.parametrize("error", [StoreUnavailable, UnknownOutcome])
async def test_an_end_that_could_not_be_committed_is_told_once_when_the_store_is_back(
    store: Store, desk: MakeDesk, faults: Faults, error: Any
) -> None:
    at = desk(returns())
    claimed = await started(store, LIGHT)
    faults.refuse("commit", error) if error is StoreUnavailable else faults.lose_answer("commit", error)

    await at.carry(claimed)

    assert (await words(store, claimed.job.id)).count("stage_completed") == 1
    assert (await held(store, claimed.job.id)).status is Status.COMPLETED
    assert at.busy == 0


async def test_a_worker_that_drains_waits_for_it(store: Store, desk: MakeDesk) -> None:
    at = desk(never)
    [attempt] = at.begin(await started(store, LIGHT))

    await at.drain()  # in a hurry: what still runs is ended

    assert attempt.why is StopReason.LEAVING
    assert attempt_of(await held(store, attempt.lease.job_id)) == 0
    assert (at._running, at.busy) == ({}, 0)


async def test_what_has_to_be_waited_for_first_is_left_to_a_task(
    store: Store, blobs: Blobs, desk: MakeDesk, folder: Path
) -> None:
    await put(blobs, "jobs/x/a", b"came in")
    spec = Spec(b'{"$file":0}', (Input("text", 0, Stored("jobs/x/a", "a.txt", 7, "")),))
    light = await started(store, LIGHT)
    job = light.job
    firing: Any = object()
    claims = {
        "a file": replace(light, spec=spec),
        "secrets": replace(light, job=replace(job, plan=replace(job.plan, secrets=(("key",),)))),
        "a tick": replace(light, job=replace(job, firing=firing)),
        "trouble": replace(light, trouble=CorruptRecord(what="spec", job_id=job.id, reason="it is missing")),
        "memory": replace(light, job=replace(job, plan=replace(LIGHT, stages=(replace(LIGHT.stages[0], memory=9),)))),
        "sync": replace(light, job=replace(job, plan=ONE)),
    }
    at = desk(never)

    begun = [name for name, each in claims.items() if Attempt(each, at._resources).begin(lambda: None)]
    at.puppet.is_shared = False
    is_cold = not Attempt(light, at._resources).begin(lambda: None)
    at.puppet.is_shared = True

    assert (begun, is_cold, at.puppet.runs) == ([], True, [])
    assert Attempt(light, at._resources).begin(lambda: None)
