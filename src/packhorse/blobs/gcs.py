"""Objects in a bucket of Google Cloud Storage, through obstore.

Reading is as for S3. An object below PART bytes is created by one request that is refused if the name is taken. A
larger one is uploaded under a name of its own below `UNFINISHED`, and copied inside the bucket by a request of the same
kind. There are no links for downloads: the server sends the files itself.

**Lost answers.** The object carries a token of its put, and a copy that of its source. Where the name turns out to be
taken, tokens are compared.

**Cancelled.** A request that was sent cannot be taken back, so its end is awaited before anything is removed. Parts of
an upload whose process dies are left to a lifecycle rule of the bucket (docs/stores.md).
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Coroutine, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, NoReturn
from urllib.parse import parse_qsl, unquote, urlsplit

import obstore
from obstore.exceptions import AlreadyExistsError, BaseError, PreconditionError
from obstore.store import GCSStore

from packhorse import crashpoints
from packhorse.blobs.base import Incoming, Sum, Threads, check_key, is_key, wait_to_end
from packhorse.blobs.s3 import S3, THREADS
from packhorse.blobs.s3.http import MAX_PREFIX, Patience
from packhorse.blobs.s3.list import LAST, PAGE, TICK
from packhorse.blobs.s3.transfer import PART, Downloads
from packhorse.errors import BlobExists, BlobNotFound, BlobUnavailable, PathRefused, SettingError

if TYPE_CHECKING:
    from obstore.store import ClientConfig, GCSConfig, GCSCredential, RetryConfig


UNFINISHED = "%%unfinished"
"""Where large objects are until they have their name. No path of a job or tenant begins like this."""
TOKEN = "packhorse-put"  # noqa: S105 (the name of an attribute)
TAKEN = (AlreadyExistsError, PreconditionError)
OPTIONS = frozenset({"endpoint"})
DELETES = 16  # requests at a time: there is none that deletes several objects
WRITE_TIMEOUT = 60.0  # seconds for one request that writes or lists, which is at most a part


class Bucket:
    """Where a gs:// URL leads to. obstore finds the account in GOOGLE_APPLICATION_CREDENTIALS or on the machine."""

    def __init__(self, url: str) -> None:
        try:
            parts = urlsplit(url)
            options = dict(parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query)))
            self.prefix = unquote(parts.path).strip("/")
            if self.prefix and len(check_key(self.prefix).encode()) >= MAX_PREFIX:
                raise PathRefused(key=self.prefix)
        except (ValueError, PathRefused):
            _refuse()
        if not parts.netloc or set(parts.netloc) & set("@:") or parts.fragment or not options.keys() <= OPTIONS:
            _refuse()
        self.name = parts.netloc
        self.endpoint = options.get("endpoint", "").rstrip("/")

    def open(self, timeout: timedelta, patience: Patience, retries: int) -> GCSStore:
        config: GCSConfig = {"base_url": self.endpoint} if self.endpoint else {}
        client: ClientConfig = {
            "allow_http": bool(self.endpoint),
            "timeout": timeout,
            "connect_timeout": timedelta(seconds=patience.silence),
        }
        retry: RetryConfig = {
            "max_retries": retries,
            "retry_timeout": timedelta(seconds=patience.seconds),
            "backoff": {},
        }
        if not self.endpoint:
            return GCSStore(self.name, prefix=self.prefix or None, client_options=client, retry_config=retry)
        return GCSStore(
            self.name,
            prefix=self.prefix or None,
            config=config,
            credential_provider=_no_account,  # else obstore would ask Google for one
            client_options=client,
            retry_config=retry,
        )


def _no_account() -> GCSCredential:
    """For an endpoint of one's own, which has no accounts of Google."""
    return {"token": "none", "expires_at": None}


def _refuse() -> NoReturn:
    raise SettingError("PACKHORSE_BLOBS must be gs://BUCKET/PREFIX, with no option but endpoint.", name="blobs")


