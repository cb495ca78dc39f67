"""Limits and fair shares: what operators set and see, and the steps of a claim that count, park and choose.

Commits take no part in it. They delete what a lease has held, add what is due, and leave a row in `news`. A claim that
finds such a row, or a task with limits or turns, locks the row of `regulator` first, so that claims count one after the
other, and lets the server choose what may start (`choose` in migrations/0002.sql).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

from packhorse.core import json
from packhorse.core.models import TaskId
from packhorse.store import sql_files
from packhorse.store.limits import HOLDERS, MOST_PARKED, Holder, LimitState
from packhorse.store.postgres.connection import Clock, Row, Session
from packhorse.store.postgres.session import Handle, is_storable, read, write

SQL = sql_files.load(__package__, "limits")
CLAIM = sql_files.load(__package__, "claim")

PROMOTED = 1000
"""Delayed entries made due per claim at most: what is left is found by the next claim."""


class Turn(NamedTuple):
    """A task that has limits or turns and was chosen: counted already, and in no queue any more."""

    queue: str
    kind: str
    body: str
    """What it takes to let it wait again."""


class Limits(Handle):
    @write
    async def set_limit(self, session: Session, name: str, most: int | None) -> None:
        await session.fetch(SQL.lock)
        if most is None:
            await session.fetch(SQL.unset, name)
        else:
            await session.fetch(SQL.set, name, most)
        await session.fetch(SQL.wake_named, name)

    @read
    async def limit_states(
        self, session: Session, keys: Sequence[str] | None = None, *, name: str = "", after: str = "", limit: int = 100
    ) -> list[LimitState]:
        found = list(keys) if keys is not None else await _keys(session, name, after, limit)
        return [await _state(session, key, self._clock) for key in found]

    @write
    async def _trim_limits(self, session: Session) -> None:
        await session.fetch(SQL.lock)
        await session.fetch(SQL.trim_starts, self._clock.parameter())
        await session.fetch(SQL.trim_shares)


async def _keys(session: Session, name: str, after: str, limit: int) -> list[str]:
    """A key is the name, or the name, an equals sign and what is counted apart. In the order of bytes: < = >."""
    found = [name] if name > after and await session.value(SQL.is_used, name) else []
    place = max(after, f"{name}<") if name else after
    while len(found) < limit and (key := await session.value(SQL.next_key, place)) is not None:
        if name and key >= f"{name}>":
            break
        found.append(key)
        place = key
    return found


async def _state(session: Session, key: str, clock: Clock) -> LimitState:
    if not is_storable([key]):
        return LimitState(key, None, 0, (), 0, None)
    row = await session.row(SQL.state, key, clock.parameter(), MOST_PARKED)
    assert row is not None
    holders = [
        Holder(str(id), TaskId(stage, element), *rest)
        for id, stage, element, *rest in await session.fetch(SQL.holders, key, HOLDERS)
    ]
    return LimitState(key, row["most"], row["used"], tuple(holders), row["parked"], row["free_at"])


async def prepare(session: Session, wanted: Mapping[str, int], kinds: Collection[str], clock: Clock) -> bool:
    """Whether there are limits or turns to see to. If so, they are locked, and the news has been seen to."""
    asked = list(wanted), list(kinds), clock.parameter()
    if not await session.value(SQL.is_regulated, *asked):
        return False
    await session.fetch(SQL.lock)
    await session.fetch(CLAIM.promote, clock.parameter(), PROMOTED)
    await session.fetch(SQL.see_to_news, clock.parameter())
    return True


class Chosen(NamedTuple):
    tasks: list[tuple[Row, Row, Turn | None]]
    """Those that may start now, in order, each with its job: all of them are locked."""
    has_more: bool
    """Whether it ended before it had looked at everything."""


async def choose(
    session: Session, wanted: Mapping[str, int], kinds: Collection[str], passed: Collection[tuple[Any, ...]], by: Clock
) -> Chosen:
    out = [f"{job_id} {element} {stage}" for job_id, stage, element in passed]
    rows: list[Row] = []
    for queue, most in wanted.items():
        rows += await session.fetch(SQL.choose, queue, list(kinds), most, out, by.parameter())
    found = [row for row in rows if row["job_id"] is not None]
    ids = {row["job_id"] for row in found}
    jobs = {row["id"]: row for row in await session.fetch(SQL.chosen_jobs, list(ids))} if ids else {}
    tasks = [
        (row, jobs[row["job_id"]], None if row["turn"] is None else Turn(row["queue"], row["kind"], row["turn"]))
        for row in found
    ]
    return Chosen(tasks, len(found) < len(rows))


async def give_back(session: Session, job_id: str, task: TaskId, turn: Turn, clock: Clock) -> None:
    await session.fetch(SQL.give_back, turn.queue, turn.kind, job_id, *task, turn.body, clock.parameter())


def keys_of(turn: Turn) -> list[str]:
    """The keys that it is counted under."""
    uses: list[list[Any]] = json.decode(turn.body)[3]
    return [str(use[1]) for use in uses]
