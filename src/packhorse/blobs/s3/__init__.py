"""Objects in a bucket of S3 or a compatible server.

Written by signed requests of our own, read through obstore. What the server answers badly or not at all is asked again
on another connection; when patience has ended it is `BlobUnavailable`.
"""

from __future__ import annotations

import errno
import os
import secrets
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from concurrent.futures import Future
from contextlib import aclosing, suppress
from pathlib import Path

from packhorse import crashpoints
from packhorse.blobs.base import Sum, Threads, check_key
from packhorse.blobs.s3.http import Address, Keys, Patience, Signed
from packhorse.blobs.s3.list import Bucket
from packhorse.blobs.s3.transfer import Downloads, Upload, s3_store
from packhorse.define.files import disposition
from packhorse.errors import BlobNotFound, BlobUnavailable

THREADS = 32  # each waits for one answer at a time; if there are more puts, their parts take turns


class S3:
    def __init__(self, address: Address, keys: Keys, patience: Patience = Patience()) -> None:
        self._threads = Threads(THREADS)
        self._signed = Signed(address, keys, THREADS, patience=patience)
        self._bucket = Bucket(self._signed, address.prefix)
        self._downloads = Downloads(s3_store(address, keys, patience), patience)

    async def put(self, key: str, chunks: AsyncIterator[bytes], *, limit: int | None = None) -> Sum:
        upload = Upload(self._signed, check_key(key), limit)
        sending: Future[None] | None = None
        crashpoints.reach("blob.put.before")
        try:
            async for chunk in chunks:
                if upload.take(chunk):
                    if sending:
                        await self._threads.wait(sending)
                    sending = self._threads.start(upload.send, upload.pending())
            if sending:
                await self._threads.wait(sending)
            await self._threads.run(upload.publish, upload.pending())
        except BaseException:  # cancellation too: whatever ended it, nothing is left behind
            await self._threads.run(upload.discard, sending)
            raise
        crashpoints.reach("blob.put.after")
        return upload.sum()

    async def put_file(self, key: str, path: Path) -> Sum:
        async with aclosing(self._threads.pieces(path)) as pieces:
            return await self.put(key, pieces)

    async def copy(self, source: str, key: str) -> None:
        check_key(source)
        upload = Upload(self._signed, check_key(key), None)
        crashpoints.reach("blob.put.before")
        try:
            await self._threads.run(upload.copy, source)
        except BaseException as error:  # cancellation too: whatever ended it, nothing is left behind
            await self._threads.run(upload.discard, None)
            if isinstance(error, BlobNotFound):
                await self._look(source)
            raise
        crashpoints.reach("blob.put.after")

    async def read(self, key: str, *, start: int = 0, length: int | None = None) -> AsyncGenerator[bytes]:
        async with aclosing(self._downloads.pieces(check_key(key), start, length)) as pieces:
            try:
                async for piece in pieces:
                    yield piece
            except BlobNotFound:
                await self._look(key)
                raise

    async def size(self, key: str) -> int | None:
        try:
            return (await self._downloads.head(check_key(key)))["size"]
        except BlobNotFound:
            await self._look(key)
            return None

    async def fetch(self, key: str, to: Path) -> None:
        partial = to.with_name(f".{secrets.token_hex(8)}")
        try:
            async with aclosing(self.read(key)) as pieces:
                with await self._threads.run(open, partial, "xb") as file:
                    async for piece in pieces:
                        await self._threads.run(file.write, piece)
                    os.fchmod(file.fileno(), 0o444)
            await self._threads.run(_give_name, partial, to)
        except OSError as error:
            raise BlobUnavailable(reason=error.strerror or str(error)) from error
        finally:
            with suppress(OSError):
                partial.unlink()

    async def keys(self, prefix: str, *, after: str | None = None, limit: int = 1000) -> list[str]:
        return await self._threads.run(self._bucket.keys, check_key(prefix), after or "", limit)

    async def folders(self, prefix: str, *, after: str | None = None, limit: int = 1000) -> list[str]:
        return await self._threads.run(self._bucket.folders, check_key(prefix), after or "", limit)

    async def delete(self, keys: Sequence[str]) -> None:
        await self._threads.run(self._bucket.delete, [check_key(key) for key in keys])

    async def delete_all(self, prefix: str) -> None:
        await self._threads.run(self._bucket.delete_all, check_key(prefix))

    async def abandon(self, older_than: float, *, everywhere: bool = False) -> int:
        return await self._threads.run(self._bucket.abandon, older_than, everywhere=everywhere)

    async def presign(self, key: str, *, seconds: int, filename: str, content_type: str) -> str | None:
        query = {"response-content-disposition": disposition(filename), "response-content-type": content_type}
        return self._signed.link(check_key(key), query, seconds=seconds)

    async def close(self) -> None:
        await self._threads.close()
        self._signed.close()

    async def _look(self, key: str) -> None:
        """Raises if the bucket is gone, which must not look like a missing object."""
        await self.keys(key, limit=1)


def _give_name(partial: Path, to: Path) -> None:
    if to.exists():
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), to)
    partial.rename(to)
