"""The part of the store that governs: who may ask, how much."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from packhorse.store.base import Charge, Entry, Key, Session, Spent
from packhorse.store.batching import Group
from packhorse.store.postgres import counters
from packhorse.store.postgres import keys as granting
from packhorse.store.postgres.address import Address
from packhorse.store.postgres.counters import Ask
from packhorse.store.postgres.session import Handle


class Governing(Handle):
    """Nobody waits for what is written here, so nobody is woken for it: a busy server counts at every request."""

    def __init__(self, address: Address, clock: Callable[[], float] | None = None) -> None:
        super().__init__(address, clock)
        self._counts: Group[Ask, Spent] = self._group(self._count)

    # Keys

    async def add_key(self, key: Key) -> None:
        await self._keep(granting.add_key, key)

    async def keys(self, ids: Sequence[str]) -> list[Key | None]:
        return await self._read(granting.keys, ids)

    async def list_keys(self, tenant: str | None, *, before: str | None = None, limit: int = 50) -> list[Key]:
        return await self._read(granting.list_keys, tenant, before, limit)

    async def job_keys(self, job_id: str) -> list[Key]:
        return await self._read(granting.job_keys, job_id)

    async def end_key(self, key_id: str, at: float, by: str) -> Key | None:
        return await self._keep(granting.end_key, key_id, at, by)

    # Sessions

    async def add_session(self, session: Session) -> None:
        await self._keep(granting.add_session, session, self.now())

    async def session(self, session_id: str) -> Session | None:
        return await self._read(granting.session, session_id)

    async def end_session(self, session_id: str) -> None:
        await self._keep(granting.end_session, session_id, self.now())

    # Audit

    async def audit(self, entries: Sequence[Entry], *, keep: int) -> None:
        await self._keep(granting.audit, entries, keep)

    async def audited(self, tenant: str | None = None, *, before: int | None = None, limit: int = 50) -> list[Entry]:
        return await self._read(granting.audited, tenant, before, limit)

    # Counters

    async def spend(self, charges: Sequence[Charge]) -> Spent:
        self._check_open()
        [spent] = await self._counts([Ask(charges)])
        return spent

    async def refund(self, charges: Sequence[Charge], at: float) -> None:
        self._check_open()
        await self._counts([Ask(charges, at)])

    async def _count(self, asks: Sequence[Ask]) -> Sequence[Spent]:
        return await self._keep(partial(counters.count_all, asks=asks, clock=self._clock))
