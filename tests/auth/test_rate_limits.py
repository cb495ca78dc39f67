"""A limit for all processes together, taken from the store a little at a time."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from packhorse.auth.rate_limits import Rates
from packhorse.store.base import Charge, Store
from packhorse.store.sqlite import SqliteStore
from tests.contract.stores import Clock


async def admitted(rates: Rates, times: int, client: str = "ab12") -> int:
    return sum([(await rates.admit(client)).refused is None for _ in range(times)])


@pytest.mark.parametrize("limit", [1, 7, 100, 250])
async def test_as_many_are_admitted_as_the_limit_says(store: Store, limit: int) -> None:
    assert await admitted(Rates(store, limit), limit + 50) == limit


async def test_at_once_they_are_admitted_as_well(store: Store) -> None:
    rates = Rates(store, 250)

    found = await asyncio.gather(*(rates.admit("ab12") for _ in range(400)))

    assert sum(each.refused is None for each in found) == 250


@pytest.mark.parametrize("limit", [5, 250, 2000])
async def test_many_are_counted_each_by_itself(store: Store, limit: int) -> None:
    rates = Rates(store, limit)
    await rates.admit("ab12")

    first, _ = await rates.admit_many("ab12", 3)
    rest, spent = await rates.admit_many("ab12", limit)

    assert (first, rest, spent.refused) == (3, limit - 4, 0)
    assert (await rates.admit("ab12")).refused == 0


async def test_two_processes_share_the_limit(store: Store) -> None:
    first, second = Rates(store, 40), Rates(store, 40)

    found = [await each.admit("ab12") for _ in range(50) for each in (first, second)]

    assert sum(each.refused is None for each in found) == 40


async def test_one_client_does_not_spend_what_is_anothers(store: Store) -> None:
    rates = Rates(store, 5)

    assert await admitted(rates, 10, "ab12") == 5
    assert await admitted(rates, 10, "cd34") == 5


async def test_who_is_refused_is_told_how_long(store: Store) -> None:
    rates = Rates(store, 1, window=60.0)
    await rates.admit("ab12")

    refused = await rates.admit("ab12")

    assert refused.refused == 0
    assert 0 < refused.wait <= 61.0


async def test_what_is_left_goes_down_to_nothing(store: Store) -> None:
    rates = Rates(store, 3)

    assert [(await rates.admit("ab12")).left[0] for _ in range(3)] == [2, 1, 0]


async def test_who_is_refused_asks_the_store_no_more(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    rates = Rates(store, 1)
    await admitted(rates, 2)

    async def asked(charges: object) -> None:
        raise AssertionError("the store was asked")

    monkeypatch.setattr(store, "spend", asked)

    assert await admitted(rates, 10) == 0


async def test_what_was_not_used_is_given_back(store: Store) -> None:
    rates = Rates(store, 1000)
    await admitted(rates, 3)

    await rates.give_back()

    spent = await store.spend([Charge("ratelimit:client:ab12", 0, 1000, 300.0)])
    assert spent.left == (997,)


async def test_what_is_given_back_later_goes_where_it_was_taken(tmp_path: Path) -> None:
    clock = Clock(1_800_000_000.0)
    store = await SqliteStore.open(tmp_path / "timed.db", clock)
    rates = Rates(store, 1000)
    await admitted(rates, 3)

    clock.forward(150.0)
    await admitted(rates, 1, "another")
    await rates.give_back()

    spent = await store.spend([Charge("ratelimit:client:ab12", 0, 1000, 300.0)])
    clock.forward(160.0)
    later = await store.spend([Charge("ratelimit:client:ab12", 0, 1000, 300.0)])
    assert (spent.left, later.left) == ((997,), (1000,))
    await store.close()


async def test_a_client_that_asks_again_is_not_given_up(store: Store) -> None:
    rates = Rates(store, 1000)
    await admitted(rates, 3)

    await rates.give_back(idle=60.0)

    assert await admitted(rates, 997 + 5) == 997
