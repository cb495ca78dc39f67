"""What workers publish, and who is there."""

from __future__ import annotations

from msgspec.structs import replace

from packhorse.core import json
from packhorse.core.plan import Definition
from packhorse.store.base import Store
from packhorse.store.collections import workers
from packhorse.store.collections.workers import list_definitions, publish_definitions
from tests.contract.builders import CHAIN, ONE, card, finish, started
from tests.contract.stores import Clock

CONVERT = Definition("edge", "convert", json.encode(CHAIN), b'{"type":"object"}', "f1", description="Converts · models")
TRAIN = Definition("edge", "train", json.encode(ONE), b"{}", "f2")


# definitions


async def test_a_published_definition_is_read_back_whole_with_the_time_of_the_store(
    timed: Store, clock: Clock, other: Store
) -> None:
    await publish_definitions(timed, [CONVERT])

    assert await list_definitions(other) == [replace(CONVERT, published_at=clock())]


async def test_a_definition_that_cannot_be_read_hides_no_other(store: Store) -> None:
    await publish_definitions(store, [replace(CONVERT, app=7), TRAIN])

    assert [each.pipeline for each in await list_definitions(store)] == ["train"]


async def test_nothing_is_published_in_an_empty_store(store: Store) -> None:
    await publish_definitions(store, [])

    assert await list_definitions(store) == []


async def test_several_pipelines_are_published_side_by_side(store: Store, other: Store) -> None:
    await publish_definitions(store, [TRAIN, CONVERT])
    await publish_definitions(other, [replace(CONVERT, pipeline="another")])

    assert {each.pipeline for each in await list_definitions(store)} == {"another", "convert", "train"}


async def test_a_pipeline_published_again_replaces_what_was_there(timed: Store, clock: Clock) -> None:
    await publish_definitions(timed, [CONVERT, TRAIN])
    clock.forward(5.0)

    await publish_definitions(timed, [replace(CONVERT, fingerprint="f3", description="")])

    found = {each.pipeline: (each.fingerprint, each.published_at) for each in await list_definitions(timed)}
    assert found == {"convert": ("f3", clock()), "train": ("f2", clock() - 5.0)}


# workers


async def test_an_enrolled_worker_is_read_back_whole_with_the_time_of_the_store(
    timed: Store, clock: Clock, other: Store
) -> None:
    worker = card(queues={"default": 2, "gpu": 1}, scratch="/tmp/ä", seen_at=1.0)

    await workers.enroll(timed, worker)

    assert await workers.list_all(other) == [replace(worker, seen_at=clock())]


async def test_nobody_is_there_before_anybody_came(store: Store) -> None:
    assert await workers.list_all(store) == []


async def test_enrolling_again_is_a_sign_of_life(timed: Store, clock: Clock) -> None:
    await workers.enroll(timed, card())
    clock.forward(5.0)

    await workers.enroll(timed, card())

    assert [(each.id, each.seen_at) for each in await workers.list_all(timed)] == [("w", clock())]


async def test_several_workers_are_there_side_by_side(store: Store, other: Store) -> None:
    await workers.enroll(store, card("w"))
    await workers.enroll(other, card("w2"))

    assert {each.id for each in await workers.list_all(store)} == {"w", "w2"}


async def test_a_dismissed_worker_is_gone_and_its_neighbours_are_not(store: Store, other: Store) -> None:
    await workers.enroll(store, card("w"))
    await workers.enroll(store, card("w2"))

    await workers.dismiss(store, "w")

    assert [each.id for each in await workers.list_all(other)] == ["w2"]


async def test_a_worker_that_holds_a_lease_is_not_dismissed(store: Store, other: Store) -> None:
    await workers.enroll(store, card("w"))
    claimed = await started(store, worker="w")

    await workers.dismiss(other, "w")

    assert [each.id for each in await workers.list_all(store)] == ["w"]
    assert await store.held_by("w", limit=10) == [(claimed.job, claimed.task)]


async def test_an_overdue_lease_still_keeps_its_worker(timed: Store, clock: Clock) -> None:
    await workers.enroll(timed, card("w"))
    await started(timed, worker="w")
    clock.forward(86_400.0)

    await workers.dismiss(timed, "w")

    assert [each.id for each in await workers.list_all(timed)] == ["w"]


async def test_a_worker_whose_last_lease_has_ended_is_dismissed(store: Store) -> None:
    await workers.enroll(store, card("w"))
    await finish(store, await started(store, worker="w"))

    await workers.dismiss(store, "w")

    assert await workers.list_all(store) == []


async def test_the_lease_of_another_worker_keeps_nobody(store: Store) -> None:
    await workers.enroll(store, card("w"))
    await started(store, worker="w2")

    await workers.dismiss(store, "w")

    assert await workers.list_all(store) == []


async def test_dismissing_somebody_unknown_is_nothing(store: Store) -> None:
    await workers.enroll(store, card("w"))

    await workers.dismiss(store, "nobody")

    assert [each.id for each in await workers.list_all(store)] == ["w"]


async def test_a_dismissed_worker_may_come_back(store: Store) -> None:
    await workers.enroll(store, card("w"))
    await workers.dismiss(store, "w")

    await workers.enroll(store, card("w"))

    assert [each.id for each in await workers.list_all(store)] == ["w"]
