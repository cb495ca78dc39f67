"""Bulk actions about many failures: carried out in steps, counted once, whoever dies meanwhile."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from msgspec.structs import replace

from packhorse import crashpoints
from packhorse.background.failures import BATCH, HOLD, NAMED, POLL, SOONEST, BulkActions
from packhorse.core import failures as rules
from packhorse.core.failures import FailureAction
from packhorse.errors import StoreError
from packhorse.jobs.transact import Transactor
from packhorse.schemas.failures import LeftFailure, Order, order_from_action, order_to_action
from packhorse.store.base import FailureFilter, Store
from packhorse.store.collections.failures import add_action, get_order, take_actions
from tests.contract.builders import SLOTTED, claim_one, fail, finish, held, marked, started
from tests.contract.failures import (
    ALL,
    DISMISSED,
    OPEN,
    RESOLVED,
    RETRIED,
    again,
    assert_counted,
    failing,
    failing_many,
    id_of,
    one,
    wrong,
)
from tests.contract.stores import Clock
from tests.worker.faulty import Faults


class Killed(BaseException):
    """The process is gone: nothing catches it."""


@pytest.fixture
def duty(store: Store) -> BulkActions:
    return BulkActions(store, Transactor(store))


async def give(store: Store, kind: str = "retry", **facts: Any) -> str:
    wanted = facts.pop("wanted", None if "ids" in facts else ALL)
    order = Order(kind, store.now(), "ann", wanted=wanted, **facts)  # type: ignore[arg-type]
    action = order_to_action(order, "default", "0001")
    await add_action(store, action)
    return action.id


async def state(store: Store, order_id: str) -> Order:
    action = await get_order(store, order_id)
    assert action is not None
    return order_from_action(action)


async def carried_out(store: Store, duty: BulkActions, clock: Clock, order_id: str) -> Order:
    for _ in range(1000):
        await duty.tick()
        if (found := await state(store, order_id)).ended_at is not None:
            return found
        clock.forward(0.1)
    raise AssertionError(await state(store, order_id))


async def statuses(store: Store) -> set[object]:
    return {each.status for each in await store.failures(ALL, limit=1000)}


async def test_a_filter_retries_every_open_one_in_steps(store: Store, duty: BulkActions, clock: Clock) -> None:
    await failing_many(store, *[wrong()] * (2 * BATCH + 5))
    clock.forward(1.0)
    id = await give(store)

    await duty.tick()
    first = await state(store, id)
    done = await carried_out(store, duty, clock, id)

    assert (first.done, first.ended_at) == (BATCH, None)
    assert (done.done, done.left) == (2 * BATCH + 5, {})
    assert await statuses(store) == {RETRIED}
    await assert_counted(store)


async def test_the_failure_says_by_whom_and_in_the_course_of_which_order(
    store: Store, duty: BulkActions, clock: Clock
) -> None:
    job = await failing(store)
    clock.forward(1.0)
    id = await give(store, ids=(id_of(job),))

    await carried_out(store, duty, clock, id)

    settled = (await one(store, job)).settled
    assert settled is not None
    assert (settled.by, settled.order, settled.run) == ("ann", id, 2)
    assert (await held(store, job.id)).run == 2


@pytest.mark.parametrize("trouble", ["unreadable", "failing"])
async def test_an_order_that_cannot_be_carried_out_keeps_no_other_from_it(
    store: Store, shaky: Store, faults: Faults, clock: Clock, trouble: str
) -> None:
    duty = BulkActions(shaky, Transactor(store))
    job = await failing(store)
    bad = FailureAction("0", "order", "default", b"{", clock.now)
    if trouble == "failing":
        bad = replace(order_to_action(Order("retry", 0.0, "ann", wanted=ALL), "default", "0001"), due_at=clock.now)
        faults.refuse("failures", lambda: StoreError("always"))
    await add_action(store, bad)
    id = await give(store, ids=(id_of(job),))

    await duty.tick()

    assert (await state(store, id)).ended_at is not None
    assert (await held(store, job.id)).run == 2
    put_back = await get_order(store, bad.id)
    assert put_back is not None
    assert put_back.due_at == clock.now + SOONEST * 2


async def test_what_fails_again_meanwhile_is_not_retried_again(store: Store, duty: BulkActions, clock: Clock) -> None:
    job = await failing(store)
    clock.forward(1.0)
    id = await give(store, wanted=replace(ALL, until=clock.now))
    await duty.tick()
    clock.forward(1.0)
    await fail(store, await claim_one(store), wrong())
    done = await state(store, id)

    assert done.ended_at is not None
    assert (await held(store, job.id)).run == 2


async def test_a_pace_spreads_the_retries(store: Store, duty: BulkActions, clock: Clock) -> None:
    await failing_many(store, *[wrong()] * 6)
    clock.forward(1.0)
    id = await give(store, pace=2.0)
    seen = []
    for _ in range(5):
        await duty.tick()
        await duty.tick()
        seen.append((await state(store, id)).done)
        clock.forward(1.0)

    assert seen == [2, 4, 6, 6, 6]
    assert (await state(store, id)).ended_at is not None


async def test_a_pace_below_one_a_second_waits_longer(store: Store, duty: BulkActions, clock: Clock) -> None:
    await failing_many(store, *[wrong()] * 3)
    clock.forward(1.0)
    id = await give(store, pace=0.5)
    seen = []
    for _ in range(4):
        await duty.tick()
        seen.append((await state(store, id)).done)
        clock.forward(1.0)

    assert seen == [1, 1, 2, 2]


async def test_what_cannot_be_retried_is_counted_and_named_and_stays(
    store: Store,
    duty: BulkActions,
    clock: Clock,
) -> None:
    busy = await failing(store, plan=SLOTTED, user="bob")
    await started(store, SLOTTED, user="bob")
    gone = await failing(store)
    await store.erase((await marked(store, gone)).id)
    retried = await failing(store)
    await again(store, retried)
    fine = await failing(store, user="eve")
    clock.forward(1.0)
    unknown = rules.failure_id(clock.now, gone.id, 7)
    ids = (*(id_of(job) for job in (busy, gone, retried, fine)), unknown)

    done = await carried_out(store, duty, clock, await give(store, ids=ids))

    assert done.done == 1
    assert done.left == {"slot_taken": 1, "gone": 2, "settled": 1}
    assert done.named == (
        LeftFailure(id_of(busy), "slot_taken"),
        LeftFailure(id_of(gone), "gone"),
        LeftFailure(id_of(retried), "settled"),
        LeftFailure(unknown, "gone"),
    )
    assert [(await one(store, job)).status for job in (busy, gone, fine)] == [OPEN, OPEN, RETRIED]
    await assert_counted(store)


async def test_only_so_many_are_named(store: Store, duty: BulkActions, clock: Clock) -> None:
    ids = tuple(rules.failure_id(store.now(), "j", n) for n in range(NAMED + 50))

    done = await carried_out(store, duty, clock, await give(store, ids=ids))

    assert (len(done.named), done.left) == (NAMED, {"gone": NAMED + 50})


async def test_another_tenants_failure_is_not_there(store: Store, duty: BulkActions, clock: Clock) -> None:
    theirs = await failing(store, tenant="acme")
    clock.forward(1.0)

    done = await carried_out(store, duty, clock, await give(store, ids=(id_of(theirs),)))

    assert (done.done, done.left) == (0, {"gone": 1})
    assert (await one(store, theirs)).status is OPEN


async def test_many_are_dismissed_with_the_reason(store: Store, duty: BulkActions, clock: Clock) -> None:
    jobs = await failing_many(store, *[wrong()] * (BATCH + 1))
    await again(store, jobs[0])
    clock.forward(1.0)
    id = await give(store, "dismiss", reason="It is known.")

    done = await carried_out(store, duty, clock, id)

    assert (done.done, done.left) == (BATCH, {})
    failure = await one(store, jobs[1])
    assert failure.status is DISMISSED
    assert failure.settled is not None
    assert (failure.settled.reason, failure.settled.order) == ("It is known.", id)
    await assert_counted(store)


async def test_a_filter_heeds_what_it_names(store: Store, duty: BulkActions, clock: Clock) -> None:
    mine, other = await failing(store, wrong("One.", "A")), await failing(store, wrong("Two.", "B"))
    clock.forward(1.0)

    await carried_out(store, duty, clock, await give(store, wanted=FailureFilter("default", code="A")))

    assert [(await one(store, job)).status for job in (mine, other)] == [RETRIED, OPEN]


@pytest.mark.parametrize("is_mended_meanwhile", [False, True])
async def test_who_dies_after_the_retries_neither_loses_nor_doubles_any(
    store: Store, duty: BulkActions, clock: Clock, monkeypatch: pytest.MonkeyPatch, is_mended_meanwhile: bool
) -> None:
    jobs = await failing_many(store, *[wrong()] * 5)
    clock.forward(1.0)
    id = await give(store)
    monkeypatch.setattr(crashpoints, "hook", dying("order.retried"))
    with pytest.raises(Killed):
        await duty.tick()
    monkeypatch.setattr(crashpoints, "hook", None)
    if is_mended_meanwhile:
        for _ in jobs:
            await finish(store, await claim_one(store))
    assert await take_actions(store, "order", 1, HOLD) == []
    clock.forward(HOLD)

    done = await carried_out(store, BulkActions(store, Transactor(store)), clock, id)

    assert (done.done, done.left) == (5, {})
    assert [(await held(store, job.id)).run for job in jobs] == [2] * 5
    assert await statuses(store) == {RESOLVED if is_mended_meanwhile else RETRIED}
    await assert_counted(store)


async def test_two_workers_carry_out_an_order_once(store: Store, clock: Clock) -> None:
    jobs = await failing_many(store, *[wrong()] * 50)
    clock.forward(1.0)
    id = await give(store)
    duties = [BulkActions(store, Transactor(store)) for _ in range(3)]
    await asyncio.gather(*(duty.tick() for duty in duties))
    done = await carried_out(store, duties[0], clock, id)

    assert done.done == 50
    assert [(await held(store, job.id)).run for job in jobs] == [2] * 50


async def test_with_nothing_to_do_it_rests(duty: BulkActions) -> None:
    assert await duty.tick() == POLL


def dying(point: str) -> Any:
    def hook(name: str, _by: object) -> None:
        if name == point:
            raise Killed

    return hook
