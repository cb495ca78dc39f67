"""Noticing what anybody committed: a notification is only a hint, a look at the feed is the truth."""

from __future__ import annotations

import asyncio
import re
import secrets
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

import asyncpg

from packhorse.errors import StoreError
from packhorse.store import sql_files
from packhorse.store.postgres.connection import CONNECT, LOST, Address, Clock, Connections, Session
from packhorse.store.postgres.connection import SQL as SERVER

SQL = sql_files.load(__package__, "watch")


POLL = 0.5
"""Seconds between looks that nothing told us to take: how late we are when a notification is lost."""
PAUSE = 0.02
"""Seconds per notification in the long run. Each is a commit that all who notify take turns in."""
BURST = 5
"""Notifications that may follow each other at once, after that many pauses in which there was none."""
KEEPALIVE = 15.0
"""Seconds after which the connection that listens is asked whether it is still there."""
RETRY = 0.2
UNTOLD = 0.1
"""Seconds between looks behind a pool, where nobody can listen."""

FEED = 10_000
"""Rows of the feed kept for watchers that are a little behind. A watcher that is further behind reads everything."""
MANY = 2_000
"""Rows past which it is cheaper to look at what one watches than at what has moved."""

GAP = 64
"""Transactions between the last one seen and the notified one, past which a look is simpler."""

SNAPSHOT = re.compile(r"\d+:\d+:[\d,]*")


def number(snapshot: str) -> int:
    """A snapshot as the contract's cursor, which is a number."""
    return int.from_bytes(snapshot.encode())


