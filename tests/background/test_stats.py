"""What a worker counts: attempts by queue, jobs as a whole, added to the store together and never twice."""

from __future__ import annotations

import pytest

from packhorse.background.stats import MOST, StatsCounter
from packhorse.core.models import Job
from packhorse.errors import StoreUnavailable, UnknownOutcome
from packhorse.jobs.transact import Transactor
from packhorse.store.base import Store
from packhorse.store.counters import MINUTE, QUARTER, duration_bucket
from tests.contract.builders import started, submit
from tests.contract.stores import Clock
from tests.worker.builders import cancelling, finishing
from tests.worker.faulty import Faults


@pytest.fixture
def stats(shaky: Store) -> StatsCounter:
    return StatsCounter(shaky)


async def counted(store: Store, step: int = MINUTE, queue: str | None = None) -> dict[str, int]:
    return {tally.name: count for tally, count in await store.list_tallies(step, 0.0, queue=queue)}


async def test_an_attempt_is_counted_with_how_long_it_waited_and_took(
    store: Store, stats: StatsCounter, clock: Clock
) -> None:
    claimed = await started(store)
    clock.forward(3.0)

    stats.attempt_started(claimed, "default")
    stats.attempt_ended(claimed, "default", "finish", 0.25)
    await stats.flush()

    expected = {f"wait:{duration_bucket(3.0)}": 1, "finish": 1, f"run:{duration_bucket(0.25)}": 1}
    assert await counted(store, MINUTE, "default") == await counted(store, QUARTER, "default") == expected


async def test_a_job_is_counted_when_its_run_ends_through_the_door(store: Store, clock: Clock) -> None:
    stats = StatsCounter(store)
    transact = Transactor(store, stats.run_ended)
    clock.forward(2.0)
    claimed = await started(store)
    never_ran = await submit(store)
    clock.forward(60.0)

    await transact(claimed.job.id, finishing(store, claimed))
    await transact(never_ran.id, cancelling(store))
    await stats.flush()

    found = await counted(store, QUARTER, "")
    assert (found["completed"], found["cancelled"], found[f"run:{duration_bucket(60.0)}"]) == (1, 1, 1)
    assert sum(found.values()) == 4


async def test_a_run_is_compared_with_the_estimate_of_the_runs_before(store: Store, clock: Clock) -> None:
    stats = StatsCounter(store)
    transact = Transactor(store, stats.run_ended)

    async def run(seconds: float) -> None:
        claimed = await started(store)
        clock.forward(seconds)
        await transact(claimed.job.id, finishing(store, claimed))
        await stats.tick()

    for seconds in (10.0, 9.0, 300.0):  # the first has none before it
        await run(seconds)

    found = await counted(store, QUARTER, "")
    assert (found["estimate:kept"], found["estimate:missed"]) == (1, 1)


async def test_a_step_that_ends_nothing_is_not_counted(store: Store) -> None:
    ended: list[Job] = []
    transact = Transactor(store, ended.append)
    job = await submit(store)

    await transact(job.id, cancelling(store))
    await transact(job.id, cancelling(store))

    assert [each.id for each in ended] == [job.id]


async def test_what_the_store_did_not_take_is_added_later(store: Store, stats: StatsCounter, faults: Faults) -> None:
    claimed = await started(store)
    stats.attempt_ended(claimed, "default", "finish", 1.0)
    faults.refuse("tally", StoreUnavailable)
    with pytest.raises(StoreUnavailable):
        await stats.tick()

    stats.attempt_ended(claimed, "default", "finish", 1.0)
    await stats.tick()

    assert (await counted(store))["finish"] == 2


async def test_what_may_have_been_written_is_not_written_again(
    store: Store, stats: StatsCounter, faults: Faults
) -> None:
    stats.attempt_ended(await started(store), "default", "finish", 1.0)
    faults.lose_answer("tally", UnknownOutcome)
    with pytest.raises(UnknownOutcome):
        await stats.tick()

    await stats.tick()

    assert (await counted(store))["finish"] == 1


async def test_counts_do_not_grow_without_end_while_the_store_is_away(store: Store, stats: StatsCounter) -> None:
    claimed = await started(store)

    for n in range(MOST + 50):
        stats.attempt_ended(claimed, "default", f"outcome {n}", 1.0)
    await stats.flush()

    assert len(await counted(store)) == MOST
