"""Who is told: endpoints, and the deliveries that a commit leaves for them."""

from __future__ import annotations

import asyncio

import pytest
from msgspec.structs import replace

from packhorse.core import lifecycle
from packhorse.core.models import Job
from packhorse.core.records import Record
from packhorse.core.webhooks import NO_JOB, Delivery, put_delivery
from packhorse.errors import Conflict, StoreUnavailable
from packhorse.store.base import Store
from packhorse.store.collections.webhooks import (
    add_endpoint,
    drop_endpoints,
    end_endpoint,
    list_deliveries,
    list_endpoints,
    settle_delivery,
    take_deliveries,
)
from tests.contract.builders import (
    cancelled,
    claim_one,
    completed,
    fail,
    failed,
    finish,
    finishing,
    made,
    marked,
    refused,
    started,
)
from tests.contract.keys import endpoint, take_all, told
from tests.contract.second_process import between_processes, second
from tests.contract.stores import Clock
from tests.contract.test_store_races import aside


def message(job: Job, to: str = "e1", run: int = 1, **options: object) -> Delivery:
    """What waits for the endpoint after the run."""
    assert job.completed_at is not None
    fresh = Delivery(f"{job.id}.{run}.{to}", to, job.id, run, job.completed_at, next_at=job.completed_at, stamp=1)
    return replace(fresh, **options)


# Endpoints


async def test_an_endpoint_is_read_back_whole_from_another_handle(store: Store, other: Store) -> None:
    whole = endpoint(url="https://example.org/ä?x=1", created_at=1_800_000_000.25, created_by="k1")

    await add_endpoint(store, whole)

    assert await list_endpoints(other) == [whole]


async def test_endpoints_come_oldest_first_for_one_tenant_or_for_all(store: Store) -> None:
    old, foreign, new = (
        endpoint("z", created_at=1.0),
        endpoint("m", tenant="acme", created_at=2.0),
        endpoint("a", created_at=3.0),
    )
    for each in (new, foreign, old):
        await add_endpoint(store, each)

    assert await list_endpoints(store) == [old, foreign, new]
    assert await list_endpoints(store, "default") == [old, new]
    assert await list_endpoints(store, "nobody") == []


async def test_the_id_of_an_endpoint_is_given_once(store: Store, other: Store) -> None:
    await add_endpoint(store, endpoint())

    with pytest.raises(Conflict):
        await add_endpoint(other, endpoint(url="https://elsewhere.example.org"))

    assert await list_endpoints(store) == [endpoint()]


async def test_an_ended_endpoint_stays_to_be_seen_and_its_first_end_holds(store: Store, other: Store) -> None:
    await add_endpoint(store, endpoint())

    ended = await end_endpoint(store, "e1", 5.0, "gone")
    again = await end_endpoint(other, "e1", 4.0, "again")

    assert ended == again == endpoint(ended_at=5.0, reason="gone")
    assert await list_endpoints(store) == await list_endpoints(store, "default") == [ended]
    assert await end_endpoint(store, "nobody", 1.0, "gone") is None


async def test_only_open_endpoints_can_be_asked_for(store: Store, other: Store) -> None:
    for each in (endpoint("e1"), endpoint("e2"), endpoint("e3", tenant="acme")):
        await add_endpoint(store, each)
    await end_endpoint(store, "e1", 5.0, "gone")

    assert [each.id for each in await list_endpoints(other, only_open=True)] == ["e2", "e3"]
    assert [each.id for each in await list_endpoints(other, "default", only_open=True)] == ["e2"]
    assert await list_endpoints(other, "nobody", only_open=True) == []


async def test_endpoints_that_ended_long_ago_are_forgotten_and_their_ids_are_free(store: Store, other: Store) -> None:
    for id in ("e1", "e2", "e3"):
        await add_endpoint(store, endpoint(id))
    await end_endpoint(store, "e1", 5.0, "gone")
    await end_endpoint(store, "e2", 6.0, "gone")

    await drop_endpoints(other, 5.5)

    assert [each.id for each in await list_endpoints(store)] == ["e2", "e3"]
    await add_endpoint(store, endpoint("e1"))


async def test_what_waits_for_an_endpoint_goes_with_it_and_what_waits_for_others_stays(store: Store) -> None:
    job = await told(store, "e1", "e2")

    await end_endpoint(store, "e1", 5.0, "gone")

    assert await list_deliveries(store, "e1") == []
    assert await list_deliveries(store, "e2") == [message(job, "e2")]
    assert [each.endpoint for each in await take_deliveries(store, 10, 60.0)] == ["e2"]


