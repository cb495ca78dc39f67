"""Group commit for stores behind a network."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from packhorse.store.batching import Group


class Wire:
    """A store that answers when it is told to, and remembers what travelled together."""

    def __init__(self) -> None:
        self.batches: list[list[int]] = []
        self.go = asyncio.Event()
        self.error: BaseException | None = None

    async def __call__(self, items: list[int]) -> Sequence[int]:
        self.batches.append(items)
        await self.go.wait()
        if self.error is not None:
            raise self.error
        return [item * 10 for item in items]


async def asking(group: Group[int, int], *asked: Sequence[int]) -> list[asyncio.Task[Sequence[int]]]:
    tasks = [asyncio.create_task(group(items)) for items in asked]
    await asyncio.sleep(0.01)
    return tasks


async def test_what_waits_while_a_batch_is_under_way_travels_together() -> None:
    wire = Wire()
    group = Group(wire)
    first = await asking(group, [1])
    rest = await asking(group, [2, 3], [4])
    wire.go.set()
    assert [await task for task in first + rest] == [[10], [20, 30], [40]]
    assert wire.batches == [[1], [2, 3, 4]]


async def test_an_idle_store_is_asked_at_once_and_again_after_a_pause() -> None:
    wire = Wire()
    wire.go.set()
    group = Group(wire)
    assert await group([1]) == [10]
    assert await group([2]) == [20]
    assert await group([]) == []
    assert wire.batches == [[1], [2]]


async def test_a_batch_is_bounded_but_nobody_is_cut_in_two() -> None:
    wire = Wire()
    group = Group(wire, most=3)
    first = await asking(group, [0])
    rest = await asking(group, [1, 2], [3, 4], [5, 6, 7, 8], [9])
    wire.go.set()
    assert [await task for task in first + rest] == [[0], [10, 20], [30, 40], [50, 60, 70, 80], [90]]
    assert wire.batches == [[0], [1, 2], [3, 4], [5, 6, 7, 8], [9]]


async def test_an_error_is_told_to_everybody_of_its_batch_and_to_nobody_else() -> None:
    wire = Wire()
    group = Group(wire)
    wire.error = ConnectionError("gone")
    lost = await asking(group, [1])
    wire.go.set()
    with pytest.raises(ConnectionError):
        await lost[0]
    wire.error = None
    assert await group([2]) == [20]


async def test_who_leaves_does_not_take_the_others_along() -> None:
    wire = Wire()
    group = Group(wire)
    leaving, staying = await asking(group, [1], [2])
    leaving.cancel()
    wire.go.set()
    assert await staying == [20]
    assert wire.batches == [[1, 2]]


async def test_a_sender_that_is_ended_leaves_nobody_waiting() -> None:
    wire = Wire()
    group = Group(wire)
    waiting = await asking(group, [1])
    assert group._sender is not None
    group._sender.cancel()
    with pytest.raises(RuntimeError, match="ended"):
        await waiting[0]
    wire.go.set()
    assert await group([2]) == [20]


async def test_closing_waits_for_the_answers() -> None:
    wire = Wire()
    group = Group(wire)
    await group.close()
    waiting = await asking(group, [1])
    closing = asyncio.create_task(group.close())
    await asyncio.sleep(0.01)
    assert not closing.done()
    wire.go.set()
    await closing
    assert await waiting[0] == [10]
