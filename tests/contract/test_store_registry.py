"""What workers publish, and who is there."""

from __future__ import annotations

from msgspec.structs import replace

from packhorse.core import json
from packhorse.store.base import Definition, Store
from tests.contract.builders import CHAIN, ONE, card, finish, started
from tests.contract.stores import Clock

CONVERT = Definition("edge", "convert", json.encode(CHAIN), b'{"type":"object"}', "f1", description="Converts · models")
TRAIN = Definition("edge", "train", json.encode(ONE), b"{}", "f2")


# definitions


async def test_a_published_definition_is_read_back_whole_with_the_time_of_the_store(
    timed: Store, clock: Clock, other: Store
) -> None:
    await timed.publish([CONVERT])

    assert await other.definitions() == [replace(CONVERT, published_at=clock())]


async def test_a_definition_that_cannot_be_read_hides_no_other(store: Store) -> None:
    await store.publish([replace(CONVERT, app=7), TRAIN])

    assert [each.pipeline for each in await store.definitions()] == ["train"]


async def test_nothing_is_published_in_an_empty_store(store: Store) -> None:
    await store.publish([])

    assert await store.definitions() == []


async def test_several_pipelines_are_published_side_by_side(store: Store, other: Store) -> None:
    await store.publish([TRAIN, CONVERT])
    await other.publish([replace(CONVERT, pipeline="another")])

    assert {each.pipeline for each in await store.definitions()} == {"another", "convert", "train"}


async def test_a_pipeline_published_again_replaces_what_was_there(timed: Store, clock: Clock) -> None:
    await timed.publish([CONVERT, TRAIN])
    clock.forward(5.0)

    await timed.publish([replace(CONVERT, fingerprint="f3", description="")])

    found = {each.pipeline: (each.fingerprint, each.published_at) for each in await timed.definitions()}
    assert found == {"convert": ("f3", clock()), "train": ("f2", clock() - 5.0)}


# workers


async def test_an_enrolled_worker_is_read_back_whole_with_the_time_of_the_store(
    timed: Store, clock: Clock, other: Store
) -> None:
    worker = card(queues={"default": 2, "gpu": 1}, scratch="/tmp/ä", seen_at=1.0)

    await timed.enroll(worker)

    assert await other.workers() == [replace(worker, seen_at=clock())]


async def test_nobody_is_there_before_anybody_came(store: Store) -> None:
    assert await store.workers() == []


async def test_enrolling_again_is_a_sign_of_life(timed: Store, clock: Clock) -> None:
    await timed.enroll(card())
    clock.forward(5.0)

    await timed.enroll(card())

    assert [(each.id, each.seen_at) for each in await timed.workers()] == [("w", clock())]


async def test_several_workers_are_there_side_by_side(store: Store, other: Store) -> None:
    await store.enroll(card("w"))
    await other.enroll(card("w2"))

    assert {each.id for each in await store.workers()} == {"w", "w2"}


async def test_a_dismissed_worker_is_gone_and_its_neighbours_are_not(store: Store, other: Store) -> None:
    await store.enroll(card("w"))
    await store.enroll(card("w2"))

    await store.dismiss("w")

    assert [each.id for each in await other.workers()] == ["w2"]


async def test_a_worker_that_holds_a_lease_is_not_dismissed(store: Store, other: Store) -> None:
    await store.enroll(card("w"))
    claimed = await started(store, worker="w")

    await other.dismiss("w")

    assert [each.id for each in await store.workers()] == ["w"]
    assert await store.held_by("w", limit=10) == [(claimed.job, claimed.task)]


async def test_an_overdue_lease_still_keeps_its_worker(timed: Store, clock: Clock) -> None:
    await timed.enroll(card("w"))
    await started(timed, worker="w")
    clock.forward(86_400.0)

    await timed.dismiss("w")

    assert [each.id for each in await timed.workers()] == ["w"]


async def test_a_worker_whose_last_lease_has_ended_is_dismissed(store: Store) -> None:
    await store.enroll(card("w"))
    await finish(store, await started(store, worker="w"))

    await store.dismiss("w")

    assert await store.workers() == []


async def test_the_lease_of_another_worker_keeps_nobody(store: Store) -> None:
    await store.enroll(card("w"))
    await started(store, worker="w2")

    await store.dismiss("w")

    assert await store.workers() == []


async def test_dismissing_somebody_unknown_is_nothing(store: Store) -> None:
    await store.enroll(card("w"))

    await store.dismiss("nobody")

    assert [each.id for each in await store.workers()] == ["w"]


async def test_a_dismissed_worker_may_come_back(store: Store) -> None:
    await store.enroll(card("w"))
    await store.dismiss("w")

    await store.enroll(card("w"))

    assert [each.id for each in await store.workers()] == ["w"]
