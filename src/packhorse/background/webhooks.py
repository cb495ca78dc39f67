"""Sends webhook messages from the outbox: builds, signs and posts them, until they are accepted or given up."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import random
import time
from base64 import b64decode, b64encode
from collections.abc import Callable, Mapping, Sequence
from contextlib import aclosing, suppress
from email.utils import parsedate_to_datetime
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from packhorse.core import json
from packhorse.core.models import Job
from packhorse.core.plan import TERMINAL
from packhorse.core.webhooks import ENDPOINT_FORGIVE, ENDPOINT_GIVE_UP, NO_JOB, Delivery, webhook_delay
from packhorse.crashpoints import reach
from packhorse.errors import CorruptRecord, NoSecretKey, OutboundFailed, SchemaTooNew, StoreError
from packhorse.log import log
from packhorse.outbound.addresses import Allow
from packhorse.outbound.calls import Answer, Outbound, Policy
from packhorse.outbound.dns import lookup_with
from packhorse.schemas.jobs import jobs_to_json
from packhorse.schemas.progress import iso
from packhorse.settings import Settings, secret_keys
from packhorse.store.base import Store
from packhorse.store.collections.webhooks import (
    Attempt,
    Endpoint,
    WebhookTargets,
    end_endpoint,
    record_attempt,
    settle_delivery,
    take_deliveries,
)
from packhorse.store.collections.workers import get_bookmark, put_bookmark

PATIENCE = 15.0
"""Seconds for one request to a receiver, from the connection to the end of the answer."""
POLICY = Policy(redirects=0, total=PATIENCE, silence=PATIENCE, connect=PATIENCE / 2)
"""No redirects: a message goes only to the address that the user entered."""
ANSWER = 1000
"""Bytes of an answer that are kept for people."""
ANSWER_PATIENCE = 2.0
"""Seconds for them."""
LARGEST = 1024**2
"""Bytes of a message. A larger one is sent without the result, which the receiver can fetch."""
PAGE = 1000
PREFIX = "whsec_"
AT_ONCE = 8
"""Concurrent messages to one endpoint."""
LINE = 64
"""Messages that wait behind those. Further ones are postponed, to make room for other endpoints."""
MOST = 512
"""Messages being sent and waiting, of all endpoints."""
BATCH = 100
HOLD = 4 * PATIENCE
"""Seconds that this worker holds a message. One that waited for half of it is postponed: sending may take the rest."""
SHORTEST, LONGEST = 0.5, 30.0
"""Bounds of the pause, in seconds, of a message that found the line full: about as long as the line takes."""
POLL = 0.25
IDLE = 2.0
"""Seconds between checks while there is no webhook."""
UNSIGNED = 60.0
"""Seconds between log messages that nothing can be signed."""
LAST_WORDS = 2.0
"""Seconds for messages that are being sent when the worker stops."""


class WebhookSender:
    """Each receiver has a line of its own, so that a slow one does not delay the others."""

    def __init__(
        self, store: Store, outbound: Outbound, secret_key: str, luck: Callable[[], float] = random.random
    ) -> None:
        self._store = store
        self._outbound = outbound
        self._secret_key = secret_key
        self._luck = luck
        self._targets = WebhookTargets(store)
        self._lines: dict[str, _Line] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def tick(self) -> float:
        targets = await self._targets.all()
        if not targets:
            return IDLE
        if not self._secret_key:
            log.webhooks_unsigned(len(targets))
            return UNSIGNED
        wanted = min(BATCH, MOST - len(self._tasks))
        if wanted <= 0:
            return POLL
        taken = await take_deliveries(self._store, wanted, HOLD)
        known = {each.id: each for each in targets}
        if any(each.endpoint not in known for each in taken):
            known = {each.id: each for each in await self._targets.refresh()}
        for delivery in taken:
            task = asyncio.create_task(self._carry(delivery, known.get(delivery.endpoint)))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        return 0.0 if len(taken) == wanted else POLL

    async def wait_idle(self) -> None:
        """Return when no message is being sent."""
        while self._tasks:
            await asyncio.wait(self._tasks)

    async def close(self) -> None:
        """Another worker sends again what does not arrive in time."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=LAST_WORDS)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _carry(self, delivery: Delivery, endpoint: Endpoint | None) -> None:
        try:
            if endpoint is None:  # it was switched off or deleted: drop its messages
                await settle_delivery(self._store, delivery, next_at=None)
            else:
                await self._send_in_turn(delivery, endpoint)
        except Exception as error:  # broad: one message must not fail the others; it is due again by itself
            log.background_failed(f"webhook {delivery.endpoint}", error)

    async def _send_in_turn(self, delivery: Delivery, endpoint: Endpoint) -> None:
        line = self._lines.setdefault(endpoint.id, _Line())
        until = time.monotonic() + HOLD - 2 * PATIENCE
        if line.length >= AT_ONCE + LINE:
            await self._put_off(delivery, line)
            return
        line.length += 1
        try:
            async with line.turn:
                began = time.monotonic()
                if began > until:
                    await self._put_off(delivery, line)
                    return
                await self._send(delivery, endpoint)
                line.took = time.monotonic() - began
        finally:
            line.length -= 1

    async def _put_off(self, delivery: Delivery, line: _Line) -> None:
        """It was not sent, so this does not count as an attempt."""
        wait = min(LONGEST, max(SHORTEST, line.length * line.took / AT_ONCE))
        next_at = self._store.now() + wait * (1 + self._luck())
        await settle_delivery(self._store, delivery, next_at=next_at, error=delivery.error)

    async def _send(self, delivery: Delivery, endpoint: Endpoint) -> None:
        try:
            body = await build_message(self._store, delivery)
        except (CorruptRecord, SchemaTooNew):
            await self._later(delivery, Reply(error="UNREADABLE"))
            return
        if body is None:
            await settle_delivery(self._store, delivery, next_at=None)
            return
        began = self._store.now()
        reply = await post(self._outbound, endpoint, self._secret_key, id=delivery.id, at=began, body=body)
        reach("webhook.sent")
        await self._record(delivery, reply, began, body)
        if reply.status == 410:
            await self._end(endpoint, "It answered 410 (gone).")
        elif await self._fails_for_good(endpoint, reply):
            await self._end(endpoint, f"It has taken no message for 5 days; the last error was {reply.error}.")
        elif reply.error:
            await self._later(delivery, reply)
        else:
            await settle_delivery(self._store, delivery, next_at=None)

    async def _record(self, delivery: Delivery, reply: Reply, began: float, body: bytes) -> None:
        """For people: the delivery does not depend on it."""
        job_id = "" if delivery.job_id == NO_JOB else delivery.job_id
        attempt = attempt_of(delivery.id, delivery.endpoint, reply, began, self._store.now(), body)
        try:
            await record_attempt(self._store, replace(attempt, job_id=job_id, run=delivery.run))
        except StoreError as error:
            log.background_failed(f"webhook {delivery.endpoint}", error)

    async def _later(self, delivery: Delivery, reply: Reply) -> None:
        now = self._store.now()
        pause = webhook_delay(now - delivery.at, delivery.attempts, self._luck(), reply.wait)
        if pause is None:
            log.webhook_given_up(delivery.id, reply.error)
        next_at = None if pause is None else now + pause
        await settle_delivery(self._store, delivery, next_at=next_at, error=reply.error)

    async def _end(self, endpoint: Endpoint, reason: str) -> None:
        await end_endpoint(self._store, endpoint.id, self._store.now(), reason)
        self._lines.pop(endpoint.id, None)
        log.webhook_ended(endpoint.id, reason)

    async def _fails_for_good(self, endpoint: Endpoint, reply: Reply) -> bool:
        """Whether it has failed for days without a single success."""
        name, now = f"webhook:{endpoint.id}", self._store.now()
        failing = await get_bookmark(self._store, name)
        if not reply.error:
            if failing:
                await put_bookmark(self._store, name, "")
            return False
        since, last = map(float, failing.split(" ")) if failing else (now, now)
        if now - last > ENDPOINT_FORGIVE:
            since = now
        await put_bookmark(self._store, name, f"{since} {now}")
        return now - since >= ENDPOINT_GIVE_UP


