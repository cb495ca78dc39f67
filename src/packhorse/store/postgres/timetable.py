"""The part of the store about schedules."""

from __future__ import annotations

from packhorse.core.schedules import Move, Revision, Run, Schedule
from packhorse.store.postgres import schedules as scheduling
from packhorse.store.postgres.session import Handle


class Timetable(Handle):
    async def move(self, move: Move) -> None:
        await self._keep(scheduling.move, move)

    async def schedule(self, tenant: str, schedule_id: str) -> Schedule | None:
        return await self._read(scheduling.schedule, tenant, schedule_id)

    async def schedules(
        self, tenant: str | None = None, *, after: tuple[str, str] | None = None, limit: int = 50
    ) -> list[Schedule]:
        return await self._read(scheduling.schedules, tenant, after, limit)

    async def upcoming(self, until: float, limit: int) -> list[Schedule]:
        return await self._read(scheduling.upcoming, until, limit)

    async def revisions(
        self, tenant: str, schedule_id: str, *, before: int | None = None, limit: int = 50
    ) -> list[Revision]:
        return await self._read(scheduling.revisions, tenant, schedule_id, before, limit)

    async def runs(
        self, tenant: str, schedule_id: str, *, before: float | None = None, limit: int = 50, open_only: bool = False
    ) -> list[Run]:
        return await self._read(scheduling.runs, tenant, schedule_id, before, limit, open_only)

    async def run(self, tenant: str, schedule_id: str, tick: float) -> Run | None:
        return await self._read(scheduling.run, tenant, schedule_id, tick)

    async def put_run(self, before: Run, after: Run) -> None:
        await self._keep(scheduling.put_run, before, after)

    async def take_runs(self, limit: int, seconds: float) -> list[Run]:
        """Looked at first: who finds nothing, as most do, need not begin a transaction."""
        if not await self._read(scheduling.has_due, self._clock):
            return []
        return await self._keep(scheduling.take, self._clock, limit, seconds)

    async def trim_runs(self, tenant: str, schedule_id: str, *, older_than: float, keep: int) -> None:
        await self._keep(scheduling.trim_runs, tenant, schedule_id, older_than, keep)

    async def drop_schedule(self, schedule: Schedule) -> None:
        await self._keep(scheduling.drop, schedule)
