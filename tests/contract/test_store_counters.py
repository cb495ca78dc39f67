"""How much: counters over sliding windows."""

from __future__ import annotations

import asyncio
import random
from functools import partial

import pytest

from packhorse.store.base import Charge, Spent, Store
from tests.contract.keys import MINUTE, charge, spend_each
from tests.contract.second_process import between_processes, second
from tests.contract.stores import Clock, OpenStore
from tests.contract.test_store_races import aside

# spend


async def test_what_fits_is_added_and_says_what_is_left(timed: Store, clock: Clock) -> None:
    first = await timed.spend([charge(3, 10)])
    second = await timed.spend([charge(7, 10)])

    assert first == Spent(clock(), None, (7,), 0.0)
    assert second == Spent(clock(), None, (0,), 0.0)


async def test_what_does_not_fit_is_refused_and_nothing_is_added(timed: Store) -> None:
    await timed.spend([charge(8, 10)])

    refused = await timed.spend([charge(3, 10)])
    fitting = await timed.spend([charge(2, 10)])

    assert (refused.refused, refused.left) == (0, (2,))
    assert (fitting.refused, fitting.left) == (None, (0,))


async def test_of_several_charges_all_are_added_or_none(timed: Store) -> None:
    wide, narrow = charge(1, 10, name="quota:wide"), charge(1, 1, name="quota:narrow")
    await timed.spend([narrow])

    refused = await timed.spend([wide, narrow, charge(1, 0, name="quota:closed")])

    assert (refused.refused, refused.left) == (1, (10, 0, 0))
    assert (await timed.spend([wide])).left == (9,)


async def test_a_charge_named_twice_counts_twice(timed: Store) -> None:
    twice = await timed.spend([charge(2, 5), charge(2, 5)])
    refused = await timed.spend([charge(1, 5), charge(1, 5)])

    assert (twice.refused, twice.left) == (None, (1, 1))
    assert (refused.refused, refused.left) == (1, (1, 1))


async def test_an_amount_of_nothing_only_looks_and_is_never_refused(timed: Store) -> None:
    await timed.spend([charge(5, 5)])

    for _ in range(3):
        assert await timed.spend([charge(0, 5)]) == Spent(timed.now(), None, (0,), 0.0)
    assert (await timed.spend([charge(0, 3)])).left == (0,)
    assert (await timed.spend([charge(0, 7)])).left == (2,)


async def test_no_charge_at_all_is_nothing(timed: Store, clock: Clock) -> None:
    assert await timed.spend([]) == Spent(clock(), None, (), 0.0)


async def test_counters_of_other_names_and_other_windows_are_not_touched(timed: Store) -> None:
    await timed.spend([charge(5, 5)])

    assert (await timed.spend([charge(1, 5, name="ratelimit:b")])).left == (4,)
    assert (await timed.spend([charge(1, 5, window=2 * MINUTE)])).left == (4,)
    assert (await timed.spend([charge(1, 5)])).refused == 0


async def test_what_another_handle_has_spent_counts(open_store: OpenStore, clock: Clock) -> None:
    store, other = await open_store(clock=clock), await open_store(clock=clock)
    await store.spend([charge(4, 5)])

    found = await other.spend([charge(1, 5)])

    assert (found.refused, found.left) == (None, (0,))
    assert (await store.spend([charge(1, 5)])).refused == 0


async def test_large_amounts_are_counted_exactly(timed: Store) -> None:
    await timed.spend([charge(2**50, 2**50 + 1)])

    assert (await timed.spend([charge(2, 2**50 + 1)])).refused == 0
    assert (await timed.spend([charge(1, 2**50 + 1)])).left == (0,)


# The window slides


async def test_what_was_spent_counts_until_its_bucket_has_left_the_window(timed: Store, clock: Clock) -> None:
    await timed.spend([charge(10, 10)])
    clock.forward(MINUTE)
    assert (await timed.spend([charge(1, 10)])).refused == 0

    clock.forward(1.0)

    assert (await timed.spend([charge(10, 10)])).refused is None


