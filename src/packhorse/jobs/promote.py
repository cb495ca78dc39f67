"""Copies results to a place where they stay: another object store, or an HTTP file service.

Each file is copied once, whole and with its checksum, under a name that is always the same. Files are PUT to a file
service, with tokens of OAuth 2 client credentials. Of its answers only the status is reported: the rest may be secret.
"""

from __future__ import annotations

import asyncio
import time
from base64 import b64encode
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from hashlib import sha256
from random import uniform
from typing import TYPE_CHECKING, Protocol
from urllib.parse import quote, quote_plus

import msgspec
from msgspec import Struct

from packhorse.blobs.base import Blobs
from packhorse.core.models import Stored
from packhorse.errors import BlobExists, PathRefused, PromoteFailed
from packhorse.jobs.artifacts import checksum, few_at_a_time
from packhorse.log import log

if TYPE_CHECKING:
    import httpx2

TRIES = 4
PAUSE = 0.2
"""Seconds before the second try, doubling."""
UNAUTHORIZED = 401
AGAIN = frozenset({408, 425, 429, 500, 502, 503, 504})
EARLY = 0.1
"""The last part of a token's life in which it is not used, so that none expires on its way."""
SHORT_LIFE = 300.0
"""Seconds a token lives if the service does not say."""

Pieces = Callable[[], AsyncIterator[bytes]]
"""The bytes of a file, from the start each time it is called."""


class Destination(Protocol):
    """A permanent place. Its methods raise PromoteFailed and BlobUnavailable."""

    address: str
    """Without secrets, and without a slash at its end."""

    async def has(self, key: str, file: Stored, *, is_known: bool) -> bool:
        """Whether the file is there. With ``is_known`` it was put there before, so its size is proof enough."""

    async def put(self, key: str, file: Stored, pieces: Pieces) -> None:
        """Write it, and replace what is there."""

    async def close(self) -> None: ...


async def copy_files(blobs: Blobs, destination: Destination, files: Mapping[str, Stored], *, is_known: bool) -> None:
    """Copy what is not there yet; ``files`` are by their keys there. It can be interrupted and repeated."""

    async def copy(key: str) -> None:
        file = files[key]
        if not await destination.has(key, file, is_known=is_known):
            await destination.put(key, file, lambda: read_verified(blobs, file))

    await few_at_a_time(copy, files)


async def read_verified(blobs: Blobs, file: Stored) -> AsyncGenerator[bytes]:
    """The bytes of the file. Raises PromoteFailed before the last piece if the checksum differs."""
    summed, last = sha256(), b""
    async for piece in blobs.read(file.key):
        summed.update(piece)
        if last:
            yield last
        last = piece
    if summed.hexdigest() != file.sha256:
        raise PromoteFailed(reason=f"{file.key} is not what it was stored as")
    if last:
        yield last


class InBlobs:
    """Another bucket or folder, or another prefix of the same."""

    def __init__(self, blobs: Blobs, address: str) -> None:
        self._blobs = blobs
        self.address = address

    async def has(self, key: str, file: Stored, *, is_known: bool) -> bool:
        if await self._blobs.size(key) != file.size:
            return False
        return is_known or await checksum(self._blobs, key) == file.sha256

    async def put(self, key: str, file: Stored, pieces: Pieces) -> None:
        try:
            if await self._blobs.size(key) is not None:  # of an earlier run: objects are never overwritten
                await self._blobs.delete([key])
            await self._blobs.put(key, pieces())
        except BlobExists:
            if not await self.has(key, file, is_known=False):
                raise PromoteFailed(reason=f"somebody else is writing {key}") from None
        except PathRefused as error:
            raise PromoteFailed(reason=str(error)) from error

    async def close(self) -> None:
        await self._blobs.close()


class Credentials(Struct, frozen=True):
    url: str
    client_id: str
    secret: str
    scope: str = ""

    def __repr__(self) -> str:
        return "Credentials(...)"


class Granted(Struct):
    """The fields of a token answer (RFC 6749) that are used."""

    access_token: str
    expires_in: float = SHORT_LIFE