async def test_all_that_waits_for_an_endpoint_goes_with_it_however_much_it_is(store: Store) -> None:
    await add_endpoint(store, endpoint("e1"))
    await add_endpoint(store, endpoint("e2"))
    waiting = [Delivery(f"m{n}", "e1" if n else "e2", NO_JOB, 0, 1.0, next_at=1.0, body="{}") for n in range(1201)]
    await store.put([put_delivery(each) for each in waiting])

    await end_endpoint(store, "e1", 5.0, "gone")

    assert await list_deliveries(store, "e1") == []
    assert [each.endpoint for each in await take_deliveries(store, 5000, 60.0)] == ["e2"]


async def end_without_clearing(store: Store, endpoint_id: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The store fails after the endpoint has ended and before its deliveries are dropped."""

    async def fails(*_args: object, **_options: object) -> list[Record]:
        raise StoreUnavailable

    with monkeypatch.context() as patch:
        patch.setattr(store, "scan", fails)
        with pytest.raises(StoreUnavailable):
            await end_endpoint(store, endpoint_id, 5.0, "gone")
    assert await list_deliveries(store, endpoint_id)


async def test_ending_an_endpoint_again_drops_what_the_first_attempt_left(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    await told(store, "e1")
    await end_without_clearing(store, "e1", monkeypatch)

    ended = await end_endpoint(store, "e1", 6.0, "again")

    assert ended == endpoint(ended_at=5.0, reason="gone")
    assert await list_deliveries(store, "e1") == await take_deliveries(store, 10, 60.0) == []


async def test_a_forgotten_endpoint_takes_along_what_its_end_left(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    await told(store, "e1")
    await end_without_clearing(store, "e1", monkeypatch)

    await drop_endpoints(store, 5.5)

    assert await list_endpoints(store) == []
    assert await list_deliveries(store, "e1") == await take_deliveries(store, 10, 60.0) == []


# A commit that ends a run


@pytest.mark.parametrize("end", [completed, failed, cancelled])
async def test_every_end_leaves_a_message_for_each_endpoint(store: Store, other: Store, end: object) -> None:
    await add_endpoint(store, endpoint("e1"))
    await add_endpoint(store, endpoint("e2"))

    job = await end(store, webhooks=("e1", "e2"))  # type: ignore[operator]

    assert job.webhooks == ("e1", "e2")
    assert await other.get([job.id]) == [job]
    assert await list_deliveries(other, "e1") == [message(job, "e1")]
    assert await list_deliveries(other, "e2") == [message(job, "e2")]


async def test_nobody_is_told_before_the_end_nor_of_jobs_without_webhooks(store: Store) -> None:
    await add_endpoint(store, endpoint())
    await started(store, webhooks=("e1",))
    await completed(store)

    assert await list_deliveries(store, "e1") == []
    assert await take_deliveries(store, 10, 60.0) == []


async def test_each_run_leaves_a_message_of_its_own(store: Store) -> None:
    await add_endpoint(store, endpoint())
    first = await failed(store, webhooks=("e1",))
    await made(store, lifecycle.retry(first, now=store.now()))
    assert await list_deliveries(store, "e1") == [message(first)]

    last = await finish(store, await claim_one(store))

    assert {each.id for each in await list_deliveries(store, "e1")} == {message(first).id, message(last, run=2).id}


async def test_an_endpoint_that_has_ended_or_never_was_is_told_nothing(store: Store) -> None:
    for id in ("open", "ended"):
        await add_endpoint(store, endpoint(id))
    await end_endpoint(store, "ended", 5.0, "gone")

    job = await completed(store, webhooks=("ended", "never", "open"))

    assert await take_deliveries(store, 10, 60.0) == [
        message(job, "open", attempts=1, stamp=2, next_at=pytest.approx(store.now() + 60.0, abs=10.0))
    ]


async def test_a_refused_change_leaves_no_message(store: Store) -> None:
    await add_endpoint(store, endpoint())
    claimed = await started(store, webhooks=("e1",))
    late = finishing(claimed, now=store.now())
    job = await fail(store, claimed)

    assert isinstance(await refused(store, late), Conflict)

    assert await list_deliveries(store, "e1") == [message(job)]


async def test_messages_go_with_their_job_and_those_of_others_stay(store: Store, other: Store) -> None:
    job, neighbour = await told(store, "e1", "e2"), await told(store, "e1")

    await store.erase((await marked(store, job)).id)

    assert await list_deliveries(other, "e1") == [message(neighbour)]
    assert await list_deliveries(other, "e2") == []
    assert [each.job_id for each in await take_deliveries(other, 10, 60.0)] == [neighbour.id]


# Taking


async def test_what_is_due_is_counted_and_put_off_in_one_step(timed: Store, clock: Clock) -> None:
    job = await told(timed, "e1")

    [taken] = await take_deliveries(timed, 10, 30.0)

    assert taken == message(job, attempts=1, stamp=2, next_at=clock() + 30.0)
    assert await list_deliveries(timed, "e1") == [taken]
    assert await take_deliveries(timed, 10, 30.0) == []


async def test_what_its_taker_has_not_settled_is_due_again_when_its_time_is_over(timed: Store, clock: Clock) -> None:
    job = await told(timed, "e1")
    await take_deliveries(timed, 10, 30.0)
    clock.forward(29.0)
    assert await take_deliveries(timed, 10, 30.0) == []

    clock.forward(1.0)

    assert await take_deliveries(timed, 10, 60.0) == [message(job, attempts=2, stamp=3, next_at=clock() + 60.0)]


async def test_the_longest_due_come_first_and_no_more_than_asked_for(timed: Store, clock: Clock) -> None:
    jobs = []
    for _ in range(4):
        jobs.append(await told(timed, "e1"))
        clock.forward(1.0)

    first, second = await take_deliveries(timed, 3, 60.0), await take_deliveries(timed, 3, 60.0)

    assert [each.job_id for each in first + second] == [job.id for job in jobs]
    assert len(first) == 3
    assert await take_deliveries(timed, 0, 60.0) == []


@between_processes
async def test_two_takers_never_receive_the_same_attempt(store: Store, address: str) -> None:
    await add_endpoint(store, endpoint())
    jobs = [await completed(store, webhooks=("e1",)) for _ in range(40)]

    async with second(address, "take", 3) as process:
        taken, *others = await asyncio.gather(
            process.answer(),
            aside(address, lambda store: take_all(store, 2)),
            aside(address, lambda store: take_all(store, 5)),
        )

    found = [*taken, *(each.id for those in others for each in those)]
    assert sorted(found) == sorted(message(job).id for job in jobs)
    assert {each.attempts for each in await list_deliveries(store, "e1", limit=100)} == {1}


# Settling


async def test_a_delivery_that_is_done_with_is_gone(store: Store, other: Store) -> None:
    await told(store, "e1")
    [taken] = await take_deliveries(store, 10, 0.0)

    await settle_delivery(store, taken, next_at=None)

    assert await list_deliveries(other, "e1") == await take_deliveries(other, 10, 0.0) == []


async def test_a_delivery_that_failed_is_tried_again_then_and_says_why(timed: Store, clock: Clock) -> None:
    await told(timed, "e1")
    [taken] = await take_deliveries(timed, 10, 30.0)

    await settle_delivery(timed, taken, next_at=clock() + 300.0, error="503 · später")

    assert await list_deliveries(timed, "e1") == [
        replace(taken, next_at=clock() + 300.0, error="503 · später", stamp=3)
    ]
    clock.forward(299.0)
    assert await take_deliveries(timed, 10, 30.0) == []
    clock.forward(1.0)
    [again] = await take_deliveries(timed, 10, 30.0)
    assert (again.attempts, again.error) == (2, "503 · später")


@pytest.mark.parametrize("is_done", [True, False])
async def test_who_was_too_slow_settles_nothing(timed: Store, clock: Clock, is_done: bool) -> None:
    await told(timed, "e1")
    [slow] = await take_deliveries(timed, 10, 30.0)
    clock.forward(30.0)
    [taken] = await take_deliveries(timed, 10, 30.0)

    await settle_delivery(timed, slow, next_at=None if is_done else clock(), error="late")

    assert await list_deliveries(timed, "e1") == [taken]
    assert await take_deliveries(timed, 10, 30.0) == []


async def test_what_is_gone_is_not_brought_back_by_settling_it(store: Store) -> None:
    job = await told(store, "e1")
    [taken] = await take_deliveries(store, 10, 30.0)
    await store.erase((await marked(store, job)).id)

    await settle_delivery(store, taken, next_at=store.now(), error="again")

    assert await list_deliveries(store, "e1") == await take_deliveries(store, 10, 30.0) == []


# Listing


async def test_what_waits_for_an_endpoint_comes_newest_first_and_no_more_than_asked_for(
    timed: Store, clock: Clock
) -> None:
    jobs = []
    for _ in range(3):
        jobs.append(await told(timed, "e1"))
        clock.forward(1.0)

    found = await list_deliveries(timed, "e1", limit=2)

    assert found == [message(jobs[2]), message(jobs[1])]
    assert await list_deliveries(timed, "nobody") == []


async def test_an_endpoint_that_ends_while_jobs_end_is_left_with_nothing(store: Store, other: Store) -> None:
    await add_endpoint(store, endpoint())
    claims = [await started(store, webhooks=("e1",)) for _ in range(20)]

    await asyncio.gather(*(finish(store, each) for each in claims), end_endpoint(other, "e1", 5.0, "gone"))

    assert await list_deliveries(store, "e1", limit=100) == await take_deliveries(store, 100, 60.0) == []


async def test_a_delivery_that_cannot_be_read_holds_up_no_others(store: Store) -> None:
    job = await told(store, "e1")
    await store.put([replace(put_delivery(message(job, id="torn", stamp=0)), body=b"{")])

    [taken] = await take_deliveries(store, 10, 60.0)

    assert taken.id == message(job).id