async def test_a_window_lets_go_bucket_by_bucket(timed: Store, clock: Clock) -> None:
    for _ in range(5):
        await timed.spend([charge(2, 10)])
        clock.forward(10.0)
    clock.forward(11.0)

    assert (await timed.spend([charge(0, 10)])).left == (2,)
    clock.forward(10.0)
    assert (await timed.spend([charge(0, 10)])).left == (4,)


async def test_who_waits_as_long_as_he_is_told_fits_and_not_before(timed: Store, clock: Clock) -> None:
    await timed.spend([charge(4, 10)])
    clock.forward(20.0)
    await timed.spend([charge(6, 10)])
    clock.forward(5.5)

    small, large = await timed.spend([charge(4, 10)]), await timed.spend([charge(5, 10)])

    assert small.wait == pytest.approx(35.5, abs=0.01)
    assert large.wait == pytest.approx(55.5, abs=0.01)
    clock.forward(small.wait - 0.1)
    assert (await timed.spend([charge(4, 10)])).refused == 0
    clock.forward(0.1)
    assert (await timed.spend([charge(4, 10)])).refused is None


@pytest.mark.parametrize("window", [0.7, 1.1, 59.3, 86_400.0])
async def test_a_wait_is_never_a_rounding_too_short(timed: Store, clock: Clock, window: float) -> None:
    one, luck = charge(1, 1, window=window), random.Random(11)
    for _ in range(30):
        clock.forward(luck.uniform(0.0, 2 * window))
        clock.forward((await timed.spend([one])).wait)
        refused = await timed.spend([one])

        clock.forward(refused.wait)

        assert (await timed.spend([charge(0, 1, window=window)])).left == (1,)


async def test_what_can_never_fit_is_told_to_wait_for_a_whole_window(timed: Store) -> None:
    found = await timed.spend([charge(11, 10)])

    assert (found.refused, found.left, found.wait) == (0, (10,), MINUTE)


@pytest.mark.parametrize("window", [0.7, 60.0, 86_400.0])
async def test_no_stretch_as_long_as_the_window_holds_more_than_the_limit(
    timed: Store, clock: Clock, window: float
) -> None:
    luck, admitted = random.Random(7), []
    for _ in range(150):
        clock.forward(luck.uniform(0.0, window / 10))
        if (await timed.spend([charge(1, 7, window=window)])).refused is None:
            admitted.append(clock())

    assert len(admitted) > 21
    for first, eighth in zip(admitted, admitted[7:], strict=False):
        assert eighth - first >= window


# refund


async def test_what_is_refunded_can_be_spent_again(timed: Store, clock: Clock) -> None:
    spent = await timed.spend([charge(8, 10), charge(1, 1, name="downloads:a")])
    clock.forward(5.0)

    await timed.refund([charge(3, 10), charge(1, 1, name="downloads:a")], spent.at)

    assert (await timed.spend([charge(5, 10), charge(1, 1, name="downloads:a")])).left == (0, 0)


async def test_a_refund_goes_to_the_bucket_it_came_from(timed: Store, clock: Clock) -> None:
    early = await timed.spend([charge(5, 10)])
    clock.forward(30.0)
    await timed.spend([charge(5, 10)])

    await timed.refund([charge(5, 10)], early.at)
    clock.forward(31.0)

    assert (await timed.spend([charge(0, 10)])).left == (5,)


async def test_nobody_gets_back_more_than_was_spent(timed: Store, clock: Clock) -> None:
    early = await timed.spend([charge(2, 10)])
    clock.forward(10.0)
    late = await timed.spend([charge(3, 10)])

    await timed.refund([charge(9, 10)], early.at)
    await timed.refund([charge(9, 10, name="ratelimit:unknown"), charge(1, 10, window=7.0)], late.at)
    assert (await timed.spend([charge(0, 10)])).left == (7,)

    await timed.refund([charge(1, 10), charge(1, 10)], late.at)
    assert (await timed.spend([charge(0, 10)])).left == (9,)


