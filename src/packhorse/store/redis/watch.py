"""Noticing what others commit: woken by the feed where that works, by looking where it does not."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress

from redis.exceptions import RedisError

from packhorse.errors import StoreError
from packhorse.store.redis.client import Address
from packhorse.store.redis.session import Session

LOOK = 1.0
"""Seconds between looks while nothing wakes us. The feed is a hint; looking is the truth."""
BLOCK = 2000
"""Milliseconds that the server holds an answer back when there is nothing new."""
AGAIN = 0.2
"""Seconds before a lost connection is made again."""
MANY = 2000
"""Entries of the feed past which it is cheaper to look at what one watches than at what has moved."""


class WatchStore(Session):
    def __init__(self, address: Address, clock: Callable[[], float] | None = None) -> None:
        super().__init__(address, clock)
        self._moved = {False: asyncio.Event(), True: asyncio.Event()}
        """For all who wait, and for those who work."""
        self._reader: asyncio.Task[None] | None = None
        self._heard: int | None = None
        """The newest number, while the reader listens: then no read is needed."""
        self._loud = 0
        """The newest that is not our own work."""
        self._closing.append(self._stop_watching)

    async def wait_for_change(self, mark: int | None, timeout: float, *, is_working: bool = False) -> int:
        """The mark is the number of the feed's newest entry."""
        deadline = time.monotonic() + timeout
        is_told = True
        while True:
            moved = self._moved[is_working]
            left = deadline - time.monotonic()
            found = self._heard
            if is_working and found is not None and mark is not None and self._loud <= mark <= found:
                found = mark  # what is new is our own
            if found is None or not is_told or (found == mark and left <= 0):
                found = await self._look()
            if found != mark or left <= 0:
                return found
            self._listen(found)
            is_told = await _is_set(moved, min(left, LOOK))

    async def _look(self) -> int:
        """Ask the server. It may be ahead of the last message; if it is behind, the server has lost data."""
        before = self._heard
        found = await self._last()
        self._loud = found
        if self._heard is not None:
            self._heard = None if before is not None and found < before else max(self._heard, found)
        return found

    async def changed_jobs(self, since: int | None) -> tuple[int, Collection[str] | None]:
        last = await self._last()
        if since is None or since > last or last - since > MANY:
            return last, None
        [entries] = await self._link.ask([["XRANGE", "feed", f"{since + 1}-0", f"{last}-0"]])
        numbers = [int(number.partition(b"-")[0]) for number, _ in entries]
        if numbers != list(range(since + 1, last + 1)):  # some of it was trimmed away
            return last, None
        return last, {job_id.decode() for _, (_, jobs, *_) in entries for job_id in jobs.split()}

    async def _stop_watching(self) -> None:
        if self._reader is not None:
            self._reader.cancel()
            with suppress(asyncio.CancelledError):
                await self._reader
        self._heard = None
        self._wake()

    async def _last(self) -> int:
        [last] = await self._link.ask([["GET", "feed:last"]])
        return int(last or 0)

    def _listen(self, since: int) -> None:
        if self._reader is None or self._reader.done():
            self._reader = asyncio.create_task(self._read(since), name="packhorse-redis-watch")

    async def _read(self, since: int) -> None:
        """Hold one connection on the feed. After a loss it begins anew from what is newest then, and all look."""
        while True:
            with suppress(StoreError, RedisError, OSError):
                async with self._link.connection() as connection:
                    since = self._heard = self._loud = await self._last()
                    self._wake()
                    while True:
                        command = ("XREAD", "COUNT", 1000, "BLOCK", BLOCK, "STREAMS")
                        await connection.send_command(*command, f"{self._link.prefix}feed", f"{since}-0")
                        async with asyncio.timeout(BLOCK / 1000 + self._link.address.timeout):
                            found = await connection.read_response()
                        if found:
                            since = self._hear(found[0][1])
            self._heard = None
            self._wake()
            await asyncio.sleep(AGAIN)

    def _hear(self, entries: Sequence[tuple[bytes, Sequence[bytes]]]) -> int:
        """Note what is new in the feed; its last number."""
        last = loud = 0
        for number, (_, _, *by) in entries:
            last = int(number.partition(b"-")[0])
            if not by or by[1] != self._write.name.encode():
                loud = last
        self._heard = max(last, self._heard or 0)
        self._loud = max(loud, self._loud)
        self._wake(is_own_work=not loud)
        return last

    def _wake(self, *, is_own_work: bool = False) -> None:
        for is_working in (False,) if is_own_work else (False, True):
            moved, self._moved[is_working] = self._moved[is_working], asyncio.Event()
            moved.set()


async def _is_set(event: asyncio.Event, within: float) -> bool:
    with suppress(TimeoutError):
        async with asyncio.timeout(within):
            return await event.wait()
    return False
