"""The part of the store that governs: who may ask, how much, and who is told."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from packhorse.store.base import Charge, Delivery, Endpoint, Entry, Key, Session, Spent
from packhorse.store.batching import Group
from packhorse.store.postgres import counters, webhooks
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

    # Outbox

    async def add_endpoint(self, endpoint: Endpoint) -> None:
        await self._keep(webhooks.add_endpoint, endpoint)

    async def endpoints(self, tenant: str | None = None, *, only_open: bool = False) -> list[Endpoint]:
        return await self._read(webhooks.endpoints, tenant, only_open)

    async def forget_endpoints(self, ended_before: float) -> None:
        await self._keep(webhooks.forget_endpoints, ended_before)

    async def end_endpoint(self, endpoint_id: str, at: float, reason: str) -> Endpoint | None:
        return await self._keep(webhooks.end_endpoint, endpoint_id, at, reason)

    async def post_deliveries(self, deliveries: Sequence[Delivery]) -> None:
        await self._keep(webhooks.post, deliveries)

    async def take_deliveries(self, limit: int, seconds: float) -> list[Delivery]:
        """Looked at first: who finds nothing, as most do, need not begin a transaction."""
        if not await self._read(webhooks.has_due, self._clock):
            return []
        return await self._keep(webhooks.take, self._clock, limit, seconds)

    async def settle_delivery(self, delivery: Delivery, *, next_at: float | None, error: str = "") -> None:
        await self._keep(webhooks.settle, delivery, next_at, error)

    async def deliveries(self, endpoint_id: str, limit: int = 50) -> list[Delivery]:
        return await self._read(webhooks.deliveries, endpoint_id, limit)
