"""Uploads an object to a bucket, in one request if it is small, else in parts; and downloads one.

**Never overwritten.** The request that names the object has `If-None-Match: *`. For objects up to PART bytes every
server we know decides that atomically. For larger ones S3 does; SeaweedFS checks first, so two uploads that complete in
the same millisecond both succeed and the later one stays. Our keys contain a random job id or attempt token, so nobody
puts the same key twice by accident.

**Lost answers.** The object carries a token of its put. A repeated request that finds the key taken compares tokens.

**Downloads** go through obstore. An interrupted one resumes where it stopped.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncGenerator, Awaitable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from datetime import timedelta
from random import uniform
from typing import TYPE_CHECKING, TypeVar
from xml.sax.saxutils import escape

import obstore
from obstore.exceptions import BaseError, PermissionDeniedError, PreconditionError, UnauthenticatedError
from obstore.store import S3Store

from packhorse import crashpoints
from packhorse.blobs.base import CHUNK, Incoming
from packhorse.blobs.s3.http import MAX_PAUSE, PAUSE, Address, Answer, Keys, Patience, Signed
from packhorse.errors import BlobExists, BlobNotFound, BlobUnavailable

if TYPE_CHECKING:
    from obstore import GetOptions, ObjectMeta
    from obstore.store import ObjectStore, S3Config

T = TypeVar("T")

PART = 5 * 1024 * 1024
"""Bytes of a part, the least that S3 takes. A put holds two of them: one on its way, one being filled."""
MAX_PARTS = 10_000
COPY_PART = 64 * 1024 * 1024
"""Bytes that a server copies per request: it may be silent meanwhile, and a long silence counts as an outage."""

TOKEN = "x-amz-meta-packhorse-put"  # noqa: S105 (the name of a header)
TAKEN = frozenset({"PreconditionFailed", "412"})
GONE = frozenset({"NoSuchUpload", "404"})
MISSING = frozenset({"NoSuchKey", "404"})
FINAL = (PermissionDeniedError, UnauthenticatedError, PreconditionError)  # errors that another try does not avoid


class Upload(Incoming):
    """`take` and `sum` are quick; all else blocks, and runs one after the other."""

    def __init__(self, signed: Signed, key: str, limit: int | None) -> None:
        most = PART * MAX_PARTS
        super().__init__(key, most if limit is None else min(limit, most), PART)
        self._signed = signed
        self._token = secrets.token_hex(16)
        self._id: str | None = None
        self._tags: list[str] = []
        self._is_asked = False

    def send(self, pieces: Sequence[bytes]) -> None:
        self._count(pieces)
        self._tags.append(self._signed.ask("PUT", self.key, query=self._part(), body=pieces).headers["etag"])

    def copy(self, source: str) -> None:
        """Let the server copy another object, at once or part by part, and name it."""
        head = self._signed.ask("HEAD", source, expect=MISSING)
        size = int(head.headers.get("content-length", 0))
        if head.code:
            raise BlobNotFound(key=source)
        if size <= COPY_PART:
            kept = {TOKEN: self._token, "x-amz-metadata-directive": "REPLACE", "if-none-match": "*"}
            self._is_asked = True
            return self._conclude(self._copy_part(source, None, kept))
        for start in range(0, size, COPY_PART):
            part = {"x-amz-copy-source-range": f"bytes={start}-{min(start + COPY_PART, size) - 1}"}
            self._tags.append(self._copy_part(source, self._part(), part).document().findtext("ETag") or "")
        return self.publish([])

    def _copy_part(self, source: str, query: Mapping[str, str] | None, headers: Mapping[str, str]) -> Answer:
        asked = {"x-amz-copy-source": self._signed.copy_source(source), **headers}
        answer = self._signed.ask("PUT", self.key, query=query, headers=asked, expect=TAKEN | MISSING)
        if answer.code in MISSING:
            raise BlobNotFound(key=source)
        return answer

    def _part(self) -> dict[str, str]:
        """The query of the next part."""
        if self._id is None:
            answer = self._signed.ask("POST", self.key, query={"uploads": ""}, headers={TOKEN: self._token})
            self._id = answer.document().findtext("UploadId")
            assert self._id
        return {"partNumber": str(len(self._tags) + 1), "uploadId": self._id}

    def publish(self, pieces: Sequence[bytes]) -> None:
        """Send the rest and give the object its name."""
        if self._id is not None and pieces:
            self.send(pieces)
        crashpoints.reach("blob.put.written")
        self._is_asked = True
        if self._id is None:
            self._count(pieces)
            headers = {"if-none-match": "*", TOKEN: self._token}
            digest = self._sha256.hexdigest()  # this request has the whole object
            answer = self._signed.ask("PUT", self.key, headers=headers, body=pieces, digest=digest, expect=TAKEN)
        else:
            tags = [f"<PartNumber>{n}</PartNumber><ETag>{escape(tag)}</ETag>" for n, tag in enumerate(self._tags, 1)]
            parts = "".join(f"<Part>{each}</Part>" for each in tags)
            answer = self._signed.ask(
                "POST",
                self.key,
                query={"uploadId": self._id},
                headers={"if-none-match": "*"},
                body=[f"<CompleteMultipartUpload>{parts}</CompleteMultipartUpload>".encode()],
                expect=TAKEN | GONE,
            )
        self._conclude(answer)

    def _conclude(self, answer: Answer) -> None:
        if answer.code and not self._is_there():
            raise BlobExists(key=self.key) if answer.code in TAKEN else BlobUnavailable(reason=answer.code)
        self._id = None

    def discard(self, sending: Future[None] | None) -> None:
        """Remove what was sent; the sweep finds what cannot be removed now."""
        if sending is not None:
            sending.exception()  # a part that arrives after the end would stay for ever
        with suppress(BlobUnavailable):
            if self._id is not None:
                self._signed.ask("DELETE", self.key, query={"uploadId": self._id}, expect=GONE)
            if self._is_asked and self._is_there():  # no caller refers to it
                self._signed.ask("DELETE", self.key)

    def _is_there(self) -> bool:
        return self._signed.ask("HEAD", self.key, expect=GONE).headers.get(TOKEN) == self._token

    def _count(self, pieces: Sequence[bytes]) -> None:
        for piece in pieces:
            self._sha256.update(piece)


def s3_store(address: Address, keys: Keys, patience: Patience) -> S3Store:
    config: S3Config = {
        "endpoint": address.host,
        "region": address.region,
        "virtual_hosted_style_request": address.root == "/",
        "access_key_id": keys.access,
        "secret_access_key": keys.secret,
    }
    if keys.token:
        config["session_token"] = keys.token
    return S3Store(
        address.bucket,
        prefix=address.prefix.rstrip("/") or None,
        config=config,
        # Its timeout is for the whole download, however slow the reader is. Ours is `_wait`.
        client_options={
            "allow_http": True,
            "timeout": timedelta(days=1),
            "connect_timeout": timedelta(seconds=patience.silence),
        },
        retry_config={"max_retries": 0, "retry_timeout": timedelta(seconds=patience.seconds), "backoff": {}},
    )


class Downloads:
    def __init__(self, store: ObjectStore, patience: Patience) -> None:
        self._patience = patience
        self._store = store

    async def head(self, key: str) -> ObjectMeta:
        tries = _Tries(key, self._patience)
        while True:
            try:
                return await self._wait(obstore.head_async(self._store, key))
            except (BaseError, OSError) as error:
                await tries.next(error)

    async def pieces(self, key: str, start: int, length: int | None) -> AsyncGenerator[bytes]:
        """The first answer fixes version and size of the object; all that follow must match it."""
        options: GetOptions = {}
        end: int | None = None
        tries = _Tries(key, self._patience)
        if start or length is not None:
            meta = await self.head(key)
            end = meta["size"] if length is None else min(meta["size"], start + length)
            options["if_match"] = meta["e_tag"]
        while end is None or start < end:
            try:
                if end is not None:
                    options["range"] = (start, end)
                found = await self._wait(obstore.get_async(self._store, key, options=options))
                options["if_match"] = found.meta["e_tag"]
                end = found.meta["size"] if end is None else end
                stream = aiter(found.stream(CHUNK))
                while (piece := await self._wait(anext(stream, None))) is not None:
                    start += len(piece)
                    for at in range(0, len(piece), CHUNK):
                        yield bytes(memoryview(piece)[at : at + CHUNK])
                    tries = _Tries(key, self._patience)
                if start != end:
                    raise BaseError("it broke off")
            except (BaseError, OSError) as error:
                await tries.next(error)

    async def _wait(self, answer: Awaitable[T]) -> T:
        async with asyncio.timeout(self._patience.silence):
            return await answer


class _Tries:
    """Counts from the last byte received: a download that makes progress is no outage."""

    def __init__(self, key: str, patience: Patience) -> None:
        self._key = key
        self._end = time.monotonic() + patience.seconds
        self._pause = PAUSE

    async def next(self, error: Exception) -> None:
        """Wait for the next try, or raise if there is none."""
        reason = str(error).partition("\n")[0] or type(error).__name__
        if isinstance(error, FileNotFoundError):
            raise BlobNotFound(key=self._key) from error
        if isinstance(error, FINAL) or time.monotonic() > self._end:
            raise BlobUnavailable(reason=reason) from error
        await asyncio.sleep(self._pause * uniform(0.5, 1))  # noqa: S311 (not a secret)
        self._pause = min(2 * self._pause, MAX_PAUSE)
