"""The contract's part about telling others: where tenants want to be told of ended jobs, and what waits to be sent."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from msgspec import Struct


class Endpoint(Struct, frozen=True, omit_defaults=True):
    """Where a tenant wants to be told of ended jobs."""

    id: str
    tenant: str
    url: str
    created_at: float
    created_by: str = ""
    ended_at: float | None = None
    reason: str = ""
    """Why it has ended."""


class Delivery(Struct, frozen=True, omit_defaults=True):
    """A message of the outbox, made in the same step as the terminal status it tells of."""

    id: str
    """Job, run and endpoint: the same however often it is sent, so that a receiver can tell repeats."""
    endpoint: str
    job_id: str
    run: int
    at: float
    attempts: int = 0
    next_at: float = 0.0
    error: str = ""
    body: str = ""
    """What it says, if it is not about a job: then its job is `NO_JOB`."""


NO_JOB = "00000000-0000-0000-0000-000000000000"
"""Whose message does not go with any job."""


def delivery_id(job_id: str, run: int, endpoint: str) -> str:
    return f"{job_id}.{run}.{endpoint}"


class Outbox(Protocol):
    async def add_endpoint(self, endpoint: Endpoint) -> None:
        """Raises `Conflict` if the id is taken."""

    async def endpoints(self, tenant: str | None = None, *, only_open: bool = False) -> list[Endpoint]:
        """Those of the tenant, or all, oldest first; ended ones too, unless only open ones are wanted."""

    async def end_endpoint(self, endpoint_id: str, at: float, reason: str) -> Endpoint | None:
        """Send nothing there any more: what waits goes with it. The first end stays. None if it is unknown."""

    async def post_deliveries(self, deliveries: Sequence[Delivery]) -> None:
        """Put messages that have a body into the outbox, but for those to endpoints that have ended.

        One whose id is there already is left as it is.
        """

    async def forget_endpoints(self, ended_before: float) -> None:
        """Delete those that had ended by then."""

    async def take_deliveries(self, limit: int, seconds: float) -> list[Delivery]:
        """Those due by the store's clock, longest due first, each counted and put off by ``seconds`` in the same step.

        Two takers never receive the same attempt. What a taker that died has not settled is due again by itself.
        """

    async def settle_delivery(self, delivery: Delivery, *, next_at: float | None, error: str = "") -> None:
        """Done with (None), or to be tried again then. Ignored if another taker has it since."""

    async def deliveries(self, endpoint_id: str, limit: int = 50) -> list[Delivery]:
        """What waits for the endpoint, newest first."""
