"""Downloads: a file or a part of it, a value, several files as a zip archive; their headers and limits.

A download is charged in one step before its first byte, so that concurrent requests cannot exceed the limits; what it
did not use is refunded after its last byte. A process that dies refunds nothing: its permits end with their window,
and its bytes count as sent. A download is cut after its time limit, and audited.
"""

from __future__ import annotations

import asyncio
import io
import re
import time
import zipfile
from base64 import b64encode
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from hashlib import sha256
from typing import IO, Any, NamedTuple, cast

from litestar.types import Receive, Scope, Send
from msgspec import Struct

from packhorse import errors
from packhorse.auth.access import Caller
from packhorse.auth.audit_log import Auditor
from packhorse.auth.rate_limits import Limit, limit_headers, refusal, token_share
from packhorse.blobs.base import Blobs
from packhorse.core import json
from packhorse.core.models import Artifact, Job, Stored
from packhorse.core.plan import Plan
from packhorse.define.files import disposition, sanitize_name
from packhorse.http.stream import Ending, Streamed
from packhorse.log import log
from packhorse.settings import Settings
from packhorse.store.base import Store
from packhorse.store.counters import Charge, Spent

SAFE_TYPES = frozenset(
    {
        *("application/json", "application/zip", "text/csv", "text/plain", "video/mp4", "video/webm"),
        *("audio/flac", "audio/mpeg", "audio/ogg", "audio/wav", "audio/x-wav"),
        *("image/gif", "image/jpeg", "image/png", "image/webp"),
    }
)
"""Media types that a browser may get: none of them can carry a script."""

RANGE = re.compile(r"bytes=[ \t]*(?P<first>[0-9]{1,18})?-(?P<last>[0-9]{1,18})?[ \t]*", re.ASCII | re.IGNORECASE)
TAGS = re.compile(r'(?:W/)?("[^"]*")')

LOCAL, EXTRA, SIZES, CENTRAL, END, END64 = 30, 20, 24, 46, 22, 76
"""Bytes in a zip archive, without names: the header before each file, with the field for large sizes; after it; about
it in the directory at the end; the end itself, and what precedes that of a large archive."""

QUOTED = str.maketrans({"%": "%25", "/": "%2F"})
NOBODY = "local"
"""The client that downloads are counted for if the server needs no key."""
DAY = 86_400.0
CLOSING = 1.0
"""Seconds in which a download that was cut can return its permit before the permit expires."""
DECLARED = ("at_once", "per_10s", "per_minute", "bytes_per_hour", "bytes_per_day")
"""The limits as a pipeline declares them, in the order in which they are charged."""
REASONS = {errors.TooManyDownloads: "concurrency", errors.RateExceeded: "rate", errors.QuotaExceeded: "quota"}
LONGEST = 200
"""Characters of a name in the audit log: a client may send any name."""


class Part(NamedTuple):
    start: int
    length: int


class Content(Struct, frozen=True):
    label: str
    """Its name in the audit log."""
    size: int
    sum: str
    """SHA-256 of the bytes, in hex; of an archive, of the list of its files."""
    content_type: str
    pieces: Callable[[Part | None], AsyncGenerator[bytes]]
    filename: str | None = None
    """None: it is not a file, and a browser shows it."""
    is_file: bool = True
    """It is stored as it is sent: a part of it can be sent too, and the sum is that of its bytes."""

    @property
    def etag(self) -> str:
        return f'"{self.sum}"'


def file_content(blobs: Blobs, file: Stored, *, label: str, filename: str) -> Content:
    return Content(
        label, file.size, file.sha256, file.content_type, lambda part: _pieces(blobs, file, part), filename=filename
    )


def json_content(data: bytes) -> Content:
    async def pieces(part: Part | None) -> AsyncGenerator[bytes]:
        yield data if part is None else data[part.start : part.start + part.length]

    return Content("result", len(data), sha256(data).hexdigest(), "application/json", pieces)


def zip_content(blobs: Blobs, artifacts: Sequence[Artifact], filename: str, at: float) -> Content:
    made_of = json.encode([at, [(each.name, each.file.sha256) for each in artifacts]])
    return Content(
        "result",
        zip_length(artifacts),
        sha256(made_of).hexdigest(),
        "application/zip",
        lambda _: zip_pieces(blobs, artifacts, at),
        filename=filename,
        is_file=False,
    )


def download_headers(content: Content, part: Part | None = None) -> dict[str, str]:
    """Of the whole, or of one part."""
    found = {
        "Content-Type": content.content_type if content.content_type in SAFE_TYPES else "application/octet-stream",
        "Content-Length": str(content.size if part is None else part.length),
        "X-Content-Type-Options": "nosniff",
        "Content-Security-Policy": "sandbox; default-src 'none'",
        "Accept-Ranges": "bytes" if content.is_file else "none",
        **cache_headers(content.etag),
    }
    if content.filename is not None:
        found["Content-Disposition"] = disposition(content.filename)
    if content.is_file:
        found["Repr-Digest"] = f"sha-256=:{b64encode(bytes.fromhex(content.sum)).decode()}:"
    if part is not None:
        found["Content-Range"] = f"bytes {part.start}-{part.start + part.length - 1}/{content.size}"
    return found


