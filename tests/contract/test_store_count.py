"""How many jobs a filter finds: exact as far as it is counted, and never at the price of looking at all of them."""

from __future__ import annotations

import pytest

from packhorse.core.plan import Status
from packhorse.store.base import Count, Filter, Store
from tests.contract.builders import completed, id_at, marked, submit, submit_many
from tests.contract.lookup import FILTERS, TRAIN, everybodys, matches

EPOCH = 1_800_000_000.0


async def test_every_combination_of_filters_counts_exactly_what_matches(store: Store) -> None:
    jobs = await everybodys(store)

    found = await store.count(FILTERS, most=100)

    assert found == [Count(sum(matches(job, filter) for job in jobs), True) for filter in FILTERS]


@pytest.mark.parametrize("filter", [Filter(), Filter("default"), Filter("default", "u"), Filter(status=Status.PENDING)])
async def test_it_counts_no_further_than_it_is_told(store: Store, filter: Filter) -> None:
    await submit_many(store, 5, user="u")

    found = [each for most in (4, 5, 6) for each in await store.count([filter], most=most)]

    assert found == [Count(4, False), Count(5, True), Count(5, True)]


async def test_by_time_it_takes_from_and_leaves_until(store: Store) -> None:
    times = [EPOCH + seconds for seconds in (10, 20, 30, 40)]
    for at in times:
        await submit(store, now=at, job_id=id_at(at))
    filters = [
        Filter(created_from=times[1], created_until=times[3]),
        Filter("default", created_from=times[1]),
        Filter("default", created_until=times[3]),
    ]

    found = await store.count(filters, most=100)

    assert found == [Count(2, True), Count(3, True), Count(3, True)]


async def test_those_that_are_being_purged_are_not_counted(store: Store) -> None:
    await marked(store, await completed(store))
    await completed(store)

    assert await store.count([Filter("default", status=Status.COMPLETED)], most=100) == [Count(1, True)]


async def test_a_few_among_many_are_not_looked_for_at_any_price(store: Store) -> None:
    """Whose jobs of one pipeline they are no index knows: it gives up, and says so."""
    await submit(store, user="ann")
    await submit_many(store, 320, TRAIN, user="ann")

    assert await store.count([Filter("default", "ann", pipeline="convert")], most=1) == [Count(0, False)]


@pytest.mark.parametrize("name", ["", "a\x00b", "'; DROP TABLE jobs; --", "%"])
async def test_names_that_nobody_has_count_nothing(store: Store, name: str) -> None:
    await submit(store)

    filters = [Filter(name), Filter("default", name), Filter("default", pipeline=name)]

    assert await store.count(filters, most=10) == [Count(0, True)] * 3
