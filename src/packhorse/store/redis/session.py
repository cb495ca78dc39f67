"""A session with the server: the client, its clock, the plans it knows, and the writer that every write goes through.

Writes that wait travel together, in scripts short enough to keep nobody waiting.
"""

from __future__ import annotations

import itertools
import secrets
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any, NamedTuple, Self

import msgspec

from packhorse.errors import StoreError, StoreUnavailable
from packhorse.settings import REDIS_PREFIX
from packhorse.store.batching import Group
from packhorse.store.redis.client import Address, Link, ServerClock, address
from packhorse.store.redis.starts import Known

LANES = 2
"""Scripts that run at once: one is packed here while the server runs another. Callers are not ordered by them."""
MEMBERS = 128
"""Made by one script at most: about 5 ms in which the server answers nobody else."""
BYTES = 1024 * 1024
"""Brought by one script at most, unless a single member is larger."""

BEHIND = [b"behind"]

pack = msgspec.msgpack.Encoder().encode


class Member(NamedTuple):
    """One unit of a script: guards, and the effects that are made when all of them hold."""

    job_id: str
    """Empty for what is about no job's record, and so is never refused for a neighbour's sake."""
    body: bytes
    """Words and counts, packed one after the other."""
    words: int
    is_own: bool = False
    """Whether it is nothing that others who work through this session have to hear of."""


def pack_member(job_id: str, words: list[Any], *, is_own: bool = False) -> Member:
    """Of words as lua/commit.lua reads them, behind their number: lists within lists cost the script a table each."""
    words[0] = count = len(words)
    header = 1 if count < 16 else 3 if count < 65_536 else 5  # bytes before the items of a msgpack list
    return Member(job_id, pack(words)[header:], count, is_own)


def pack_effects(
    *effects: Sequence[str], guards: Sequence[Sequence[str]] = (), job: tuple[str, str] | None = None
) -> Member:
    """Effects about no job's record; or about that of a job, with the version and lineage that it must carry."""
    job_id, version = job or ("", "*")
    words: list[Any] = [0, job_id, version, "", "", ""]
    for each in guards:
        words += (len(each), *each)
    words.append(0)
    for each in effects:
        words += (len(each), *each)
    return pack_member(job_id, words)


class Writer:
    def __init__(self, link: Link, clock: ServerClock) -> None:
        self._link = link
        self._clock = clock
        self.name = secrets.token_hex(4)
        """By which those who watch through the same session know its work."""
        self._lanes: list[Group[Member, Any]] = [Group(self._send, 4 * MEMBERS) for _ in range(LANES)]
        self._turns = itertools.cycle(self._lanes)
        self._is_closed = False

    async def __call__(self, members: Sequence[Member]) -> Sequence[Any]:
        """Per member b"" for made, why it was refused, or the error that hit it."""
        if self._is_closed:
            raise StoreUnavailable("The store is closed.")
        return await next(self._turns)(members)

    async def put(self, *members: Member) -> None:
        """Make what is not refused unless something is wrong. Guards that do not hold make it nothing."""
        for outcome in await self(members):
            refusal(outcome)

    async def close(self) -> None:
        self._is_closed = True
        for lane in self._lanes:
            await lane.close()

    async def _send(self, members: list[Member]) -> list[Any]:
        """What was refused in one script refuses what follows in the next. A lost answer is that of its own script."""
        outcomes: list[Any] = []
        refused: set[str] = set()
        lost: StoreError | None = None
        for batch in _batches(members):
            behind = frozenset(refused)  # of this batch, the script itself refuses what is behind a refused one
            sent = [member for member in batch if member.job_id not in behind]
            if lost is None:
                found, lost = await self._script(sent)
            else:  # what is down stays down for those behind: they were never sent
                found = [StoreUnavailable(str(lost))] * len(sent)
            answers = iter(found)
            for member in batch:
                outcome = BEHIND if member.job_id in behind else next(answers)
                outcomes.append(outcome)
                if outcome and member.job_id:
                    refused.add(member.job_id)
        return outcomes

    async def _script(self, members: Sequence[Member]) -> tuple[list[Any], StoreError | None]:
        if not members:
            return [], None
        day = time.strftime("%Y-%m-%d", time.gmtime(self._clock()))
        count = sum(member.words for member in members)
        packed = b"".join([b"\xdd", count.to_bytes(4), *[member.body for member in members]])
        by = self.name if all(member.is_own for member in members) else ""
        sent = time.monotonic()
        try:
            at, *outcomes = await self._link.run("commit", self._clock.argument(), day, packed, by)
        except StoreError as error:
            return [error] * len(members), error
        self._clock.learn(float(at), sent)
        return outcomes, None


def refusal(outcome: Any) -> str:
    """The name of the guard that did not hold, or nothing. Raises what is wrong."""
    if isinstance(outcome, StoreError):
        raise outcome
    if outcome and outcome[0] in (b"unsound", b"half"):
        raise StoreError(f"Redis: {outcome[1].decode()}")
    return outcome[0].decode() if outcome else ""


def _batches(members: Sequence[Member]) -> Iterator[list[Member]]:
    batch: list[Member] = []
    size = 0
    for member in members:
        if batch and (len(batch) == MEMBERS or size + len(member.body) > BYTES):
            yield batch
            batch, size = [], 0
        batch.append(member)
        size += len(member.body)
    yield batch


class Session:
    """What every part of the store is built on."""

    def __init__(self, address: Address, clock: Callable[[], float] | None = None) -> None:
        self.now = ServerClock(clock)
        self._link = Link(address)
        self._plans = Known()
        self._write = Writer(self._link, self.now)
        self._closing: list[Callable[[], Awaitable[None]]] = [self._write.close]
        """What has to be done before the link is closed, in this order."""

    @classmethod
    async def open(cls, url: str, prefix: str = REDIS_PREFIX, clock: Callable[[], float] | None = None) -> Self:
        """A session with the server at the URL, whose ``?prefix=`` wins over the one given."""
        store = cls(address(url, prefix), clock)
        link = store._link
        try:
            info = await link.info()
            link.is_cluster = info.get("cluster_enabled") == "1"
            link.prefix = link.address.prefix_in(is_cluster=link.is_cluster)
            sent = time.monotonic()
            seconds, micros = await link.call("TIME")
        except BaseException:
            await store.close()
            raise
        store.now.learn(int(seconds) + int(micros) / 1e6, sent)
        return store

    async def close(self) -> None:
        """Finish every request, then disconnect."""
        for close in self._closing:
            await close()
        await self._link.close()

    def _open(self) -> None:
        """What asks nothing when it is given nothing must still say that the store is closed."""
        if self._link.is_closed:
            raise StoreUnavailable("The store is closed.")
