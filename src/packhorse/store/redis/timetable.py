"""The part of the store about schedules."""

from __future__ import annotations

from packhorse.core.schedules import Move, Revision, Run, Schedule
from packhorse.store.redis import schedules as scheduling
from packhorse.store.redis.session import Handle


class Timetable(Handle):
    async def move(self, move: Move) -> None:
        await scheduling.move(self._write, move)

    async def schedule(self, tenant: str, schedule_id: str) -> Schedule | None:
        return await scheduling.schedule(self._link, tenant, schedule_id)

    async def schedules(
        self, tenant: str | None = None, *, after: tuple[str, str] | None = None, limit: int = 50
    ) -> list[Schedule]:
        return await scheduling.schedules(self._link, tenant, after, limit)

    async def upcoming(self, until: float, limit: int) -> list[Schedule]:
        return await scheduling.upcoming(self._link, until, limit)

    async def revisions(
        self, tenant: str, schedule_id: str, *, before: int | None = None, limit: int = 50
    ) -> list[Revision]:
        return await scheduling.revisions(self._link, tenant, schedule_id, before, limit)

    async def runs(
        self, tenant: str, schedule_id: str, *, before: float | None = None, limit: int = 50, open_only: bool = False
    ) -> list[Run]:
        return await scheduling.runs(self._link, tenant, schedule_id, before, limit, open_only)

    async def run(self, tenant: str, schedule_id: str, tick: float) -> Run | None:
        return await scheduling.run(self._link, tenant, schedule_id, tick)

    async def put_run(self, before: Run, after: Run) -> None:
        await scheduling.put_run(self._write, before, after)

    async def take_runs(self, limit: int, seconds: float) -> list[Run]:
        self._open()
        return await scheduling.take(self._link, self.now, limit, seconds)

    async def trim_runs(self, tenant: str, schedule_id: str, *, older_than: float, keep: int) -> None:
        await scheduling.trim_runs(self._link, self._write, tenant, schedule_id, older_than, keep)

    async def drop_schedule(self, schedule: Schedule) -> None:
        await scheduling.drop(self._write, schedule)