class _Line:
    """The messages to one endpoint."""

    def __init__(self) -> None:
        self.turn = asyncio.Semaphore(AT_ONCE)
        self.length = 0
        self.took = 0.0
        """Seconds of the last one."""


class Reply(Struct, frozen=True):
    status: int | None = None
    error: str = ""
    """A stable code; empty if the message was accepted."""
    wait: float = 0.0
    """Seconds that the receiver asks us to wait."""
    answer: str = ""
    """The beginning of its body."""


def attempt_of(id: str, endpoint: str, reply: Reply, began: float, ended: float, body: bytes) -> Attempt:
    took = round(max(0.0, ended - began), 3)
    return Attempt(id, endpoint, began, took, len(body), status=reply.status, error=reply.error, answer=reply.answer)


def outbound_for(settings: Settings) -> Outbound:
    return Outbound(Allow.of(settings.outbound_allow), POLICY)


async def post(outbound: Outbound, endpoint: Endpoint, secret_key: str, *, id: str, at: float, body: bytes) -> Reply:
    """Send it. A failure on the way is a reply, too."""
    secrets = [secret_of(key, endpoint.id) for key in secret_keys(secret_key)]
    if not secrets:
        raise NoSecretKey
    headers = {"Content-Type": "application/json", **sign(secrets[0], id, at, body, replaced=secrets[1:])}
    try:
        with lookup_with(endpoint.tenant):
            async with outbound.call("POST", endpoint.url, headers=headers, body=body) as answer:
                said = await _beginning(answer)
                if answer.is_good:
                    return Reply(answer.status, answer=said)
                return Reply(answer.status, f"HTTP_{answer.status}", _retry_after(answer.headers, at), said)
    except OutboundFailed as error:
        return Reply(error=error.code)


