"""The part of the store that governs: who may ask, how much."""

from __future__ import annotations

from collections.abc import Sequence

from packhorse.store.base import Charge, Entry, Key, Session, Spent
from packhorse.store.sqlite import keys as granting
from packhorse.store.sqlite.session import Handle


class Governing(Handle):
    # Keys

    async def add_key(self, key: Key) -> None:
        await self._write(lambda db: granting.add_key(db, key))

    async def keys(self, ids: Sequence[str]) -> list[Key | None]:
        return await self._read(granting.keys, ids)

    async def list_keys(self, tenant: str | None, *, before: str | None = None, limit: int = 50) -> list[Key]:
        return await self._read(granting.list_keys, tenant, before, limit)

    async def job_keys(self, job_id: str) -> list[Key]:
        return await self._read(granting.job_keys, job_id)

    async def end_key(self, key_id: str, at: float, by: str) -> Key | None:
        return await self._write(lambda db: granting.end_key(db, key_id, at, by))

    # Sessions

    async def add_session(self, session: Session) -> None:
        await self._write(lambda db: granting.add_session(db, session, self.now()))

    async def session(self, session_id: str) -> Session | None:
        return await self._read(granting.session, session_id)

    async def end_session(self, session_id: str) -> None:
        await self._write(lambda db: granting.end_session(db, session_id, self.now()))

    # Audit

    async def audit(self, entries: Sequence[Entry], *, keep: int) -> None:
        await self._write(lambda db: granting.audit(db, entries, keep))

    async def audited(self, tenant: str | None = None, *, before: int | None = None, limit: int = 50) -> list[Entry]:
        return await self._read(granting.audited, tenant, before, limit)

    # Counters

    async def spend(self, charges: Sequence[Charge]) -> Spent:
        return await self._counting.spend(charges)

    async def refund(self, charges: Sequence[Charge], at: float) -> None:
        await self._counting.refund(charges, at)