class Tokens:
    """The current token, requested when it is first needed and when it expires."""

    def __init__(self, http: httpx2.AsyncClient, credentials: Credentials) -> None:
        self._http = http
        self._credentials = credentials
        self._token = ""
        self._until = 0.0
        self._asking = asyncio.Lock()

    async def current(self) -> str:
        async with self._asking:  # one caller requests it, the others wait
            if not self._token or time.monotonic() >= self._until:
                await self._renew()
            return self._token

    def discard(self, token: str) -> None:
        """The file service refused it before it expired."""
        if token == self._token:
            self._token = ""

    async def _renew(self) -> None:
        asked = {"grant_type": "client_credentials"} | (
            {"scope": self._credentials.scope} if self._credentials.scope else {}
        )
        names = (self._credentials.client_id, self._credentials.secret)
        proof = b64encode(":".join(map(quote_plus, names)).encode()).decode()
        began = time.monotonic()
        answer = await _request(
            "the token service",
            lambda: self._http.post(
                self._credentials.url,
                data=asked,
                headers={"Authorization": f"Basic {proof}", "Accept": "application/json"},
            ),
        )
        if not answer.is_success:
            raise PromoteFailed(reason=f"the token service answered {answer.status_code}")
        try:
            granted = msgspec.json.decode(answer.content, type=Granted, strict=False)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise PromoteFailed(reason="the token service answered without a token") from error
        if not granted.access_token.isascii() or not granted.access_token.isprintable():
            raise PromoteFailed(reason="the token service answered with no token that can be sent")
        self._token = granted.access_token
        self._until = began + granted.expires_in * (1 - EARLY)


class FileService:
    def __init__(self, http: httpx2.AsyncClient, address: str, tokens: Tokens | None) -> None:
        self._http = http
        self.address = address
        self._tokens = tokens

    async def has(self, key: str, file: Stored, *, is_known: bool) -> bool:
        """By its checksum, if the service sends one; by its size only if we have put the file there before."""
        answer = await self._ask("HEAD", key)
        if not answer.is_success:
            return False
        said = answer.headers.get("repr-digest")
        if said is not None:
            return _digest(file) in said
        return is_known and answer.headers.get("content-length") == str(file.size)

    async def put(self, key: str, file: Stored, pieces: Pieces) -> None:
        headers = {"Content-Type": file.content_type, "Content-Length": str(file.size), "Repr-Digest": _digest(file)}
        answer = await self._ask("PUT", key, headers, pieces)
        if not answer.is_success:
            raise PromoteFailed(reason=f"the file service answered {answer.status_code}")

    async def close(self) -> None:
        await self._http.aclose()

    async def _ask(
        self, method: str, key: str, headers: dict[str, str] | None = None, pieces: Pieces | None = None
    ) -> httpx2.Response:
        url = f"{self.address}/{quote(key)}"

        async def once() -> httpx2.Response:
            token = None if self._tokens is None else await self._tokens.current()
            proof = {} if token is None else {"Authorization": f"Bearer {token}"}
            content = None if pieces is None else pieces()
            answer = await self._http.request(method, url, headers={**(headers or {}), **proof}, content=content)
            if answer.status_code == UNAUTHORIZED and self._tokens is not None and token is not None:
                self._tokens.discard(token)
            return answer

        answer = await _request(url, once)
        if answer.status_code == UNAUTHORIZED and self._tokens is not None:
            answer = await _request(url, once)  # with a new token, once
        return answer


async def _request(address: str, ask: Callable[[], Awaitable[httpx2.Response]]) -> httpx2.Response:
    """The first answer that is not worth a retry. Raises PromoteFailed after a few tries."""
    import httpx2  # takes long to load, and the SDK does not need it

    tries = 0
    while True:
        tries += 1
        try:
            answer = await ask()
        except httpx2.HTTPError as error:
            reason = type(error).__name__
        else:
            if answer.status_code not in AGAIN:
                return answer
            reason = f"it answered {answer.status_code}"
        if tries == TRIES:
            raise PromoteFailed(reason=f"{address}: {reason}")
        log.promote_again(address, reason)
        await asyncio.sleep(PAUSE * 2**tries * uniform(0.25, 0.5))  # noqa: S311 (not a secret)


def _digest(file: Stored) -> str:
    return f"sha-256=:{b64encode(bytes.fromhex(file.sha256)).decode()}:"
