"""Workers of one host: the dead are noticed at once, their jobs before themselves, and nobody else is judged."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from packhorse import host
from packhorse.background.reaper import BATCH, LONG_GONE, DeadWorkers
from packhorse.core.plan import Status, TaskStatus
from packhorse.errors import CorruptRecord, StoreUnavailable
from packhorse.jobs.transact import Transactor
from packhorse.store.base import Store
from packhorse.store.collections import workers
from packhorse.store.collections.workers import WorkerCard
from tests.contract.builders import LEASE, attempt_of, card, claim, finish, held, plan, stage, started, submit_many
from tests.contract.stores import Clock
from tests.worker.faulty import Faults
from tests.worker.processes import born, dead, running


def here(id: str, **options: Any) -> WorkerCard:
    """The card of a worker on this host."""
    facts = {"boot": host.boot(), "pid_space": host.pid_space(), "pid": os.getpid(), "born": born(os.getpid())}
    return card(id, **{**facts, **options})


ME = here("me")


@pytest.fixture
def neighbours(shaky: Store, transact: Transactor) -> DeadWorkers:
    return DeadWorkers(shaky, transact, ME, LEASE)


@pytest.fixture
def dead_card() -> WorkerCard:
    pid, born_at = dead()
    return here("w", pid=pid, born=born_at)


@pytest.fixture
def living_card() -> Iterator[WorkerCard]:
    with running() as process:
        yield here("w", pid=process.pid, born=born(process.pid))


async def names(store: Store) -> list[str]:
    return [each.id for each in await workers.list_all(store)]


# The dead


async def test_the_jobs_of_a_dead_worker_are_free_and_counted_and_it_is_forgotten(
    store: Store, neighbours: DeadWorkers, dead_card: WorkerCard
) -> None:
    claimed = await started(store, worker="w")
    await workers.enroll(store, dead_card)

    await neighbours.tick()

    job = await held(store, claimed.job.id)
    assert await names(store) == []
    assert await store.held_by("w", 10) == []
    assert (job.stage("only").status, attempt_of(job)) == (TaskStatus.PENDING, 1)
    assert [each.job.id for each in await claim(store)] == [job.id]


async def test_a_stage_that_killed_its_last_worker_is_not_tried_for_ever(
    store: Store, neighbours: DeadWorkers, dead_card: WorkerCard
) -> None:
    claimed = await started(store, plan(stage("only", retries=0)), worker="w")
    await workers.enroll(store, dead_card)

    await neighbours.tick()

    job = await held(store, claimed.job.id)
    assert job.status is Status.FAILED
    assert job.error is not None
    assert job.error.code == "WORKER_LOST"


async def test_a_worker_whose_pid_another_process_has_now_is_dead(store: Store, neighbours: DeadWorkers) -> None:
    claimed = await started(store, worker="w")
    await workers.enroll(store, here("w", born=ME.born - 100.0))

    await neighbours.tick()

    assert await names(store) == []
    assert (await held(store, claimed.job.id)).stage("only").status is TaskStatus.PENDING


async def test_a_host_that_has_another_name_now_is_still_this_host(store: Store, neighbours: DeadWorkers) -> None:
    pid, born_at = dead()
    await workers.enroll(store, here("w", host="the name before", pid=pid, born=born_at))

    await neighbours.tick()

    assert await names(store) == []


async def test_a_job_that_cannot_be_written_keeps_its_neighbours_from_nothing_and_its_worker_known(
    store: Store, neighbours: DeadWorkers, dead_card: WorkerCard, faults: Faults
) -> None:
    for _ in range(3):
        await started(store, worker="w")
    await workers.enroll(store, dead_card)
    faults.refuse("commit", lambda: CorruptRecord(what="state", job_id="any", reason="test"))

    with pytest.raises(CorruptRecord):
        await neighbours.tick()
    known, left = await names(store), await store.held_by("w", 10)
    await neighbours.tick()

    assert (known, len(left)) == (["w"], 1)
    assert await names(store) == []
    assert await store.held_by("w", 10) == []


async def test_the_jobs_of_a_dead_worker_are_free_before_it_is_forgotten(
    store: Store, neighbours: DeadWorkers, dead_card: WorkerCard, faults: Faults
) -> None:
    await started(store, worker="w")
    await workers.enroll(store, dead_card)
    held_then: list[Any] = []

    async def look() -> None:
        held_then.append(await store.held_by("w", 10))

    faults.before("put worker", look)
    await neighbours.tick()

    assert held_then == [[]]
    assert faults.names().index("commit") < faults.names().index("put worker")


async def test_a_dead_worker_whose_jobs_could_not_be_freed_is_remembered_until_they_are(
    store: Store, neighbours: DeadWorkers, dead_card: WorkerCard, faults: Faults
) -> None:
    await started(store, worker="w")
    await workers.enroll(store, dead_card)
    faults.refuse("commit", StoreUnavailable)

    with pytest.raises(StoreUnavailable):
        await neighbours.tick()
    remembered = await names(store)
    await neighbours.tick()

    assert remembered == ["w"]
    assert "put worker" not in faults.names()[: faults.names().index("commit") + 1]
    assert await names(store) == []
    assert await store.held_by("w", 10) == []


async def test_more_jobs_than_fit_in_a_batch_are_all_freed(
    store: Store, neighbours: DeadWorkers, dead_card: WorkerCard
) -> None:
    await submit_many(store, BATCH + 5)
    await claim(store, worker="w")
    await workers.enroll(store, dead_card)

    await neighbours.tick()

    assert await store.held_by("w", 1000) == []
    assert len(await claim(store)) == BATCH + 5


async def test_a_page_of_jobs_that_cannot_be_written_does_not_hide_those_behind_them(
    store: Store, neighbours: DeadWorkers, dead_card: WorkerCard, faults: Faults
) -> None:
    await submit_many(store, BATCH + 5)
    await claim(store, worker="w")
    await workers.enroll(store, dead_card)
    faults.refuse("commit", lambda: CorruptRecord(what="state", job_id="any", reason="test"), times=BATCH)

    with pytest.raises(CorruptRecord):
        await neighbours.tick()

    assert len(await store.held_by("w", 1000)) == BATCH


async def test_a_stage_that_was_finished_after_we_looked_stays_finished(
    store: Store, neighbours: DeadWorkers, dead_card: WorkerCard, faults: Faults
) -> None:
    claimed = await started(store, worker="w")
    await workers.enroll(store, dead_card)
    faults.after("held_by", lambda: finish(store, claimed))

    await neighbours.tick()

    assert (await held(store, claimed.job.id)).status is Status.COMPLETED
    assert await names(store) == []


async def test_the_scratch_folder_of_a_dead_worker_is_removed(
    store: Store, neighbours: DeadWorkers, tmp_path: Path
) -> None:
    (tmp_path / "w" / "token").mkdir(parents=True)
    (tmp_path / "w" / "token" / "left.bin").write_bytes(b"over")
    pid, born_at = dead()
    await workers.enroll(store, here("w", pid=pid, born=born_at, scratch=str(tmp_path / "w")))

    await neighbours.tick()

    assert list(tmp_path.iterdir()) == []


# Everybody else


async def test_a_living_worker_keeps_what_it_holds(
    store: Store, neighbours: DeadWorkers, living_card: WorkerCard, clock: Clock
) -> None:
    claimed = await started(store, worker="w")
    await workers.enroll(store, living_card)
    clock.forward(10 * LONG_GONE * LEASE)

    await neighbours.tick()

    assert await names(store) == ["w"]
    assert await held(store, claimed.job.id) == claimed.job


@pytest.mark.parametrize("elsewhere", [{"boot": "another start"}, {"pid_space": "another container"}])
async def test_a_worker_of_the_same_host_name_that_cannot_be_seen_from_here_is_not_judged(
    store: Store, neighbours: DeadWorkers, elsewhere: dict[str, str]
) -> None:
    pid, born_at = dead()
    claimed = await started(store, worker="w")
    away = here("w", **{"host": ME.host, "pid": pid, "born": born_at, **elsewhere})
    await workers.enroll(store, away)

    await neighbours.tick()

    assert await names(store) == ["w"]
    assert await held(store, claimed.job.id) == claimed.job


async def test_a_worker_does_not_judge_itself(store: Store, transact: Transactor, dead_card: WorkerCard) -> None:
    claimed = await started(store, worker="w")
    await workers.enroll(store, dead_card)

    await DeadWorkers(store, transact, dead_card, LEASE).tick()

    assert await names(store) == ["w"]
    assert await held(store, claimed.job.id) == claimed.job


async def test_a_silent_worker_of_another_host_is_forgotten_after_a_long_time(
    store: Store, neighbours: DeadWorkers, clock: Clock
) -> None:
    await workers.enroll(store, card("far", boot="elsewhere"))

    clock.forward(LONG_GONE * LEASE)
    await neighbours.tick()
    before = await names(store)
    clock.forward(1.0)
    await neighbours.tick()

    assert before == ["far"]
    assert await names(store) == []


async def test_a_silent_worker_of_another_host_is_remembered_while_it_holds_a_lease(
    store: Store, neighbours: DeadWorkers, clock: Clock
) -> None:
    claimed = await started(store, worker="far")
    await workers.enroll(store, card("far", boot="elsewhere"))

    clock.forward(2 * LONG_GONE * LEASE)
    await neighbours.tick()

    assert await names(store) == ["far"]
    assert await held(store, claimed.job.id) == claimed.job


# Those who are missed


class Steady:
    """A steady clock that moves when it is told to."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


