"""Tells webhooks of ended jobs: sends what waits in the outbox until it is taken, or given up."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable

from packhorse.background.webhook_messages import PATIENCE, Reply, post, told
from packhorse.core import webhook_backoff
from packhorse.crashpoints import passing
from packhorse.errors import CorruptRecord, SchemaTooNew
from packhorse.jobs.webhook_targets import Listening
from packhorse.log import log
from packhorse.outbound.calls import Outbound
from packhorse.store.base import Delivery, Endpoint, Store

AT_ONCE = 8
"""Messages under way to one endpoint."""
LINE = 64
"""Messages that wait for their turn behind those; the rest is put off, to make room for other endpoints' messages."""
MOST = 512
"""Messages under way and in lines, all endpoints together."""
BATCH = 100
HOLD = 4 * PATIENCE
"""Seconds that a message is ours. One that has waited in line for half of it is put off: who is slow gets the rest."""
SHORTEST, LONGEST = 0.5, 30.0
"""Seconds for which a message is put off that found the line full: about as long as the line takes."""
POLL = 0.25
IDLE = 2.0
"""Seconds between looks while nobody wants to be told."""
UNSIGNED = 60.0
"""Seconds between complaints that nothing can be signed."""
LAST_WORDS = 2.0
"""Seconds that what is under way has to arrive when the worker stops."""


class Messenger:
    """A duty of every worker. One slow receiver has a line of its own, and holds nobody else up."""

    def __init__(
        self, store: Store, outbound: Outbound, secret_key: str, luck: Callable[[], float] = random.random
    ) -> None:
        self._store = store
        self._outbound = outbound
        self._secret_key = secret_key
        self._luck = luck
        self._listening = Listening(store)
        self._lines: dict[str, _Line] = {}
        self._carried: set[asyncio.Task[None]] = set()

    async def tick(self) -> float:
        listening = await self._listening.all()
        if not listening:
            return IDLE
        if not self._secret_key:
            log.webhooks_unsigned(len(listening))
            return UNSIGNED
        wanted = min(BATCH, MOST - len(self._carried))
        if wanted <= 0:
            return POLL
        taken = await self._store.take_deliveries(wanted, HOLD)
        known = {each.id: each for each in listening}
        if any(each.endpoint not in known for each in taken):
            known = {each.id: each for each in await self._listening.anew()}
        for delivery in taken:
            task = asyncio.create_task(self._carry(delivery, known.get(delivery.endpoint)))
            self._carried.add(task)
            task.add_done_callback(self._carried.discard)
        return 0.0 if len(taken) == wanted else POLL

    async def quiet(self) -> None:
        """Return when nothing is under way."""
        while self._carried:
            await asyncio.wait(self._carried)

    async def close(self) -> None:
        """What does not arrive in time is sent again by somebody else."""
        if self._carried:
            await asyncio.wait(self._carried, timeout=LAST_WORDS)
        for task in self._carried:
            task.cancel()
        await asyncio.gather(*self._carried, return_exceptions=True)

    async def _carry(self, delivery: Delivery, endpoint: Endpoint | None) -> None:
        try:
            if endpoint is None:  # it has ended, and its messages with it
                await self._store.settle_delivery(delivery, next_at=None)
            else:
                await self._queued(delivery, endpoint)
        except Exception as error:  # broad: one message must not take its neighbours along; it is due again by itself
            log.duty_failed(f"webhook {delivery.endpoint}", error)

    async def _queued(self, delivery: Delivery, endpoint: Endpoint) -> None:
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
        """Nothing was tried, and nothing is held against it."""
        wait = min(LONGEST, max(SHORTEST, line.length * line.took / AT_ONCE))
        next_at = self._store.now() + wait * (1 + self._luck())
        await self._store.settle_delivery(delivery, next_at=next_at, error=delivery.error)

    async def _send(self, delivery: Delivery, endpoint: Endpoint) -> None:
        try:
            body = await told(self._store, delivery)
        except (CorruptRecord, SchemaTooNew):
            await self._later(delivery, Reply(error="UNREADABLE"))
            return
        if body is None:
            await self._store.settle_delivery(delivery, next_at=None)
            return
        reply = await post(self._outbound, endpoint, self._secret_key, id=delivery.id, at=self._store.now(), body=body)
        passing("webhook.sent")
        if reply.is_gone:
            await self._end(endpoint, "It answered 410 (gone).")
        elif await self._fails_for_good(endpoint, reply):
            await self._end(endpoint, f"It has taken no message for 5 days; the last error was {reply.error}.")
        elif reply.error:
            await self._later(delivery, reply)
        else:
            await self._store.settle_delivery(delivery, next_at=None)

    async def _later(self, delivery: Delivery, reply: Reply) -> None:
        now = self._store.now()
        pause = webhook_backoff.pause(now - delivery.at, delivery.attempts, self._luck(), reply.wait)
        if pause is None:
            log.webhook_given_up(delivery.id, reply.error)
        next_at = None if pause is None else now + pause
        await self._store.settle_delivery(delivery, next_at=next_at, error=reply.error)

    async def _end(self, endpoint: Endpoint, reason: str) -> None:
        await self._store.end_endpoint(endpoint.id, self._store.now(), reason)
        self._lines.pop(endpoint.id, None)
        log.webhook_ended(endpoint.id, reason)

    async def _fails_for_good(self, endpoint: Endpoint, reply: Reply) -> bool:
        """Whether it has failed for days, without a single message taken in between."""
        name, now = f"webhook:{endpoint.id}", self._store.now()
        since, last = _failing(await self._store.bookmark(name))
        if not reply.error:
            if since is not None:
                await self._store.set_bookmark(name, "")
            return False
        if since is None or now - last > webhook_backoff.FORGOTTEN:
            since = now
        await self._store.set_bookmark(name, f"{since} {now}")
        return now - since >= webhook_backoff.FAILING


class _Line:
    """The messages to one endpoint."""

    def __init__(self) -> None:
        self.turn = asyncio.Semaphore(AT_ONCE)
        self.length = 0
        self.took = 0.0
        """Seconds of the last one."""


def _failing(bookmark: str | None) -> tuple[float | None, float]:
    """Since when, and when it was last seen to fail."""
    if not bookmark:
        return None, 0.0
    since, _, last = bookmark.partition(" ")
    return float(since), float(last)
