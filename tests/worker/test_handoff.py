"""Going on with a job: the next stage starts with the commit that finishes this one, and nobody is overtaken."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from msgspec.structs import replace

from packhorse.blobs.base import Blobs
from packhorse.core.models import Result, TaskId
from packhorse.core.plan import Plan, Status
from packhorse.errors import StoreUnavailable, UnknownOutcome
from packhorse.jobs.transact import Transactor
from packhorse.settings import Settings
from packhorse.store.base import Claim, Store
from packhorse.worker import attempt
from packhorse.worker.attempt import Attempt
from packhorse.worker.claims import next_task
from packhorse.worker.pool import Description
from packhorse.worker.worker import Worker
from tests.contract.builders import (
    CHAIN,
    FAN,
    KINDS,
    ONE,
    SPEC,
    cancel,
    claim_one,
    finish,
    gather,
    held,
    needs,
    offered,
    page,
    plan,
    split,
    stage,
    started,
    submit,
    words,
)  # fmt: skip
from tests.worker.faulty import Faults
from tests.worker.puppets import Puppet, PuppetPool, resources, returns

BIE = TaskId("bie")
DIAMOND = plan(
    stage("top", kind="only"),
    stage("left", needs("top")),
    stage("right", needs("top")),
    stage("end", needs("left"), needs("right"), kind="only"),
)
OVER = plan(
    stage("a", kind="only"), stage("b", needs("a"), kind="only"), stage("c", needs("a"), needs("b"), kind="only")
)
HERE = {"default": frozenset(KINDS)}


class Slot(Worker):
    """A worker that runs one attempt, and writes down what becomes of its slot, in order."""

    def __init__(self, store: Store, blobs: Blobs, scratch: Path, claimed: Claim) -> None:
        super().__init__(store, blobs, Settings(scratch=str(scratch)), Description((), HERE))
        self.log: list[Claim | str] = []
        self._handoffs.worker = "w"
        self._resources = resources(store, blobs, Transactor(store), scratch, PuppetPool(Puppet(returns(b"7"))))
        self._attempt = Attempt(claimed, self._resources, self._handoffs.after(claimed))

    async def carry(self) -> None:
        await self._run(self._attempt)

    def begun(self) -> list[Claim]:
        return [each for each in self.log if isinstance(each, Claim)]

    def leave(self) -> None:
        self._slots.is_draining = True

    def _begin(self, claim: Claim) -> Attempt:
        self.log.append(claim)
        return self._attempt

    def _free_slot(self, attempt: Attempt) -> None:
        if attempt.has_slot:
            self.log.append("free")
        super()._free_slot(attempt)


@pytest.fixture(autouse=True)
def no_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attempt, "PATIENCE", 0.001)


@pytest.fixture
def slot(store: Store, shaky: Store, blobs: Blobs, folder: Path) -> Callable[[Claim], Slot]:
    return lambda claimed: Slot(shaky, blobs, folder / "scratch", claimed)


# Who may follow


async def next_of(store: Store, plan: Plan, *done: str, kinds: Mapping[str, frozenset[str]] = HERE) -> TaskId | None:
    """Who may follow the stage that is claimed after these are done."""
    await submit(store, plan)
    for _ in done:
        await finish(store, await claim_one(store))
    return next_task(await claim_one(store), kinds)


async def test_the_stage_that_needs_only_this_one_may_follow(store: Store) -> None:
    assert await next_of(store, CHAIN) == BIE


async def test_the_last_stage_has_nobody_to_follow(store: Store) -> None:
    assert await next_of(store, ONE) is None


async def test_who_needs_a_stage_beside_this_one_cannot_follow(store: Store) -> None:
    await submit(store, DIAMOND)
    await finish(store, await claim_one(store))

    assert [next_task(await claim_one(store), HERE) for _ in range(2)] == [None, None]


async def test_what_this_one_was_given_is_there_for_the_next(store: Store) -> None:
    assert await next_of(store, OVER, "a") == TaskId("c")


async def test_of_several_the_first_may_follow(store: Store) -> None:
    assert await next_of(store, DIAMOND) == TaskId("left")


async def test_elements_have_no_heir_and_are_none(store: Store) -> None:
    await submit(store, FAN)
    claimed = await claim_one(store)

    assert next_task(claimed, HERE) is None
    await finish(store, claimed, Result(b"[1]"), width=1)
    last = await claim_one(store)
    assert last.task == page(0)
    assert next_task(last, HERE) is None


async def test_a_gathered_result_that_was_given_is_there_for_the_next(store: Store) -> None:
    wide = plan(*FAN.stages, stage("index", needs("book"), gather("page"), kind="only"))
    job = await split(store, 1, wide)
    await finish(store, await claim_one(store))
    claimed = await claim_one(store)

    assert (claimed.job.id, claimed.task) == (job.id, TaskId("book"))
    assert next_task(claimed, HERE) == TaskId("index")


async def test_a_stage_of_another_queue_waits_for_a_slot_there(store: Store) -> None:
    apart = plan(stage("onnx"), stage("bie", needs("onnx"), queue="bie"))

    assert await next_of(store, apart, kinds={**HERE, "bie": frozenset(KINDS)}) is None


async def test_a_stage_that_this_worker_does_not_have_is_left_to_others(store: Store) -> None:
    await submit(store, CHAIN)
    claimed = await claim_one(store)

    assert next_task(claimed, {"default": frozenset({claimed.job.plan.stage("onnx").kind})}) is None


# How it goes


async def test_the_next_stage_starts_with_the_finish_and_takes_over_the_slot(
    store: Store, faults: Faults, slot: Callable[[Claim], Slot]
) -> None:
    here = slot(await started(store, CHAIN))

    await here.carry()

    [begun] = here.begun()
    job = await held(store, begun.job.id)
    assert here.log == ["free", begun]
    assert len(faults.args("commit")) == 1
    assert (begun.job, begun.task, begun.spec) == (job, BIE, SPEC)
    assert begun.upstream == {"onnx": (Result(b"7"),)}
    assert await store.held_by("w", limit=9) == [(job, BIE)]
    assert (await words(store, job.id))[-2:] == ["stage_completed", "stage_started"]
    assert await offered(store) == []


async def test_who_is_more_urgent_is_not_overtaken(store: Store, slot: Callable[[Claim], Slot]) -> None:
    claimed = await started(store, CHAIN)
    here = slot(claimed)
    urgent = await submit(store, priority=5)

    await here.carry()

    assert here.log == ["free"]
    assert [job_id for job_id, _ in await offered(store)] == [urgent.id, claimed.job.id]


async def test_who_came_later_waits(store: Store, slot: Callable[[Claim], Slot]) -> None:
    here = slot(await started(store, CHAIN))
    await submit(store)

    await here.carry()

    assert len(here.begun()) == 1


async def test_what_is_being_cancelled_goes_no_further(store: Store, slot: Callable[[Claim], Slot]) -> None:
    claimed = await started(store, CHAIN)
    here = slot(claimed)
    await cancel(store, claimed.job.id)

    await here.carry()

    assert here.log == ["free"]
    assert (await held(store, claimed.job.id)).status is Status.CANCELLED


async def test_a_slot_is_kept_while_nobody_knows_whether_the_next_stage_has_it(
    store: Store, faults: Faults, slot: Callable[[Claim], Slot]
) -> None:
    here = slot(await started(store, CHAIN))
    faults.refuse("commit", StoreUnavailable)
    held_up = faults.hold("commit")

    carrying = asyncio.create_task(here.carry())
    await held_up.arrived.wait()
    assert here.log == []
    held_up.release.set()
    await carrying

    assert here.log == ["free"]
    assert await offered(store) != []


async def test_what_was_claimed_by_another_meanwhile_is_not_taken_for_ours(
    store: Store, faults: Faults, slot: Callable[[Claim], Slot]
) -> None:
    here = slot(await started(store, CHAIN))
    faults.refuse("commit", StoreUnavailable)  # from now on the finish goes alone
    faults.lose_answer("commit", UnknownOutcome)
    looking = faults.hold("has_change")

    carrying = asyncio.create_task(here.carry())
    await looking.arrived.wait()
    assert (await claim_one(store, worker="another")).task == BIE
    looking.release.set()
    await carrying

    assert here.log == ["free"]


async def test_who_is_leaving_starts_nothing_more(store: Store, slot: Callable[[Claim], Slot]) -> None:
    here = slot(await started(store, CHAIN))
    here.leave()

    await here.carry()

    assert here.log == ["free"]
    assert await offered(store) != []


async def test_a_start_whose_answer_was_lost_is_found_and_gone_on_with(
    store: Store, faults: Faults, slot: Callable[[Claim], Slot]
) -> None:
    here = slot(await started(store, CHAIN))
    faults.lose_answer("commit", UnknownOutcome)

    await here.carry()

    [begun] = here.begun()
    assert begun.task == BIE
    assert await store.held_by("w", limit=9) == [(begun.job, BIE)]


async def test_a_start_that_was_lost_again_in_the_meantime_is_left_alone(
    store: Store, faults: Faults, slot: Callable[[Claim], Slot]
) -> None:
    claimed = await started(store, CHAIN)
    here = slot(claimed)
    faults.lose_answer("commit", UnknownOutcome)
    looking = faults.hold("has_change")

    carrying = asyncio.create_task(here.carry())
    await looking.arrived.wait()
    await cancel(store, claimed.job.id)  # asks what runs to stop: it keeps its lease until it has
    [(job, at)] = await store.held_by("w", limit=9)
    task = job.task(at)
    assert task is not None
    assert task.token is not None
    await finish(store, Claim(job, at, SPEC, {}))
    looking.release.set()
    await carrying

    assert here.log == ["free"]


async def test_a_result_that_is_refused_starts_nothing(store: Store, slot: Callable[[Claim], Slot]) -> None:
    wide = plan(stage("split"), stage("page", needs("split")), stage("many", replace(needs("split"), how="each")))
    claimed = await started(store, wide)
    here = slot(claimed)  # 7 is no list

    await here.carry()

    assert here.log == ["free"]
    assert (await held(store, claimed.job.id)).status is Status.FAILED
