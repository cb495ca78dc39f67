"""Group commit for a store behind a network: what waits travels together."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, NamedTuple, TypeVar

A = TypeVar("A")
B = TypeVar("B")


class _Waiting(NamedTuple, Generic[A, B]):
    items: Sequence[A]
    future: asyncio.Future[Sequence[B]]


class Group(Generic[A, B]):
    """Gathers what callers ask for while an earlier batch runs. No timer: an idle store is asked at once.

    ``send`` answers item by item, in order. If it raises, every caller of that batch gets the error.
    """

    def __init__(self, send: Callable[[list[A]], Awaitable[Sequence[B]]], most: int = 512) -> None:
        self._send = send
        self._most = most
        """Items in one batch at most, unless a single caller brings more: the first must not wait for ever more."""
        self._waiting: list[_Waiting[A, B]] = []
        self._sender: asyncio.Task[None] | None = None

    async def __call__(self, items: Sequence[A]) -> Sequence[B]:
        """The answers for these items. A caller that is cancelled leaves; its items are still sent."""
        if not items:
            return []
        future: asyncio.Future[Sequence[B]] = asyncio.get_running_loop().create_future()
        self._waiting.append(_Waiting(items, future))
        if self._sender is None or self._sender.done():
            self._sender = asyncio.create_task(self._work(), name="packhorse-group")
        return await future

    async def close(self) -> None:
        """Wait until every request has its answer."""
        if self._sender is not None:
            await asyncio.wait([self._sender])

    async def _work(self) -> None:
        while self._waiting:
            await self._answer(self._next())

    def _next(self) -> list[_Waiting[A, B]]:
        size = count = 0
        for waiting in self._waiting:
            size += len(waiting.items)
            if count and size > self._most:
                break
            count += 1
        group, self._waiting = self._waiting[:count], self._waiting[count:]
        return group

    async def _answer(self, group: list[_Waiting[A, B]]) -> None:
        try:
            answers = await self._send([item for waiting in group for item in waiting.items])
        except BaseException as error:  # broad: nobody may wait for an answer that will not come
            for waiting in group:
                if not waiting.future.done():
                    waiting.future.set_exception(_as_exception(error))
            if not isinstance(error, Exception):
                raise
            return
        at = 0
        for waiting in group:
            until = at + len(waiting.items)
            if not waiting.future.done():
                waiting.future.set_result(answers[at:until])
            at = until


def _as_exception(error: BaseException) -> BaseException:
    """A future takes no `StopIteration`, and one that was cancelled would look as if its own caller had been."""
    return error if isinstance(error, Exception) else RuntimeError(f"The store's sender was ended: {error!r}")
