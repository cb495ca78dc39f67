"""What every write goes through: what waits travels together, in scripts short enough to keep nobody waiting."""

from __future__ import annotations

import itertools
import secrets
import time
from collections.abc import Iterator, Sequence
from typing import Any

from packhorse.errors import StoreError, StoreUnavailable
from packhorse.store.batching import Group
from packhorse.store.redis.client import Link, ServerClock
from packhorse.store.redis.commit import Member, together

LANES = 2
"""Scripts under way at once: one is made here while the server works at another. They are no order between callers."""
MEMBERS = 128
"""Made by one script at most: about 5 ms in which the server answers nobody else."""
BYTES = 1024 * 1024
"""Brought by one script at most, unless a single member is larger."""

BEHIND = [b"behind"]


class Writer:
    def __init__(self, link: Link, clock: ServerClock) -> None:
        self._link = link
        self._clock = clock
        self.name = secrets.token_hex(4)
        """By which those who watch through the same handle know its work."""
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
            _refusal(outcome)

    @staticmethod
    def refusal(outcome: Any) -> str:
        """The name of the guard that did not hold, or nothing. Raises what is wrong."""
        return _refusal(outcome)

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
        sent = time.monotonic()
        try:
            by = self.name if all(member.is_own for member in members) else ""
            at, *outcomes = await self._link.run("commit", self._clock.argument(), day, together(members), by)
        except StoreError as error:
            return [error] * len(members), error
        self._clock.learn(float(at), sent)
        return outcomes, None


def _refusal(outcome: Any) -> str:
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