async def test_a_refund_that_comes_after_the_window_is_nothing(timed: Store, clock: Clock) -> None:
    spent = await timed.spend([charge(5, 5)])
    clock.forward(MINUTE + 1.0)
    await timed.spend([charge(5, 5)])

    await timed.refund([charge(5, 5)], spent.at)

    assert (await timed.spend([charge(1, 5)])).refused == 0


async def test_by_the_clock_of_the_store_a_permit_is_given_back(store: Store) -> None:
    permit = charge(1, 1, name="downloads:a", window=3_600.0)
    spent = await store.spend([permit])
    assert (await store.spend([permit])).refused == 0

    await store.refund([permit], spent.at)

    assert (await store.spend([permit])).refused is None


# trim


async def test_trimming_forgets_nothing_that_still_counts(timed: Store, clock: Clock) -> None:
    await timed.spend([charge(5, 5), charge(5, 5, name="quota:hour", window=3_600.0)])
    clock.forward(MINUTE)
    await timed.trim()
    assert (await timed.spend([charge(1, 5)])).refused == 0
    clock.forward(1.0)

    await timed.trim()

    assert (await timed.spend([charge(5, 5)])).refused is None
    assert (await timed.spend([charge(1, 5, name="quota:hour", window=3_600.0)])).refused == 0


# Races


async def test_of_many_at_once_from_two_handles_exactly_the_limit_is_admitted(store: Store, other: Store) -> None:
    one = charge(1, 50, window=86_400.0)

    answers = await asyncio.gather(spend_each(store, 100, one), spend_each(other, 100, one))

    assert [spent.refused for found in answers for spent in found].count(None) == 50
    assert (await store.spend([one])).left == (0,)


@between_processes
async def test_of_many_at_once_from_two_processes_exactly_the_limit_is_admitted(store: Store, address: str) -> None:
    one = charge(1, 50, window=86_400.0)

    async with second(address, "spend", one.name, 100, one.limit, one.window) as process:
        admitted, *answers = await asyncio.gather(
            process.answer(), spend_each(store, 50, one), aside(address, lambda store: spend_each(store, 50, one))
        )

    assert admitted + [spent.refused for found in answers for spent in found].count(None) == 50


async def test_charges_in_any_order_from_many_sides_neither_block_each_other_nor_miscount(address: str) -> None:
    names = [f"quota:{n}" for n in range(6)]

    async def some(seed: int, store: Store) -> int:
        luck, total = random.Random(seed), 0
        for _ in range(20):
            chosen = [Charge(name, 1, 60, 86_400.0) for name in luck.sample(names, 3)]
            spends = [store.spend(chosen), store.spend(chosen[::-1])]
            total += sum(3 for spent in await asyncio.gather(*spends) if spent.refused is None)
        return total

    totals = await asyncio.gather(*(aside(address, partial(some, seed)) for seed in range(3)))

    left = await aside(address, lambda store: store.spend([Charge(name, 0, 60, 86_400.0) for name in names]))
    assert sum(totals) == 6 * 60 - sum(left.left)
    assert sum(totals) > 300


async def test_refunds_and_spends_at_once_lose_nothing(store: Store, other: Store) -> None:
    permit = charge(1, 20, name="downloads:a", window=86_400.0)

    async def hold(handle: Store) -> bool:
        spent = await handle.spend([permit])
        if spent.refused is None:
            await handle.refund([permit], spent.at)
        return spent.refused is None

    answers = await asyncio.gather(*(hold((store, other)[n % 2]) for n in range(100)))

    assert any(answers)
    assert (await store.spend([charge(0, 20, name="downloads:a", window=86_400.0)])).left == (20,)
