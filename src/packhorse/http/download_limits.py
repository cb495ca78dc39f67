"""Downloads: admitted within limits, cut after their time limit, counted by the bytes sent, and audited.

A download is charged in one step before its first byte, so that concurrent requests cannot exceed the limits; what it
did not use is refunded after its last byte. A process that dies refunds nothing: its permits end with their window,
and its bytes count as sent.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from litestar.types import Receive, Scope, Send

from packhorse.auth.access import Caller
from packhorse.auth.audit_log import Auditor
from packhorse.auth.rate_limits import Limit, limit_headers, refusal
from packhorse.errors import (
    BlobError,
    BlobUnavailable,
    NotFinished,
    NotFound,
    QuotaExceeded,
    RateExceeded,
    StoreError,
    TooManyDownloads,
)
from packhorse.http.download import Content, Part, download_headers
from packhorse.http.stream import Ending, Streamed
from packhorse.log import log
from packhorse.settings import Settings
from packhorse.store.base import Charge, Spent, Store

NOBODY = "local"
"""The client that downloads are counted for if the server needs no key."""
DAY = 86_400.0
CLOSING = 1.0
"""Seconds in which a download that was cut can return its permit before the permit expires."""
REASONS = {TooManyDownloads: "concurrency", RateExceeded: "rate", QuotaExceeded: "quota"}
LONGEST = 200
"""Characters of a name in the audit log: a client may send any name."""


class Downloads:
    def __init__(self, settings: Settings, store: Store, audit: Auditor) -> None:
        self._store = store
        self._audit = audit
        self.longest = settings.download_timeout or None
        held = (self.longest or DAY) + CLOSING
        every = (
            Limit("downloads", settings.downloads_at_once, held, "concurrent-requests", TooManyDownloads),
            Limit("downloads-10s", settings.downloads_per_10s, 10.0, "requests", RateExceeded),
            Limit("downloads-minute", settings.downloads_per_minute, 60.0, "requests", RateExceeded),
            Limit("bytes-hour", settings.download_bytes_per_hour, 3600.0, "content-bytes", QuotaExceeded),
            Limit("bytes-day", settings.download_bytes_per_day, DAY, "content-bytes", QuotaExceeded),
        )
        self.limits = [each for each in every if each.most]

    @contextmanager
    def audit_missing(self, caller: Caller, job_id: str, name: str) -> Iterator[None]:
        """Audit a download that is missing or not ready."""
        try:
            yield
        except (NotFound, NotFinished, BlobError) as error:
            self.tell("unavailable", caller, job_id, name, why=error.type())
            raise

    async def admit(self, caller: Caller, size: int) -> Admitted:
        """Raises `TooManyDownloads`, `RateExceeded` or `QuotaExceeded`, and then charges nothing."""
        charges = [
            each.charge(caller.client or NOBODY, size if each.unit == "content-bytes" else 1) for each in self.limits
        ]
        spent = await self._spend(charges)
        if (refused := refusal(self.limits, spent)) is not None:
            raise refused
        return Admitted(spent, charges, limit_headers(self.limits, spent))

    async def settle(self, caller: Caller, admitted: Admitted, unsent: int) -> None:
        """Refund the permit and the unsent bytes. The start of the download stays counted."""
        back = {"concurrent-requests": 1, "requests": 0, "content-bytes": unsent}
        charges = [
            charge._replace(amount=back[each.unit])
            for each, charge in zip(self.limits, admitted.charges, strict=True)
            if back[each.unit]
        ]
        try:
            if charges:
                await self._store.refund(charges, admitted.spent.at)
        except StoreError as error:  # the response was sent; the charge expires with its window
            log.refund_lost(caller.client or NOBODY, error)

    def tell(self, event: str, caller: Caller, job_id: str, name: str, **details: Any) -> None:
        self._audit.tell(f"download.{event}", caller, job_id=job_id[:LONGEST], name=name[:LONGEST], **details)

    async def _spend(self, charges: Sequence[Charge]) -> Spent:
        """If the request is cancelled meanwhile, refunds the charge."""
        if not charges:
            return Spent(at=0.0, refused=None, left=(), wait=0.0)
        spending = asyncio.ensure_future(self._store.spend(charges))
        try:
            return await asyncio.shield(spending)
        except asyncio.CancelledError:
            spent = await spending
            if spent.refused is None:
                await self._store.refund(charges, spent.at)
            raise


class Admitted:
    def __init__(self, spent: Spent, charges: Sequence[Charge], headers: dict[str, str]) -> None:
        self.spent = spent
        self.charges = charges
        self.headers = headers


class Download:
    """One download, as an ASGI application."""

    def __init__(
        self,
        downloads: Downloads,
        caller: Caller,
        job_id: str,
        content: Content,
        part: Part | None,
        ended: asyncio.Event | None = None,
    ) -> None:
        self._downloads = downloads
        self._caller = caller
        self._job_id = job_id
        self._content = content
        self._part = part
        self._ended = ended
        self._size = content.size if part is None else part.length
        self._taken = 0
        self._began = 0.0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            admitted = await self._downloads.admit(self._caller, self._size)
        except tuple(REASONS) as error:
            self._tell("refused", why=REASONS[type(error)], policy=error.facts["policy"])
            raise
        with self._downloads.audit_missing(self._caller, self._job_id, self._content.label):
            await self._send(scope, receive, send, admitted)

    async def _send(self, scope: Scope, receive: Receive, send: Send, admitted: Admitted) -> None:
        async def counting(message: Any) -> None:
            if message["type"] == "http.response.start":
                self._begin()
            await send(message)
            self._taken += len(message.get("body", b""))  # after `send`: an unsent piece does not count

        streamed = Streamed(
            self._content.pieces(self._part),
            {**download_headers(self._content, self._part), **admitted.headers},
            status=200 if self._part is None else 206,
            ended=self._ended,
            limit=self._downloads.longest,
        )
        ending = Ending.FAILED
        try:
            ending = await streamed.send_to(scope, receive, counting)
            if ending is not Ending.FAILED and self._taken == self._size:
                ending = Ending.COMPLETED  # a reader with every byte may leave before the end is marked
        finally:
            await self._downloads.settle(self._caller, admitted, self._size - self._taken)
            if streamed.is_started:
                self._tell(ending, bytes=self._taken, seconds=round(time.monotonic() - self._began, 3))
        if ending is Ending.TIMED_OUT and not streamed.is_started:
            raise BlobUnavailable(reason="it took too long to begin")

    def _begin(self) -> None:
        self._began = time.monotonic()
        self._tell("started", start=self._part.start if self._part else 0, bytes=self._size)

    def _tell(self, event: str, **details: Any) -> None:
        self._downloads.tell(event, self._caller, self._job_id, self._content.label, **details)
