"""The part of the store that governs: who may ask, how much."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from packhorse.store.base import Charge, Entry, Key, Session, Spent
from packhorse.store.redis import api_keys
from packhorse.store.redis.address import Address
from packhorse.store.redis.counters import Ask, Counting
from packhorse.store.redis.session import Handle


class Governing(Handle):
    def __init__(self, address: Address, clock: Callable[[], float] | None = None) -> None:
        super().__init__(address, clock)
        self._counting = Counting(self._link, self.now)
        self._closing.insert(0, self._counting.close)

    # Keys

    async def add_key(self, key: Key) -> None:
        await api_keys.add_key(self._write, key)

    async def keys(self, ids: Sequence[str]) -> list[Key | None]:
        self._open()
        return await api_keys.find(self._link, ids)

    async def list_keys(self, tenant: str | None, *, before: str | None = None, limit: int = 50) -> list[Key]:
        return await api_keys.list_keys(self._link, tenant, before, limit)

    async def job_keys(self, job_id: str) -> list[Key]:
        return await api_keys.job_keys(self._link, job_id)

    async def end_key(self, key_id: str, at: float, by: str) -> Key | None:
        return await api_keys.end_key(self._link, self._write, key_id, at, by)

    # Sessions

    async def add_session(self, session: Session) -> None:
        await api_keys.add_session(self._write, session, self.now())

    async def session(self, session_id: str) -> Session | None:
        self._open()
        return await api_keys.session(self._link, session_id)

    async def end_session(self, session_id: str) -> None:
        await api_keys.end_session(self._link, self._write, session_id, self.now())

    # Audit

    async def audit(self, entries: Sequence[Entry], *, keep: int) -> None:
        await api_keys.audit(self._link, entries, keep)

    async def audited(self, tenant: str | None = None, *, before: int | None = None, limit: int = 50) -> list[Entry]:
        self._open()
        return await api_keys.audited(self._link, tenant, before, limit)

    # Counters

    async def spend(self, charges: Sequence[Charge]) -> Spent:
        self._open()
        return await self._counting.spend(charges)

    async def refund(self, charges: Sequence[Charge], at: float) -> None:
        self._open()
        await self._counting(Ask(charges, at))
