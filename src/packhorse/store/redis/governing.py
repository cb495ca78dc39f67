"""The part of the store that governs: who may ask, how much, and who is told."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from packhorse.store.base import Charge, Delivery, Endpoint, Entry, Key, Session, Spent
from packhorse.store.redis import api_keys, webhooks
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

    # Outbox

    async def add_endpoint(self, endpoint: Endpoint) -> None:
        await webhooks.add_endpoint(self._write, endpoint)

    async def endpoints(self, tenant: str | None = None, *, only_open: bool = False) -> list[Endpoint]:
        return await webhooks.endpoints(self._link, tenant, only_open)

    async def forget_endpoints(self, ended_before: float) -> None:
        await webhooks.forget_endpoints(self._link, self._write, ended_before)

    async def end_endpoint(self, endpoint_id: str, at: float, reason: str) -> Endpoint | None:
        return await webhooks.end_endpoint(self._link, self._write, endpoint_id, at, reason)

    async def post_deliveries(self, deliveries: Sequence[Delivery]) -> None:
        await webhooks.post(self._write, deliveries)

    async def take_deliveries(self, limit: int, seconds: float) -> list[Delivery]:
        self._open()
        return await webhooks.take(self._link, self.now, limit, seconds)

    async def settle_delivery(self, delivery: Delivery, *, next_at: float | None, error: str = "") -> None:
        await self._write.put(webhooks.settled(delivery, next_at, error))

    async def deliveries(self, endpoint_id: str, limit: int = 50) -> list[Delivery]:
        self._open()
        return await webhooks.deliveries(self._link, endpoint_id, limit)
