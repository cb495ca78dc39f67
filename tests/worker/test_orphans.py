"""Claims that a store made although the worker was not told: handed back uncounted, however late they are made."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

import pytest
from msgspec.structs import replace

from packhorse.core.changes import Change, Grant
from packhorse.core.models import Job, TaskId
from packhorse.core.plan import Status
from packhorse.errors import CorruptRecord, PackhorseError, StoreUnavailable, UnknownOutcome
from packhorse.jobs.transact import Transactor
from packhorse.store.base import Claim, Decide, Store
from packhorse.worker.claims import BATCH, Orphans
from packhorse.worker.pool import describe
from packhorse.worker.worker import Worker
from tests.contract.builders import (
    LEASE,
    attempt_of,
    claim,
    claim_one,
    held,
    split,
    started,
    submit,
    submit_many,
    waiting,
    words,
)
from tests.contract.stores import Clock
from tests.journey.site import Site, until
from tests.worker.faulty import Faults


class Hands:
    """What a worker knows of its attempts, and its look at what the store thinks it holds."""

    def __init__(self, store: Store, transact: Transactor) -> None:
        self.own: set[str] = set()
        self.steady = Clock(1_000.0)
        self.orphans = Orphans(store, transact, "w", LEASE, lambda: self.own, self.steady)

    async def look(self, seconds: float = 0.0) -> None:
        self.steady.forward(seconds)
        await self.orphans.hand_back()


@pytest.fixture
def hands(shaky: Store, transact: Transactor) -> Hands:
    return Hands(shaky, transact)


async def test_a_claim_that_is_made_late_is_handed_back_for_a_lease_after_its_answer_was_lost(
    store: Store, hands: Hands
) -> None:
    hands.orphans.note_failed_claim(UnknownOutcome())
    await hands.look()
    await hands.look(LEASE / 2)
    orphan = await started(store)

    await hands.look(LEASE / 10)

    assert await store.held_by("w", 10) == []
    assert attempt_of(await held(store, orphan.job.id)) == 0
    assert (await words(store, orphan.job.id))[-1] == "retrying"


async def test_the_worker_looks_from_time_to_time_even_if_no_answer_was_lost(
    store: Store, hands: Hands, faults: Faults
) -> None:
    await started(store)

    await hands.look(LEASE / 4)
    before = faults.names().count("held_by")
    await hands.look(LEASE / 4)

    assert before == 0
    assert await store.held_by("w", 10) == []


async def test_an_outage_after_a_lost_answer_prolongs_the_time_in_which_it_may_be_made(hands: Hands) -> None:
    hands.orphans.note_failed_claim(UnknownOutcome())
    hands.steady.forward(LEASE - 1.0)
    hands.orphans.note_failed_claim(StoreUnavailable())
    hands.steady.forward(LEASE - 1.0)
    before = hands.orphans.is_unsure
    hands.steady.forward(2.0)

    assert before
    assert not hands.orphans.is_unsure


async def test_a_claim_that_was_certainly_not_made_is_not_waited_for(hands: Hands) -> None:
    hands.orphans.note_failed_claim(StoreUnavailable())

    assert not hands.orphans.is_unsure


async def test_an_orphan_behind_many_running_attempts_is_found(store: Store, hands: Hands) -> None:
    await submit_many(store, BATCH + 5)
    hands.own |= {each.token for each in await claim(store)}
    orphan = await started(store)

    await hands.look(LEASE)

    assert len(await store.held_by("w", 1000)) == BATCH + 5
    assert await waiting(store) == [(orphan.job.id, orphan.task)]


async def test_an_orphaned_element_of_a_job_that_also_runs_here_is_handed_back(store: Store, hands: Hands) -> None:
    await split(store, 2)
    mine, orphan = await claim(store, 2)
    hands.own |= {mine.token}

    await hands.look(LEASE)

    assert [at for _, at in await store.held_by("w", 10)] == [mine.task]
    assert await waiting(store) == [(orphan.job.id, orphan.task)]


async def test_an_attempt_that_begins_while_the_worker_looks_is_its_own(
    store: Store, hands: Hands, faults: Faults
) -> None:
    await submit(store)

    async def begin() -> None:
        hands.own.add((await claim_one(store)).token)

    faults.before("held_by", begin)
    await hands.look(LEASE)

    assert len(await store.held_by("w", 10)) == 1


async def test_an_orphan_that_cannot_be_written_keeps_neither_others_nor_the_worker_from_going_on(
    store: Store, hands: Hands, faults: Faults
) -> None:
    for _ in range(3):
        await started(store)
    faults.refuse("commit", lambda: CorruptRecord(what="state", job_id="any", reason="test"))

    await hands.look(LEASE)

    assert len(await store.held_by("w", 10)) == 1


async def test_an_attempt_whose_end_could_not_be_written_is_left_to_the_reaper(store: Store, hands: Hands) -> None:
    unwritten = await started(store)
    hands.orphans.note_unwritten(unwritten.token)

    for _ in range(10):
        await hands.look(LEASE)

    [(job, task)] = await store.held_by("w", 10)
    assert (job.id, task, attempt_of(job)) == (unwritten.job.id, unwritten.task, 1)


async def test_attempts_that_the_store_no_longer_shows_are_forgotten_after_two_leases(
    store: Store, hands: Hands, faults: Faults
) -> None:
    hands.orphans.note_unwritten("gone")

    for _ in range(4):
        await hands.look(LEASE)

    assert [limit for _, limit in faults.args("held_by")] == [BATCH + 1, BATCH + 1, BATCH, BATCH]


# With a worker.


async def test_a_stage_whose_end_cannot_be_written_costs_its_attempt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = Site(tmp_path)
    for name, value in site.env.items():
        monkeypatch.setenv(name, value)
    store, blobs = await site.runtime.open()
    handle = await site.submit("says", text="once")  # which has no attempt to spare
    commit, refused = store.commit, 0

    async def refuse_first_end(changes: Sequence[Change]) -> list[PackhorseError | None]:
        nonlocal refused
        if refused == 0 and any(change.after.status is Status.COMPLETED for change in changes):
            refused += 1
            raise CorruptRecord(what="state", job_id=changes[0].after.id, reason="test")
        return await commit(changes)

    monkeypatch.setattr(store, "commit", refuse_first_end)
    worker = Worker(store, blobs, site.settings, await describe(site.settings.app))
    stop = asyncio.Event()
    running = asyncio.create_task(worker.run(stop))
    job = await site.ended(handle)
    stop.set()
    await running
    events = await site.events(job.id)
    await site.close()

    assert refused == 1
    assert (job.status, attempt_of(job, TaskId(job.plan.stages[0].name))) == (Status.FAILED, 1)
    assert "handed_back" not in [event.data.get("why") for event in events]


class Stalled:
    """A store whose first claim is given up by the worker, and made when ``lands`` is set. Nobody claims meanwhile."""

    def __init__(self, store: Store, *, is_overdue: bool = False) -> None:
        self.claims = store.claim
        self.lands = asyncio.Event()
        self.later = 0
        """Claims that the worker tried after it had given up the first."""
        self.landed: asyncio.Task[list[Claim]] | None = None
        self._is_overdue = is_overdue

    async def claim(self, wants: Mapping[str, int], kinds: Collection[str], decide: Decide) -> list[Claim]:
        if self.landed is None:
            self.landed = asyncio.create_task(self._land(wants, kinds, decide))
            raise UnknownOutcome
        self.later += 1
        return [] if not self.landed.done() else await self.claims(wants, kinds, decide)

    async def _land(self, wants: Mapping[str, int], kinds: Collection[str], decide: Decide) -> list[Claim]:
        await self.lands.wait()
        return await self.claims(wants, kinds, self._overdue(decide) if self._is_overdue else decide)

    @staticmethod
    def _overdue(decide: Decide) -> Decide:
        """The lease was given when the claim began, and is over by the time it is made."""

        def start(job: Job, task: TaskId) -> Change | None:
            change = decide(job, task)
            assert change is not None
            effects = [replace(each, seconds=0.0) if isinstance(each, Grant) else each for each in change.effects]
            return replace(change, effects=tuple(effects))

        return start


@pytest.mark.parametrize("is_overdue", [False, True])
async def test_a_claim_that_is_made_long_after_the_worker_gave_it_up_costs_no_attempt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_overdue: bool
) -> None:
    site = Site(tmp_path)
    for name, value in site.env.items():
        monkeypatch.setenv(name, value)
    store, blobs = await site.runtime.open()
    handle = await site.submit("says", text="once")  # which has no attempt to spare
    stalled = Stalled(store, is_overdue=is_overdue)
    monkeypatch.setattr(store, "claim", stalled.claim)
    worker = Worker(store, blobs, site.settings, await describe(site.settings.app))
    stop = asyncio.Event()
    running = asyncio.create_task(worker.run(stop))

    async def has_looked() -> bool | None:
        return stalled.later > 2 or None

    await until(has_looked, 60, site.log_text)
    stalled.lands.set()
    job = await site.ended(handle)
    stop.set()
    await running
    await site.close()

    assert job.status is Status.COMPLETED
    assert job.retry_count == 0


async def test_a_worker_that_drains_hands_back_a_claim_that_is_made_late(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = Site(tmp_path, lease=120, drain=240)  # it must not give up before a busy machine has come so far
    for name, value in site.env.items():
        monkeypatch.setenv(name, value)
    store, blobs = await site.runtime.open()
    handle = await site.submit("says", text="once")
    stalled = Stalled(store)
    monkeypatch.setattr(store, "claim", stalled.claim)
    worker = Worker(store, blobs, site.settings, await describe(site.settings.app))
    stop, hurry = asyncio.Event(), asyncio.Event()
    running = asyncio.create_task(worker.run(stop, hurry))

    async def has_given_up() -> bool | None:
        return stalled.later > 0 or None

    async def is_draining() -> bool | None:
        return worker.is_draining or None

    async def is_handed_back() -> bool | None:
        job = await site.job(handle)
        return (job.version > 1 and not await store.held_by(worker.card.id, 10)) or None

    await until(has_given_up, 60, site.log_text)
    stop.set()
    await until(is_draining, 60, site.log_text)
    stalled.lands.set()
    await until(is_handed_back, 60, site.log_text)
    hurry.set()
    await running
    job = await site.job(handle)
    await site.close()

    assert attempt_of(job, TaskId(job.plan.stages[0].name)) == 0