class _Put(Incoming):
    """What waits to be sent, with the token that tells this put's object from others."""

    def __init__(self, key: str, limit: int | None) -> None:
        super().__init__(key, limit, PART)
        self.token = secrets.token_hex(16)

    def flush(self) -> bytes:
        data = b"".join(self.pending())
        self._sha256.update(data)
        return data


class GCS(S3):
    """Reads as `S3` does; everything that writes or lists is here."""

    def __init__(self, bucket: Bucket, patience: Patience = Patience()) -> None:
        self._threads = Threads(THREADS)
        # A download may last as long as its reader takes, and `Downloads` tries again by itself.
        self._downloads = Downloads(bucket.open(timedelta(days=1), patience, 0), patience)
        self._store = bucket.open(timedelta(seconds=WRITE_TIMEOUT), patience, 10)

    async def put(self, key: str, chunks: AsyncIterator[bytes], *, limit: int | None = None) -> Sum:
        put, rest = _Put(check_key(key), limit), aiter(chunks)
        crashpoints.reach("blob.put.before")
        async for chunk in rest:
            if put.take(chunk):
                await self._put_large(put, rest)
                break
        else:
            data = put.flush()
            crashpoints.reach("blob.put.written")
            await self._or_nothing(key, put.token, self._create(key, data, put.token))
        crashpoints.reach("blob.put.after")
        return put.sum()

    async def _put_large(self, put: _Put, rest: AsyncIterator[bytes]) -> None:
        whole = f"{UNFINISHED}/{put.token}"
        writer = obstore.open_writer_async(
            self._store, whole, attributes={TOKEN: put.token}, buffer_size=PART, max_concurrency=2
        )
        try:
            try:
                await wait_to_end(self._write(writer, put.flush()))
                async for chunk in rest:
                    if put.take(chunk):
                        await wait_to_end(self._write(writer, put.flush()))
                await wait_to_end(self._write(writer, put.flush()))
            finally:  # also after an error: parts that are joined to an object can be deleted
                with _translated():
                    await wait_to_end(writer.close())
            crashpoints.reach("blob.put.written")
            await self._or_nothing(put.key, put.token, self._name(whole, put.key, put.token))
        finally:
            with suppress(BlobUnavailable):
                await wait_to_end(self._remove([whole]))

    async def _write(self, writer: obstore.AsyncWritableFile, data: bytes) -> None:
        with _translated():
            await writer.write(data)

    async def _or_nothing(self, key: str, token: str, request: Coroutine[Any, Any, None]) -> None:
        """Give an object its name; after any error, the object that this put may have made is removed."""
        try:
            await wait_to_end(request)
        except BlobExists:
            raise
        except BaseException:  # cancellation too: no caller refers to it
            with suppress(BlobUnavailable):
                if await wait_to_end(self._token(key)) == token:
                    await wait_to_end(self._remove([key]))
            raise

    async def _create(self, key: str, data: bytes, token: str) -> None:
        try:
            with _translated():
                await obstore.put_async(
                    self._store, key, data, mode="create", use_multipart=False, attributes={TOKEN: token}
                )
        except (*TAKEN, BlobUnavailable) as error:
            await self._accept(key, token, error)

    async def _name(self, source: str, key: str, token: str | None) -> None:
        try:
            with _translated(source):
                await obstore.copy_async(self._store, source, key, overwrite=False)
        except (*TAKEN, BlobUnavailable) as error:
            await self._accept(key, token, error)

    async def _accept(self, key: str, token: str | None, error: Exception) -> None:
        """Raise, unless the object is there with this token: then only the answer to the request was lost."""
        if token is not None and await self._token(key) == token:
            return
        if isinstance(error, BlobUnavailable):
            raise error
        raise BlobExists(key=key) from error

    async def _token(self, key: str) -> str | None:
        """Of the object; None if there is none."""
        try:
            with _translated(key):
                return (await obstore.get_async(self._store, key, options={"head": True})).attributes.get(TOKEN)
        except BlobNotFound:
            return None

    async def copy(self, source: str, key: str) -> None:
        check_key(source), check_key(key)
        crashpoints.reach("blob.put.before")
        if await self.size(key) is not None:  # a copy has the token of its source, as an earlier copy has
            raise BlobExists(key=key)
        token = await self._token(source)
        try:
            await self._or_nothing(key, token or "", self._name(source, key, token))
        except BlobNotFound:
            await self._look(source)
            raise
        crashpoints.reach("blob.put.after")

    async def keys(self, prefix: str, *, after: str | None = None, limit: int = 1000) -> list[str]:
        found: list[str] = []
        async for page in self._pages(check_key(prefix), after):
            found += [key for key, _ in page if is_key(key)]
            if len(found) >= limit:
                break
        return found[:limit]

    async def folders(self, prefix: str, *, after: str | None = None, limit: int = 1000) -> list[str]:
        """From the keys; one key of a folder is enough to skip it."""
        found: list[str] = []
        check_key(prefix)
        start = f"{prefix}/{after}/{LAST}" if after else None
        while len(found) < limit:
            page: list[tuple[str, datetime]] = await anext(self._pages(prefix, start), [])
            for key, _ in page:
                name, slash, _ = key.removeprefix(f"{prefix}/").partition("/")
                start = f"{prefix}/{name}/{LAST}" if slash else f"{prefix}/{name}"
                if slash and name not in found[-1:] and is_key(f"{prefix}/{name}"):
                    found.append(name)
            if not page:
                break
        return found[:limit]

    async def delete(self, keys: Sequence[str]) -> None:
        await self._remove([check_key(key) for key in keys])

    async def delete_all(self, prefix: str) -> None:
        async for page in self._pages(check_key(prefix), None):
            await self._remove([key for key, _ in page])

    async def abandon(self, older_than: float, *, everywhere: bool = False) -> int:  # noqa: ARG002 (ours is ours)
        """Large objects without a name. Ages are relative to the bucket's own time."""
        found = [each async for page in self._pages(UNFINISHED, None) for each in page]
        if not found:
            return 0
        clock = f"{UNFINISHED}/{secrets.token_hex(16)}"
        await self._create(clock, b"", "")
        with _translated(clock):
            now = (await obstore.head_async(self._store, clock))["last_modified"] + timedelta(seconds=TICK)
        old = [key for key, at in found if at <= now - timedelta(seconds=older_than)]
        await self._remove([*old, clock])
        return len(old)

    async def presign(self, key: str, *, seconds: int, filename: str, content_type: str) -> str | None:  # noqa: ARG002
        check_key(key)
        return None

    async def close(self) -> None:
        await self._threads.close()

    async def _remove(self, keys: Sequence[str]) -> None:
        for start in range(0, len(keys), DELETES):
            await asyncio.gather(*(self._delete(key) for key in keys[start:][:DELETES]))
            crashpoints.reach("blob.delete.after")

    async def _delete(self, key: str) -> None:
        with suppress(BlobNotFound), _translated(key):
            await obstore.delete_async(self._store, key)

    async def _pages(self, prefix: str, after: str | None) -> AsyncIterator[list[tuple[str, datetime]]]:
        """Of keys and their times, in order."""
        with _translated():
            async for page in obstore.list(self._store, f"{prefix}/", offset=after, chunk_size=PAGE):
                yield [(each["path"], each["last_modified"]) for each in page]


@contextmanager
def _translated(source: str | None = None) -> Iterator[None]:
    """Errors of obstore as those of the contract. A taken name is left to the caller; that nothing is found is
    `BlobNotFound` for ``source``, and else means that there is no such bucket."""
    try:
        yield
    except TAKEN:
        raise
    except (BaseError, OSError) as error:
        if source is not None and isinstance(error, FileNotFoundError):
            raise BlobNotFound(key=source) from error
        raise BlobUnavailable(reason=str(error).partition("\n")[0]) from error