def snapshot_of(number: int) -> str | None:
    """The snapshot that the number stands for, None if it is not one of ours."""
    text = number.to_bytes((number.bit_length() + 7) // 8).decode(errors="replace") if number > 0 else ""
    return text if SNAPSHOT.fullmatch(text) else None


def advance(snapshot: str, xid: int) -> str | None:
    """The snapshot with this transaction in it, too; None if that would say less than a look."""
    low, high, running = snapshot.split(":")
    first, end = int(low), int(high)
    open_ = {int(each) for each in running.split(",") if each}
    if xid >= end:
        if xid - end > GAP:
            return None
        open_ |= set(range(end, xid))
        end = xid + 1
    elif xid in open_:
        open_.remove(xid)
    else:
        return None
    return f"{min(open_, default=end)}:{end}:{','.join(map(str, sorted(open_)))}" if xid >= first else None


async def trim(session: Session) -> None:
    await session.fetch(SQL.trim, FEED)


async def drop_copied(session: Session) -> None:
    """Forget what another server wrote: the database was restored here from its backup."""
    if await session.value(SQL.is_copy):
        await session.fetch(SQL.drop_copied)


async def changed_jobs(session: Session, since: int | None) -> tuple[int, set[str] | None]:
    seen = snapshot_of(since) if since is not None else None
    if seen is None:
        return number(await _look(session, None) or ""), None
    row = await session.row(SQL.touched, seen, MANY)
    assert row is not None
    return number(row["snapshot"]), None if row["is_too_much"] else {str(id) for id in row["jobs"]}


async def _look(session: Session, seen: str | None) -> str | None:
    """What can be seen now, None if that is nothing new."""
    if seen is None:
        return str(await session.value(SQL.snapshot))
    row = await session.row(SQL.look, seen)
    assert row is not None
    return str(row["snapshot"]) if row["is_new"] else None


class Hint(asyncio.Event):
    """Something was committed."""

    def __init__(self, *, is_working: bool) -> None:
        super().__init__()
        self.is_working = is_working
        self.xid: int | None = None
        """By which transaction, if it said so."""


class Notice:
    """A word to the others that may go with a commit."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self.is_told = False
        self.has_more = False
        """Whether who waits here should look again at once."""

    def words(self) -> Sequence[str] | None:
        """Called when there is something to notify: the channel, and who notifies on it."""
        self.is_told = self.is_told or self._watch.may_tell()
        return self._watch.words if self.is_told else None

    def take_back(self) -> None:
        """There was nothing to notify after all."""
        if self.is_told:
            self.is_told = False
            self._watch.refund()


class Watch:
    def __init__(self, connections: Connections, address: Address, clock: Clock) -> None:
        self._connections = connections
        self._clock = clock
        self._can_listen = not address.is_pooled
        self._channel = f"packhorse_{address.schema}"
        self._name = secrets.token_hex(8)
        self._hints: set[Hint] = set()
        self._listening: asyncio.Task[None] | None = None
        self._telling: asyncio.Task[None] | None = None
        self._has_more = False
        self._told_at = 0.0
        self._left = float(BURST)
        """Notifications that may go at once."""
        self.words = self._channel, self._name
        self._is_listening = False
        self._news = {False: 0, True: 0}
        """Hints so far: of everything, and of what those who work have to hear of."""
        self._known: dict[bool, tuple[int, int]] = {}
        """The mark last returned, and how many hints there had been: until there is another, nothing is new."""
        self._closing = asyncio.Event()

    # Looking

    async def wait_for_change(self, mark: int | None, timeout: float, *, is_working: bool = False) -> int:
        seen = snapshot_of(mark) if mark is not None else None
        deadline = time.monotonic() + timeout
        with self._subscribe(is_working) as hint:
            is_known = self._is_listening and self._known.get(is_working) == (mark, self._news[is_working])
            while True:
                news = self._news[is_working]
                if not is_known:
                    hint.clear()
                    hint.xid = None
                    found = await self._connections.read(lambda session: _look(session, seen))
                    if found is not None or mark is None:
                        return self._remember(number(found or ""), news, is_working)
                is_known = False
                left = deadline - time.monotonic()
                if left <= 0:
                    return self._remember(mark or 0, news, is_working)
                with suppress(TimeoutError):
                    async with asyncio.timeout(min(left, POLL if self._can_listen else UNTOLD)):
                        await hint.wait()
                if hint.xid is not None and seen is not None and (new := advance(seen, hint.xid)) is not None:
                    # The notification says whose it is: looking would only find it.
                    return self._remember(number(new), self._news[is_working], is_working)

    def _remember(self, mark: int, news: int, is_working: bool) -> int:
        self._known[is_working] = mark, news
        return mark

    # Hints

    @contextmanager
    def _subscribe(self, is_working: bool) -> Iterator[Hint]:
        if self._can_listen and not self._closing.is_set() and (self._listening is None or self._listening.done()):
            self._listening = asyncio.create_task(self._listen(), name="packhorse-postgres-listener")
        hint = Hint(is_working=is_working)
        self._hints.add(hint)
        try:
            yield hint
        finally:
            self._hints.discard(hint)

    def _hint(self, xid: int | None = None, *, is_own_work: bool = False) -> None:
        self._news[False] += 1
        self._news[True] += not is_own_work
        for hint in self._hints:
            if is_own_work and hint.is_working:
                continue
            hint.xid = xid if not hint.is_set() else None  # of several, a look finds out
            hint.set()

    async def _listen(self) -> None:
        """Listen, and after the connection was lost listen again: what was missed meanwhile is found by looking."""
        while True:
            with suppress(*LOST, asyncpg.PostgresError):
                await self._listen_once()
            await asyncio.sleep(RETRY)

    async def _listen_once(self) -> None:
        session, is_lost = await self._connections.connect(), asyncio.Event()
        try:
            session.connection.add_termination_listener(lambda _: is_lost.set())
            await session.connection.add_listener(self._channel, self._on_notification)
            self._is_listening = True
            self._hint()
            while not is_lost.is_set():
                with suppress(TimeoutError):
                    async with asyncio.timeout(KEEPALIVE):
                        await is_lost.wait()
                async with asyncio.timeout(CONNECT):
                    self._clock.adjust(await session.value(SERVER.clock))
        finally:
            self._is_listening = False
            session.connection.terminate()

    def _on_notification(self, _connection: object, _pid: int, _channel: str, said: object) -> None:
        who, _, xid = str(said).partition(" ")
        if who != self._name:  # our own commits have hinted already
            self._hint(int(xid) if xid.isdecimal() else None)

    # Telling

    def notice(self) -> Notice:
        return Notice(self)

    def may_tell(self) -> bool:
        """Whether a commit may notify by itself: not if many did a moment ago; then another task notifies.

        All transactions that notify commit one after the other, so under load only one in `PAUSE` does.
        """
        if self._telling is not None and not self._telling.done():
            return False
        now = time.monotonic()
        self._left = min(BURST, self._left + (now - self._told_at) / PAUSE)
        self._told_at = now
        if self._left < 1:
            return False
        self._left -= 1
        return True

    def refund(self) -> None:
        """A notification did not go."""
        self._left += 1

    def tell(self, *, is_told: bool = False, is_own_work: bool = False) -> None:
        """Something was committed here: tell the others, soon and at most every `PAUSE`.

        ``is_own_work`` concerns nobody here who works: see `Watch.changed` of the contract.
        """
        self._hint(is_own_work=is_own_work)
        if is_told:
            return
        self._has_more = True
        if self._telling is None or self._telling.done():
            self._telling = asyncio.create_task(self._tell(), name="packhorse-postgres-teller")

    async def _tell(self) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(self._told_at + PAUSE - time.monotonic()):
                await self._closing.wait()
        while self._has_more:
            await self._notify()
            with suppress(TimeoutError):
                async with asyncio.timeout(PAUSE):
                    await self._closing.wait()

    async def _notify(self) -> None:
        self._has_more = False
        self._told_at = time.monotonic()
        with suppress(StoreError, asyncpg.PostgresError):  # who is not told looks
            async with self._connections.session() as session:
                await session.value(SQL.notify, self._channel, self._name)

    async def close(self) -> None:
        """Tell what was not told yet, and stop listening."""
        self._closing.set()
        if self._telling is not None:
            await asyncio.wait([self._telling])  # not `await`: it may have been cancelled, as by the end of asyncio.run
        if self._listening is not None:
            self._listening.cancel()
            await asyncio.wait([self._listening])