def cache_headers(etag: str) -> dict[str, str]:
    """The client may keep it, and asks again before it uses it. Also sent with 304."""
    return {"ETag": etag, "Cache-Control": "private, no-cache"}


def matches_etag(if_none_match: str | None, etag: str) -> bool:
    """Whether the client has this already. The comparison is the weak one: a proxy that compresses marks tags so."""
    return if_none_match is not None and (if_none_match.strip() == "*" or etag in TAGS.findall(if_none_match))


def requested_part(range: str | None, if_range: str | None, etag: str, size: int) -> Part | None:
    """The part, None for the whole (RFC 9110, section 14). Raises RangeNotSatisfiable if the file has no such part.

    An If-Range that is not exactly this file's tag asks for the whole: half of this and half of another version is a
    file that never was. So do several parts, and a range that we do not know.
    """
    found = RANGE.fullmatch(range or "")
    if found is None or found["first"] is found["last"] is None or if_range not in (None, etag):
        return None
    if found["first"] is None:
        start, end = max(0, size - int(found["last"])), size
    else:
        start, end = int(found["first"]), size if found["last"] is None else int(found["last"]) + 1
        if found["last"] is not None and end <= start:
            return None
    end = min(end, size)
    if start >= end:
        raise errors.RangeNotSatisfiable(size=size)
    return Part(start, end - start)


async def _pieces(blobs: Blobs, file: Stored, part: Part | None = None) -> AsyncGenerator[bytes]:
    """Never a byte more or less than the record says: the length has been promised."""
    start, left = part or Part(0, file.size)
    async for piece in blobs.read(file.key) if part is None else blobs.read(file.key, start=start, length=left):
        left -= len(piece)
        if left < 0:
            break
        yield piece
    if left:
        raise errors.BlobUnavailable(reason=f"{file.key} has not the size it was stored with")


async def zip_pieces(blobs: Blobs, artifacts: Sequence[Artifact], at: float) -> AsyncGenerator[bytes]:
    """Built while it is sent. Stored, not compressed: results mostly are already."""
    out = _Out()
    with zipfile.ZipFile(cast(IO[bytes], out), "w", zipfile.ZIP_STORED) as archive:
        for artifact in artifacts:
            info = zipfile.ZipInfo(_name_in_zip(artifact.name), datetime.fromtimestamp(at, UTC).timetuple()[:6])
            info.external_attr = 0o644 << 16
            with archive.open(info, "w", force_zip64=True) as entry:
                async for piece in _pieces(blobs, artifact.file):
                    entry.write(piece)
                    yield out.take()
            yield out.take()
    yield out.take()


def zip_length(artifacts: Sequence[Artifact]) -> int:
    """Exactly the number of bytes that `zip_pieces` sends."""
    at = directory = 0
    for artifact in artifacts:
        name, size = len(_name_in_zip(artifact.name).encode()), artifact.file.size
        large = 2 * (size > zipfile.ZIP64_LIMIT) + (at > zipfile.ZIP64_LIMIT)
        directory += CENTRAL + name + (4 + 8 * large if large else 0)
        at += LOCAL + name + EXTRA + size + SIZES
    is_large = len(artifacts) > zipfile.ZIP_FILECOUNT_LIMIT or max(at, directory) > zipfile.ZIP64_LIMIT
    return at + directory + (END64 if is_large else 0) + END


def _name_in_zip(name: str) -> str:
    """Sanitized: no unzip program writes outside its folder."""
    return "/".join(sanitize_name(part) for part in name.split("/"))


class _Out(io.RawIOBase):
    """What the archive writes, until it is taken. It is not seekable, so sizes come after each file."""

    def __init__(self) -> None:
        self._pieces: list[bytes] = []

    def write(self, data: Any) -> int:
        self._pieces.append(bytes(data))
        return len(data)

    def take(self) -> bytes:
        data, self._pieces = b"".join(self._pieces), []
        return data


