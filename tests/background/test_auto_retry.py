"""Failed jobs that begin again by themselves, within a budget that the store keeps."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path
from typing import Any

import apsw
import pytest

from packhorse import crashpoints
from packhorse.background import failures as engine
from packhorse.background.failures import BUSY, HOLD, LATEST, POLICY, POLL, AutoRetry
from packhorse.core.models import Job
from packhorse.core.plan import Plan, Revive, Status
from packhorse.jobs.transact import Transactor
from packhorse.store.base import Store
from packhorse.store.collections.failures import dismiss_group, get_failures, take_actions
from tests.background.test_bulk_actions import Killed, dying
from tests.contract.builders import claim, fail, held, plan, stage, started
from tests.contract.failures import (
    BY_ANN,
    OPEN,
    RETRIED,
    again,
    assert_counted,
    failing,
    failing_many,
    id_of,
    one,
    only_group,
    wrong,
)
from tests.contract.stores import Clock

BACKOFF = 10.0


def policy(budget: int = 100, per: float = 600.0, **options: Any) -> Plan:
    revive = Revive(("BROKEN",), times=2, backoff=BACKOFF, budget=budget, per=per)
    return plan(stage("only"), revive=revive, deadline=10 * 3_600.0, pending=10 * 3_600.0, **options)


@pytest.fixture
def reviver(store: Store) -> AutoRetry:
    return AutoRetry(store, Transactor(store))


async def runs(store: Store, jobs: list[Job]) -> list[int]:
    return [(await held(store, job.id)).run for job in jobs]


async def test_a_failed_job_begins_again_when_its_time_has_come(store: Store, reviver: AutoRetry, clock: Clock) -> None:
    job = await failing(store, plan=policy())

    await reviver.tick()
    early = await held(store, job.id)
    clock.forward(BACKOFF)
    await reviver.tick()

    assert (early.run, early.status) == (1, Status.FAILED)
    revived = await held(store, job.id)
    assert (revived.run, revived.status, revived.revived) == (2, Status.PENDING, 1)
    failure = await one(store, job)
    assert failure.status is RETRIED
    assert failure.settled is not None
    assert (failure.settled.by, failure.settled.run) == (POLICY, 2)
    assert [event.data["why"] for event in await store.events(job.id) if event.type == "retrying"] == ["revive"]
    await assert_counted(store)


async def test_after_so_many_times_it_stays_failed(store: Store, reviver: AutoRetry, clock: Clock) -> None:
    job = await failing(store, plan=policy())
    for n in range(5):
        clock.forward(BACKOFF * 2**n)
        await reviver.tick()
        for each in await claim(store):
            job = await fail(store, each, wrong())

    assert job.run == 3
    assert [each.revived for each in await get_failures(store, [id_of(job)]) if each] == [2]


async def test_the_budget_of_a_fingerprint_is_honoured_by_any_number_of_workers(
    store: Store, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "BATCH", 3)  # so that each of them has some of it at the same time
    jobs = await failing_many(store, *[wrong(f"It broke {n} times.") for n in range(40)], plan=policy(budget=7))
    others = await failing_many(store, *[wrong("Another thing.")] * 3, plan=policy(budget=7))
    workers = [AutoRetry(store, Transactor(store)) for _ in range(4)]
    clock.forward(BACKOFF)
    counts = []
    for _ in range(5):
        for _ in range(5):
            await asyncio.gather(*(worker.tick() for worker in workers))
        counts.append(sum(run == 2 for run in await runs(store, jobs)))
        clock.forward(60.0)

    assert counts == [7, 7, 7, 7, 7]
    assert await runs(store, others) == [2, 2, 2]
    clock.forward(600.0)
    for _ in range(5):
        await asyncio.gather(*(worker.tick() for worker in workers))
    assert sum(run == 2 for run in await runs(store, jobs)) == 14


async def test_nothing_of_a_dismissed_group_is_revived(store: Store, reviver: AutoRetry, clock: Clock) -> None:
    job = await failing(store, plan=policy())
    await dismiss_group(store, "default", (await only_group(store)).fingerprint, BY_ANN)
    clock.forward(BACKOFF)

    await reviver.tick()

    assert (await held(store, job.id)).run == 1
    assert (await one(store, job)).status is OPEN
    clock.forward(3_600.0)
    assert await take_actions(store, "revive", 10, 1.0) == []


async def test_a_dismissed_failure_is_not_revived_though_its_group_is_open(
    store: Store, reviver: AutoRetry, clock: Clock
) -> None:
    job = await failing(store, plan=policy())
    await store.dismiss_failures([id_of(job)], BY_ANN)
    clock.forward(BACKOFF)

    await reviver.tick()

    assert (await held(store, job.id)).run == 1


async def test_what_a_person_has_retried_costs_no_budget(store: Store, reviver: AutoRetry, clock: Clock) -> None:
    first, second = [await failing(store, plan=policy(budget=1)) for _ in range(2)]
    await again(store, first)
    clock.forward(BACKOFF)

    await reviver.tick()

    assert await runs(store, [first, second]) == [2, 2]


async def test_a_job_whose_user_is_busy_is_tried_again_and_costs_nothing_meanwhile(
    store: Store, reviver: AutoRetry, clock: Clock
) -> None:
    busy = await failing(store, plan=policy(budget=1, slot="one"), user="bob")
    claim_of_other = await started(store, policy(slot="one"), user="bob")
    free = await failing(store, plan=policy(budget=1), user="eve")
    clock.forward(BACKOFF)
    await reviver.tick()

    assert await runs(store, [busy, free]) == [1, 2]
    await fail(store, claim_of_other, wrong("Other.", "OTHER"))
    clock.forward(600.0 + BUSY)
    await reviver.tick()
    assert await runs(store, [busy]) == [2]


@pytest.mark.parametrize("point", ["revival.spent", "revival.made"])
async def test_who_dies_in_between_revives_it_once_and_never_beyond_the_budget(
    store: Store, reviver: AutoRetry, clock: Clock, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    jobs = await failing_many(store, *[wrong()] * 6, plan=policy(budget=3))
    clock.forward(BACKOFF)
    monkeypatch.setattr(crashpoints, "hook", dying(point))
    with pytest.raises(Killed):
        await reviver.tick()
    monkeypatch.setattr(crashpoints, "hook", None)
    for _ in range(3):
        clock.forward(HOLD)
        await AutoRetry(store, Transactor(store)).tick()

    found = await runs(store, jobs)
    assert max(found) == 2
    assert sum(run == 2 for run in found) == (2 if point == "revival.spent" else 3)
    await assert_counted(store)


async def test_one_that_cannot_be_revived_keeps_no_other_from_it(
    store: Store, reviver: AutoRetry, clock: Clock, folder: Path
) -> None:
    jobs = await failing_many(store, *[wrong()] * 5, plan=policy())
    first = min(id_of(job) for job in jobs)
    with contextlib.closing(apsw.Connection(str(folder / "store.db"))) as db:
        db.execute("UPDATE failures SET body = '{' WHERE id = ?", (first,))
    clock.forward(BACKOFF)

    await reviver.tick()

    assert sorted(await runs(store, jobs)) == [1, 2, 2, 2, 2]
    assert await take_actions(store, "revive", 10, 1.0) == []
    clock.forward(LATEST)
    assert [each.id for each in await take_actions(store, "revive", 10, 1.0)] == [f"revive.{first}"]


async def test_with_nothing_to_do_it_rests(reviver: AutoRetry) -> None:
    assert await reviver.tick() == POLL
