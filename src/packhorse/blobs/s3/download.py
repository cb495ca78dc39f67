"""Downloads from a bucket through obstore. An interrupted download resumes where it stopped."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable
from datetime import timedelta
from random import uniform
from typing import TYPE_CHECKING, TypeVar

import obstore
from obstore.exceptions import BaseError, PermissionDeniedError, PreconditionError, UnauthenticatedError
from obstore.store import S3Store

from packhorse.blobs.base import CHUNK
from packhorse.blobs.s3.address import Address, Keys
from packhorse.blobs.s3.http import MAX_PAUSE, PAUSE, Patience
from packhorse.errors import BlobNotFound, BlobUnavailable

if TYPE_CHECKING:
    from obstore import GetOptions, ObjectMeta
    from obstore.store import S3Config

T = TypeVar("T")

FINAL = (PermissionDeniedError, UnauthenticatedError, PreconditionError)
"""What another try will not better."""


class Reading:
    def __init__(self, address: Address, keys: Keys, patience: Patience) -> None:
        self._patience = patience
        config: S3Config = {
            "endpoint": address.host,
            "region": address.region,
            "virtual_hosted_style_request": address.root == "/",
            "access_key_id": keys.access,
            "secret_access_key": keys.secret,
        }
        if keys.token:
            config["session_token"] = keys.token
        self._store = S3Store(
            address.bucket,
            prefix=address.prefix.rstrip("/") or None,
            config=config,
            # Its patience counts from the first byte to the last, whoever is slow. Ours is `_wait`.
            client_options={
                "allow_http": True,
                "timeout": timedelta(days=1),
                "connect_timeout": timedelta(seconds=patience.silence),
            },
            retry_config={"max_retries": 0, "retry_timeout": timedelta(seconds=patience.seconds), "backoff": {}},
        )

    async def head(self, key: str) -> ObjectMeta:
        tries = _Tries(key, self._patience)
        while True:
            try:
                return await self._wait(obstore.head_async(self._store, key))
            except (BaseError, OSError) as error:
                await tries.next(error)

    async def pieces(self, key: str, start: int, length: int | None) -> AsyncGenerator[bytes]:
        """The first answer says which version of the object this is and how long; all that follow must be of it."""
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
    """Counts from the last byte that came: what goes on is not an outage."""

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
