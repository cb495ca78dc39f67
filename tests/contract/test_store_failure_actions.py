"""Actions about failures: taken by one worker at a time, settled by who has them, due again by themselves."""

from __future__ import annotations

import asyncio

import pytest
from msgspec.structs import replace

from packhorse.core.failures import put_action
from packhorse.core.webhooks import NO_JOB, Delivery
from packhorse.errors import Conflict
from packhorse.store.base import Store
from packhorse.store.collections.failures import (
    add_action,
    drop_orders,
    get_order,
    list_orders,
    settle_action,
    take_actions,
)
from packhorse.store.collections.webhooks import add_endpoint, list_deliveries, post_deliveries, take_deliveries
from tests.contract.failures import action
from tests.contract.keys import endpoint
from tests.contract.stores import Clock


async def test_an_action_is_taken_when_it_is_due_and_put_off_meanwhile(timed: Store, clock: Clock) -> None:
    await add_action(timed, action(1, due_at=clock.now + 10))

    early = await take_actions(timed, "order", 10, 60.0)
    clock.forward(10.0)
    [taken] = await take_actions(timed, "order", 10, 60.0)
    again = await take_actions(timed, "order", 10, 60.0)
    clock.forward(60.0)
    [left] = await take_actions(timed, "order", 10, 60.0)

    assert early == again == []
    assert taken == action(1, due_at=clock.now, attempts=1, stamp=2)
    assert left.attempts == 2


async def test_two_takers_never_have_the_same(store: Store, other: Store) -> None:
    for n in range(40):
        await add_action(store, action(n, sort="revive"))

    found = await asyncio.gather(*(take_actions(handle, "revive", 7, 60.0) for handle in (store, other) * 4))

    assert sorted(each.id for page in found for each in page) == [f"{n:04}" for n in range(40)]


async def test_an_action_that_cannot_be_read_holds_up_no_others(store: Store) -> None:
    await add_action(store, action(1, due_at=2.0))
    await store.put([replace(put_action(action(2)), body=b"{")])

    assert [each.id for each in await take_actions(store, "order", 10, 60.0)] == ["0001"]


async def test_each_sort_has_a_line_of_its_own_the_longest_due_first(store: Store) -> None:
    await add_action(store, action(1, sort="alert", due_at=3.0))
    await add_action(store, action(2, sort="alert", due_at=2.0))
    await add_action(store, action(3, sort="revive", due_at=1.0))

    assert [each.id for each in await take_actions(store, "alert", 10, 60.0)] == ["0002", "0001"]
    assert [each.id for each in await take_actions(store, "revive", 10, 60.0)] == ["0003"]
    assert await take_actions(store, "order", 10, 60.0) == []


async def test_who_has_it_settles_it_and_who_had_it_does_not(timed: Store, clock: Clock) -> None:
    await add_action(timed, action(1))
    [first] = await take_actions(timed, "order", 1, 60.0)
    clock.forward(60.0)
    [second] = await take_actions(timed, "order", 1, 60.0)

    assert not await settle_action(timed, first, due_at=None)
    assert await settle_action(timed, second, due_at=clock.now + 5, body=b'{"n":1}')

    clock.forward(5.0)
    [third] = await take_actions(timed, "order", 1, 60.0)
    assert third.body == b'{"n":1}'
    assert await settle_action(timed, third, due_at=None)
    assert not await settle_action(timed, third, due_at=None)
    assert await get_order(timed, third.id) is None


async def test_an_order_that_is_done_is_kept_to_be_seen_and_not_taken_again(timed: Store, clock: Clock) -> None:
    await add_action(timed, action(1))
    [taken] = await take_actions(timed, "order", 1, 60.0)

    await settle_action(timed, taken, due_at=None, body=b'{"done":true}', is_kept=True)
    clock.forward(3_600.0)

    assert await take_actions(timed, "order", 1, 60.0) == []
    done = replace(taken, due_at=None, body=b'{"done":true}', stamp=3)
    assert await get_order(timed, "0001") == done
    assert await list_orders(timed, "default") == [done]


async def test_orders_come_newest_first_for_their_tenant_alone(store: Store) -> None:
    for n in (1, 2, 3):
        await add_action(store, action(n))
    await add_action(store, action(4, tenant="acme"))
    await add_action(store, action(5, sort="alert"))

    assert [each.id for each in await list_orders(store, "default")] == ["0003", "0002", "0001"]
    assert [each.id for each in await list_orders(store, "default", before="0003", limit=1)] == ["0002"]
    assert [each.id for each in await list_orders(store, "acme")] == ["0004"]
    assert await get_order(store, "0005") is None
    assert await get_order(store, "nobody") is None


async def test_only_what_is_done_is_dropped(store: Store) -> None:
    for n in (1, 2, 3):
        await add_action(store, action(n))
    [first, second] = await take_actions(store, "order", 2, 60.0)
    for each in (first, second):
        await settle_action(store, each, due_at=None, is_kept=True)

    dropped = await drop_orders(store, "0002", 10)

    assert dropped == 1
    assert [each.id for each in await list_orders(store, "default")] == ["0003", "0002"]
    assert await drop_orders(store, "9", 10) == 1
    assert [each.id for each in await list_orders(store, "default")] == ["0003"]


async def test_the_id_of_an_action_is_given_once(store: Store, other: Store) -> None:
    await add_action(store, action(1))

    with pytest.raises(Conflict):
        await add_action(other, action(1, body=b"[]"))


async def test_a_message_about_no_job_waits_for_open_endpoints_once(store: Store, other: Store) -> None:
    await add_endpoint(store, endpoint("e1"))
    await add_endpoint(store, endpoint("e2", ended_at=1.0))
    said = [Delivery(f"failure.x.{to}", to, NO_JOB, 0, 5.0, next_at=5.0, body='{"ä":1}') for to in ("e1", "e2", "e3")]

    await post_deliveries(store, said)
    await post_deliveries(other, said)

    assert await take_deliveries(other, 10, 60.0) == [
        replace(said[0], attempts=1, stamp=2, next_at=said_at(other, 60.0))
    ]
    assert await list_deliveries(store, "e2") == []


def said_at(store: Store, seconds: float) -> object:
    return pytest.approx(store.now() + seconds, abs=30)
