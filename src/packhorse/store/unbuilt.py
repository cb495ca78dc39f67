"""What a store does not do yet."""

from __future__ import annotations

from collections.abc import Sequence

from packhorse.core.model import Job, TaskId
from packhorse.store.base import Charge, Delivery, Endpoint, Entry, Key, Pause, Spent


class Unbuilt:
    async def add_key(self, key: Key) -> None:
        raise NotImplementedError

    async def keys(self, ids: Sequence[str]) -> list[Key | None]:
        raise NotImplementedError

    async def list_keys(self, tenant: str | None, *, before: str | None = None, limit: int = 50) -> list[Key]:
        raise NotImplementedError

    async def job_keys(self, job_id: str) -> list[Key]:
        raise NotImplementedError

    async def end_key(self, key_id: str, at: float, by: str) -> Key | None:
        raise NotImplementedError

    async def audit(self, entries: Sequence[Entry], *, keep: int) -> None:
        raise NotImplementedError

    async def audited(self, tenant: str | None = None, *, before: int | None = None, limit: int = 50) -> list[Entry]:
        raise NotImplementedError

    async def spend(self, charges: Sequence[Charge]) -> Spent:
        raise NotImplementedError

    async def refund(self, charges: Sequence[Charge], at: float) -> None:
        raise NotImplementedError

    async def add_endpoint(self, endpoint: Endpoint) -> None:
        raise NotImplementedError

    async def endpoints(self, tenant: str | None = None) -> list[Endpoint]:
        raise NotImplementedError

    async def end_endpoint(self, endpoint_id: str, at: float, reason: str) -> Endpoint | None:
        raise NotImplementedError

    async def take_deliveries(self, limit: int, seconds: float) -> list[Delivery]:
        raise NotImplementedError

    async def settle_delivery(self, delivery: Delivery, *, next_at: float | None, error: str = "") -> None:
        raise NotImplementedError

    async def deliveries(self, endpoint_id: str, limit: int = 50) -> list[Delivery]:
        raise NotImplementedError

    async def ahead(self, job: Job, task: TaskId, *, limit: int = 1000) -> int:
        raise NotImplementedError

    async def pause(self, pause: Pause) -> None:
        raise NotImplementedError

    async def resume(self, queue: str) -> bool:
        raise NotImplementedError

    async def pauses(self) -> list[Pause]:
        raise NotImplementedError