async def watched(neighbours: DeadWorkers, steady: Steady, seconds: float, step: float = 0.5) -> None:
    """Look again and again, for so long."""
    for _ in range(round(seconds / step)):
        steady.now += step
        await neighbours.tick()


@pytest.fixture
def steady() -> Steady:
    return Steady()


@pytest.fixture
def listening(shaky: Store, transact: Transactor, steady: Steady) -> DeadWorkers:
    return DeadWorkers(shaky, transact, ME, LEASE, steady)


async def test_what_a_dead_worker_held_is_written_down_before_it_is_given_back(
    store: Store, neighbours: DeadWorkers, dead_card: WorkerCard, clock: Clock
) -> None:
    claimed = await started(store, worker="w")
    await workers.enroll(store, dead_card)

    await neighbours.tick()

    [lost] = await workers.list_lost(store)
    assert (lost.id, lost.pid, lost.by, lost.missed_at, lost.tasks) == ("w", dead_card.pid, "me", clock(), 1)
    assert [(work.job_id, work.task) for work in lost.work] == [(claimed.job.id, claimed.task)]


async def test_a_worker_of_another_host_that_falls_silent_is_missed_once(
    store: Store, listening: DeadWorkers, steady: Steady, faults: Faults
) -> None:
    claimed = await started(store, worker="far")
    await workers.enroll(store, card("far", boot="another"))

    await watched(listening, steady, LEASE)
    early = await workers.list_lost(store)
    await watched(listening, steady, LEASE)

    [lost] = await workers.list_lost(store)
    assert early == []
    assert (lost.id, lost.tasks, [work.job_id for work in lost.work]) == ("far", 1, [claimed.job.id])
    assert len(faults.args("put lost_worker")) == 1
    assert await names(store) == ["far"]


async def test_a_worker_that_is_heard_of_is_not_missed(
    store: Store, listening: DeadWorkers, steady: Steady, clock: Clock
) -> None:
    for _ in range(8):
        await workers.enroll(store, card("far", boot="another"))
        await watched(listening, steady, LEASE / 2)
        clock.forward(LEASE / 2)

    assert await workers.list_lost(store) == []


async def test_nobody_is_blamed_for_a_time_in_which_we_did_not_listen(
    store: Store, listening: DeadWorkers, steady: Steady
) -> None:
    await workers.enroll(store, card("far", boot="another"))
    await watched(listening, steady, LEASE / 2)

    steady.now += 10 * LEASE  # the store was away, or we were stopped
    await listening.tick()

    assert await workers.list_lost(store) == []


async def test_a_worker_that_came_back_and_fell_silent_again_is_missed_again(
    store: Store, listening: DeadWorkers, steady: Steady, clock: Clock
) -> None:
    await workers.enroll(store, card("far", boot="another"))
    await watched(listening, steady, 2 * LEASE)
    clock.forward(100.0)
    await workers.enroll(store, card("far", boot="another"))

    await watched(listening, steady, 2 * LEASE)

    [lost] = await workers.list_lost(store)
    assert lost.missed_at == clock()
