"""Uploads one object to a bucket: in one request if it is small, else in parts.

**Never overwritten.** The request that gives the object its name says `If-None-Match: *`. For objects up to PART bytes
every server we know decides that atomically. For larger ones S3 does; SeaweedFS only looks, so that of two uploads that
are completed in the same millisecond both succeed and the later stays. Our keys carry a random job id or attempt token,
so this takes somebody who puts the same key twice on purpose.

**An answer that was lost.** The object carries a token of this put. A request that is repeated and finds the key taken
looks whose it is.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from hashlib import sha256
from xml.sax.saxutils import escape

from packhorse import crashpoints
from packhorse.blobs.base import Sum
from packhorse.blobs.s3.http import Answer, Signed
from packhorse.errors import BlobExists, BlobNotFound, BlobUnavailable, TooLarge

PART = 5 * 1024 * 1024
"""Bytes of a part, the least that S3 takes. A put holds two of them: one on its way, one being filled."""
MAX_PARTS = 10_000
COPY_PART = 64 * 1024 * 1024
"""Bytes that a server copies per request: it may be silent meanwhile, and who is silent for long is given up."""

TOKEN = "x-amz-meta-packhorse-put"  # noqa: S105 (the name of a header)
TAKEN = frozenset({"PreconditionFailed", "412"})
GONE = frozenset({"NoSuchUpload", "404"})
MISSING = frozenset({"NoSuchKey", "404"})


class Upload:
    """`take` and `sum` are quick; all else blocks, and runs one after the other."""

    def __init__(self, signed: Signed, key: str, limit: int | None) -> None:
        self._signed, self._key, self._limit = signed, key, limit
        self._token = secrets.token_hex(16)
        self._id: str | None = None
        self._tags: list[str] = []
        self._waiting: list[bytes] = []
        self._held = self._size = 0
        self._sha256 = sha256()
        self._is_asked = False

    def take(self, chunk: bytes) -> bool:
        """Whether enough is waiting now to be sent as a part."""
        most = PART * MAX_PARTS if self._limit is None else min(self._limit, PART * MAX_PARTS)
        self._size += len(chunk)
        if self._size > most:
            raise TooLarge(field=self._key.rpartition("/")[2], limit=most)
        self._held += len(chunk)
        self._waiting.append(chunk)
        return self._held >= PART

    def pending(self) -> list[bytes]:
        """What is waiting, for `send`."""
        pieces, self._waiting, self._held = self._waiting, [], 0
        return pieces

    def sum(self) -> Sum:
        return Sum(size=self._size, sha256=self._sha256.hexdigest())

    def send(self, pieces: Sequence[bytes]) -> None:
        self._count(pieces)
        self._tags.append(self._signed.ask("PUT", self._key, query=self._part(), body=pieces).headers["etag"])

    def copy(self, source: str) -> None:
        """Have the server make it of another object, at once or part by part, and give it its name."""
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
        answer = self._signed.ask("PUT", self._key, query=query, headers=asked, expect=TAKEN | MISSING)
        if answer.code in MISSING:
            raise BlobNotFound(key=source)
        return answer

    def _part(self) -> dict[str, str]:
        """The query of the next part."""
        if self._id is None:
            answer = self._signed.ask("POST", self._key, query={"uploads": ""}, headers={TOKEN: self._token})
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
            answer = self._signed.ask(
                "PUT", self._key, headers={"if-none-match": "*", TOKEN: self._token}, body=pieces, expect=TAKEN
            )
        else:
            answer = self._signed.ask(
                "POST",
                self._key,
                query={"uploadId": self._id},
                headers={"if-none-match": "*"},
                body=[self._parts()],
                expect=TAKEN | GONE,
            )
        self._conclude(answer)

    def _conclude(self, answer: Answer) -> None:
        if answer.code and not self._is_there():
            raise BlobExists(key=self._key) if answer.code in TAKEN else BlobUnavailable(reason=answer.code)
        self._id = None

    def discard(self, sending: Future[None] | None) -> None:
        """Whatever ended it, nothing is left behind; or what is, is for the sweep."""
        if sending is not None:
            sending.exception()  # a part that comes after the end would lie there for ever
        with suppress(BlobUnavailable):
            if self._id is not None:
                self._signed.ask("DELETE", self._key, query={"uploadId": self._id}, expect=GONE)
            if self._is_asked and self._is_there():  # nobody has been told of it
                self._signed.ask("DELETE", self._key)

    def _is_there(self) -> bool:
        return self._signed.ask("HEAD", self._key, expect=GONE).headers.get(TOKEN) == self._token

    def _count(self, pieces: Sequence[bytes]) -> None:
        for piece in pieces:
            self._sha256.update(piece)

    def _parts(self) -> bytes:
        parts = [
            f"<Part><PartNumber>{number}</PartNumber><ETag>{escape(tag)}</ETag></Part>"
            for number, tag in enumerate(self._tags, 1)
        ]
        return f"<CompleteMultipartUpload>{''.join(parts)}</CompleteMultipartUpload>".encode()