class Downloads:
    def __init__(self, settings: Settings, store: Store, audit: Auditor) -> None:
        self._store = store
        self._audit = audit
        self.longest = settings.download_timeout or None
        held = (self.longest or DAY) + CLOSING
        self._settings = settings
        self._every: tuple[Limit, ...] = (
            Limit("downloads", settings.downloads_at_once, held, "concurrent-requests", errors.TooManyDownloads),
            Limit("downloads-10s", settings.downloads_per_10s, 10.0, "requests", errors.RateExceeded, "downloads"),
            Limit(
                "downloads-minute", settings.downloads_per_minute, 60.0, "requests", errors.RateExceeded, "downloads"
            ),
            Limit("bytes-hour", settings.download_bytes_per_hour, 3600.0, "content-bytes", errors.QuotaExceeded),
            Limit("bytes-day", settings.download_bytes_per_day, DAY, "content-bytes", errors.QuotaExceeded),
        )

    def is_per_key(self, plan: Plan | None) -> bool:
        """Whether downloads are counted for the key, and not for the job's user."""
        declared = plan.downloads if plan is not None else None
        return (self._settings.downloads_per if declared is None or declared.per is None else declared.per) == "key"

    def limits_of(self, caller: Caller, plan: Plan | None, user: str, size: int = 0) -> list[tuple[Limit, str]]:
        """The limits of a download of this user's job, each with whom it is counted for.

        A token is charged twice: its share by itself, and all of it for the user, or for all tokens of its key.
        A file of ``size`` bytes that is larger than the token's share can use all of it, once per window.
        Without a plan, the limits of all pipelines that declare none.
        """
        if self.is_per_key(plan):
            whole = self._limits(plan, "this key", caller.client or NOBODY)
        else:
            whose = f"{caller.tenant.translate(QUOTED)}/{user.translate(QUOTED)}"
            whole = self._limits(plan, f"user {user}", whose)
        return [*((self._token_share(each, size), caller.token) for each, _ in whole if caller.token), *whole]

    def _limits(self, plan: Plan | None, who: str, whose: str) -> list[tuple[Limit, str]]:
        """A pipeline that declares limits has counters of its own; all others share one set."""
        limits = self._every
        if plan is not None and plan.downloads is not None:
            declared = [getattr(plan.downloads, name) for name in DECLARED]
            limits = tuple(
                each._replace(name=f"{plan.pipeline}-{each.name}", most=each.most if most is None else most)
                for each, most in zip(limits, declared, strict=True)
            )
        return [(each._replace(who=who), whose) for each in limits if each.most]

    def _token_share(self, limit: Limit, size: int) -> Limit:
        most = token_share(limit.most, self._settings)
        if limit.unit == "content-bytes":
            most = max(most, min(size, limit.most))
        return limit._replace(name=f"token-{limit.name}", most=most, who="this token")

    @contextmanager
    def audit_missing(self, caller: Caller, job_id: str, name: str) -> Iterator[None]:
        """Audit a download that is missing or not ready."""
        try:
            yield
        except (errors.NotFound, errors.NotFinished, errors.BlobError) as error:
            self.tell("unavailable", caller, job_id, name, why=error.type())
            raise

    async def admit(self, caller: Caller, job: Job, size: int) -> Admitted:
        """Raises `TooManyDownloads`, `RateExceeded` or `QuotaExceeded`, and then charges nothing."""
        limits = self.limits_of(caller, job.plan, job.user, size)
        charges = [each.charge(whose, size if each.unit == "content-bytes" else 1) for each, whose in limits]
        charged = [each for each, _ in limits]
        spent = await self._spend(charges)
        if (refused := refusal(charged, spent)) is not None:
            raise refused
        return Admitted(spent, charges, charged, limit_headers(charged, spent))

    async def settle(self, caller: Caller, admitted: Admitted, unsent: int) -> None:
        """Refund the permit and the unsent bytes. The start of the download stays counted."""
        back = {"concurrent-requests": 1, "requests": 0, "content-bytes": unsent}
        charges = [
            charge._replace(amount=back[each.unit])
            for each, charge in zip(admitted.limits, admitted.charges, strict=True)
            if back[each.unit]
        ]
        try:
            if charges:
                await self._store.refund(charges, admitted.spent.at)
        except errors.StoreError as error:  # the response was sent; the charge expires with its window
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


class Admitted(NamedTuple):
    spent: Spent
    charges: Sequence[Charge]
    limits: Sequence[Limit]
    headers: dict[str, str]


class Download:
    """One download, as an ASGI application."""

    def __init__(
        self,
        downloads: Downloads,
        caller: Caller,
        job: Job,
        content: Content,
        part: Part | None,
        ended: asyncio.Event | None = None,
    ) -> None:
        self._downloads = downloads
        self._caller = caller
        self._job = job
        self._content = content
        self._part = part
        self._ended = ended
        self._size = content.size if part is None else part.length
        self._taken = 0
        self._began = 0.0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            admitted = await self._downloads.admit(self._caller, self._job, self._size)
        except tuple(REASONS) as error:
            self._tell("refused", why=REASONS[type(error)], policy=error.facts["policy"])
            raise
        with self._downloads.audit_missing(self._caller, self._job.id, self._content.label):
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
            raise errors.BlobUnavailable(reason="it took too long to begin")

    def _begin(self) -> None:
        self._began = time.monotonic()
        self._tell("started", start=self._part.start if self._part else 0, bytes=self._size)

    def _tell(self, event: str, **details: Any) -> None:
        self._downloads.tell(event, self._caller, self._job.id, self._content.label, **details)
