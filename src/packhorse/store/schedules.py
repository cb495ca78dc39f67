"""The contract's part about schedules: what is run when, every version of it, and what became of each tick."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from packhorse.core import json
from packhorse.core.schedules import Move, Revision, Run, Schedule


class Schedules(Protocol):
    async def move(self, move: Move) -> None:
        """Make it whole or not at all: the schedule, its new version, and the runs of the ticks that were claimed.

        It is made if the stored schedule carries the stamp of ``before`` (None: there is none of that id) and none of
        the runs exists. Raises `Conflict`. Of the versions, about `core.schedules.VERSIONS` are kept.
        """

    async def schedule(self, tenant: str, schedule_id: str) -> Schedule | None:
        """Ended ones too."""

    async def schedules(
        self, tenant: str | None = None, *, after: tuple[str, str] | None = None, limit: int = 50
    ) -> list[Schedule]:
        """Those of the tenant, by id; or all, in an order of their own. Behind the one of that tenant and id.

        One that cannot be read is told of and left out.
        """

    async def upcoming(self, until: float, limit: int) -> list[Schedule]:
        """Those whose next tick comes up to that moment, the earliest first; without those that cannot be read."""

    async def revisions(
        self, tenant: str, schedule_id: str, *, before: int | None = None, limit: int = 50
    ) -> list[Revision]:
        """Versions, newest first, with a number below ``before``."""

    async def runs(
        self, tenant: str, schedule_id: str, *, before: float | None = None, limit: int = 50, open_only: bool = False
    ) -> list[Run]:
        """Runs, the newest tick first, of ticks before ``before``; only those that are not over, if asked so."""

    async def run(self, tenant: str, schedule_id: str, tick: float) -> Run | None: ...

    async def put_run(self, before: Run, after: Run) -> None:
        """Write it if the stored one carries the stamp of ``before``. Raises `Conflict`."""

    async def take_runs(self, limit: int, seconds: float) -> list[Run]:
        """Those to be carried on by the store's clock, longest due first, each put off by ``seconds`` in the same step.

        Two takers never receive the same one at a time. What a taker that died has not decided is due again by itself.
        """

    async def trim_runs(self, tenant: str, schedule_id: str, *, older_than: float, keep: int) -> None:
        """Drop runs that are over: of ticks before that, and the oldest beyond so many; a thousand or so at a time."""

    async def drop_schedule(self, schedule: Schedule) -> None:
        """Forget an ended schedule with its versions, if it is still as it was read and has no run left."""


PAGE = 1000
"""Runs that are dropped in one step at most."""


def schedule_from(body: bytes | str) -> Schedule:
    return json.record(body, Schedule)


def revision_from(body: bytes | str) -> Revision:
    return json.record(body, Revision)


RUN_FIELDS: Sequence[str] = Run.__struct_fields__