async def _beginning(answer: Answer) -> str:
    """Of the body, for people. The status says whether it was accepted, so nothing here fails."""
    found = b""
    with suppress(OutboundFailed, TimeoutError):
        async with asyncio.timeout(ANSWER_PATIENCE):
            async with aclosing(answer.pieces()) as pieces:
                async for piece in pieces:
                    found += piece
                    if len(found) >= ANSWER:
                        break
    return found[:ANSWER].decode(errors="replace").replace("\0", "\ufffd")


async def build_message(store: Store, delivery: Delivery) -> bytes | None:
    """How the run ended, and the job as it is now. None if the job no longer exists."""
    if delivery.body:
        return delivery.body.encode()
    [job] = await store.get([delivery.job_id])
    if job is None or not (found := await jobs_to_json(store, [job])):
        return None
    [document] = found
    end = await _end_of(store, job, delivery.run)
    message = {"type": f"job.{end}", "timestamp": iso(delivery.at), "data": document}
    body = json.encode(message)
    if len(body) > LARGEST:
        body = json.encode(message | {"data": {**document, "result": None}, "omitted": ["result"]})
    return body


def trial_message(endpoint: Endpoint, at: float) -> bytes:
    return json.encode({"type": "webhook.test", "timestamp": iso(at), "data": {"webhook_id": endpoint.id}})


async def _end_of(store: Store, job: Job, run: int) -> str:
    """The final status of the run; for earlier runs of the job, from its events."""
    if job.run == run and job.status.is_terminal:
        return job.status.value
    after = 0
    while events := await store.events(job.id, after=after, limit=PAGE):
        for event in events:
            if event.type in TERMINAL and event.data.get("run") == run:
                return event.type
        after = events[-1].n
    raise AssertionError(f"{job.id} has a message about run {run}, which has not ended")


def _retry_after(headers: Mapping[str, Any], now: float) -> float:
    """Seconds from Retry-After, which is a number or a date; 0 if it is neither."""
    said = headers.get("retry-after", "").strip()
    if said.isascii() and said.isdigit():
        return float(said[:9])
    try:
        return max(0.0, parsedate_to_datetime(said).timestamp() - now)
    except (ValueError, OverflowError):
        return 0.0


def secret_of(secret_key: str, endpoint_id: str) -> str:
    """The signing secret of an endpoint, by the key in use: derived each time, never stored."""
    keys = secret_keys(secret_key)
    if not keys:
        raise NoSecretKey
    return PREFIX + b64encode(_hmac(keys[0].encode(), f"webhook:{endpoint_id}".encode())).decode()


def sign(secret: str, message_id: str, at: float, body: bytes, *, replaced: Sequence[str] = ()) -> dict[str, str]:
    """Headers that prove the sender and the time, and identify the message (https://www.standardwebhooks.com).

    ``replaced``: older secrets. There is a signature for each, so that receivers can change to the new one in turn.
    """
    timestamp = str(int(at))
    signed = f"{message_id}.{timestamp}.".encode() + body
    signatures = [_hmac(b64decode(each.removeprefix(PREFIX)), signed) for each in (secret, *replaced)]
    return {
        "webhook-id": message_id,
        "webhook-timestamp": timestamp,
        "webhook-signature": " ".join(f"v1,{b64encode(each).decode()}" for each in signatures),
    }


def _hmac(key: bytes, data: bytes) -> bytes:
    return hmac.new(key, data, hashlib.sha256).digest()
