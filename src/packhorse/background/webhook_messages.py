"""A message to a webhook: what it says, and what became of sending it."""

from __future__ import annotations

from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from typing import Any

from msgspec import Struct

from packhorse.background.webhook_signature import secret_of, signed
from packhorse.core import json
from packhorse.core.models import Job
from packhorse.core.plan import TERMINAL
from packhorse.errors import OutboundFailed
from packhorse.outbound.addresses import Allow
from packhorse.outbound.calls import Outbound
from packhorse.outbound.dns import asked_by
from packhorse.outbound.guard import Policy
from packhorse.schemas.job import iso, looked_up
from packhorse.settings import Settings
from packhorse.store.base import Delivery, Endpoint, Store

PATIENCE = 15.0
"""Seconds that a receiver has for everything."""
POLICY = Policy(redirects=0, total=PATIENCE, silence=PATIENCE, connect=PATIENCE / 2)
"""No redirects: what is sent is meant for the address that somebody entered, and for no other."""
LARGEST = 1024**2
"""Bytes of a message. Beyond that the result is left out, and can be asked for."""
PAGE = 1000


class Reply(Struct, frozen=True):
    status: int | None = None
    error: str = ""
    """A stable code, empty if the message was taken."""
    wait: float = 0.0
    """Seconds that the receiver asks us to wait."""

    @property
    def is_gone(self) -> bool:
        return self.status == 410


def outbound_for(settings: Settings) -> Outbound:
    return Outbound(Allow.of(settings.outbound_allow), POLICY)


async def post(outbound: Outbound, endpoint: Endpoint, secret_key: str, *, id: str, at: float, body: bytes) -> Reply:
    """Send it. Whatever may go wrong on the way is a reply, too."""
    headers = {"Content-Type": "application/json", **signed(secret_of(secret_key, endpoint.id), id, at, body)}
    try:
        with asked_by(endpoint.tenant):
            async with outbound.call("POST", endpoint.url, headers=headers, body=body) as answer:
                if answer.is_good:  # its body is nothing to us
                    return Reply(answer.status)
                return Reply(answer.status, f"HTTP_{answer.status}", _asked_wait(answer.headers, at))
    except OutboundFailed as error:
        return Reply(error=error.code)


async def told(store: Store, delivery: Delivery) -> bytes | None:
    """What a delivery says: how the run has ended, and the job as it is now. None if the job is gone."""
    if delivery.body:
        return delivery.body.encode()
    [job] = await store.get([delivery.job_id])
    if job is None or not (found := await looked_up(store, [job])):
        return None
    [document] = found
    type = f"job.{await _end_of(store, job, delivery.run)}"
    body = json.encode({"type": type, "timestamp": iso(delivery.at), "data": document})
    if len(body) <= LARGEST:
        return body
    return json.encode(
        {"type": type, "timestamp": iso(delivery.at), "data": {**document, "result": None}, "omitted": ["result"]}
    )


def trial(endpoint: Endpoint, at: float) -> bytes:
    return json.encode({"type": "webhook.test", "timestamp": iso(at), "data": {"webhook_id": endpoint.id}})


async def _end_of(store: Store, job: Job, run: int) -> str:
    """How the run has ended. Of one before the job's last, the events tell."""
    if job.run == run and job.status.is_terminal:
        return job.status.value
    after = 0
    while events := await store.events(job.id, after=after, limit=PAGE):
        for event in events:
            if event.type in TERMINAL and event.data.get("run") == run:
                return event.type
        after = events[-1].n
    raise AssertionError(f"{job.id} has a message about run {run}, which has not ended")


def _asked_wait(headers: Mapping[str, Any], now: float) -> float:
    """Retry-After: seconds, or a date. What is neither asks for nothing."""
    said = headers.get("retry-after", "").strip()
    if said.isascii() and said.isdigit():
        return float(said[:9])
    try:
        return max(0.0, parsedate_to_datetime(said).timestamp() - now)
    except (ValueError, OverflowError):
        return 0.0
