"""Objects in a bucket of Google Cloud Storage, through obstore.

Reading is as for S3. An object of up to PART bytes is created by one request that is refused if the name is taken. A
larger one is uploaded under a name of its own below `UNFINISHED`, and copied by a request of the same kind. There are
no links for downloads: the server sends the files itself.
"""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, NoReturn
from urllib.parse import parse_qsl, unquote, urlsplit

import obstore
from obstore.exceptions import AlreadyExistsError, BaseError, PreconditionError
from obstore.store import GCSStore

from packhorse import crashpoints
from packhorse.blobs.base import Incoming, Sum, Threads, check_key, is_key
from packhorse.blobs.s3 import S3, THREADS
from packhorse.blobs.s3.http import MAX_PREFIX, Patience
from packhorse.blobs.s3.transfer import PART, Downloads
from packhorse.errors import BlobExists, BlobNotFound, BlobUnavailable, PathRefused, SettingError

if TYPE_CHECKING:
    from obstore.store import GCSConfig, GCSCredential

UNFINISHED = "unfinished"
TOKEN = "packhorse-put"  # noqa: S105 (the name of an attribute)
TAKEN = (AlreadyExistsError, PreconditionError)
OPTIONS = frozenset({"endpoint"})


def gcs_store(url: str, env: Mapping[str, str], patience: Patience = Patience()) -> GCSStore:
    """From gs://BUCKET/PREFIX. obstore finds the account in GOOGLE_APPLICATION_CREDENTIALS or on the machine."""
    try:
        parts = urlsplit(url)
        given = dict(parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query)))
        prefix = unquote(parts.path).strip("/")
        if prefix and len(check_key(prefix).encode()) >= MAX_PREFIX:
            raise PathRefused(key=prefix)
    except (ValueError, PathRefused):
        _refuse()
    if not parts.netloc or set(parts.netloc) & set("@:") or parts.fragment or not given.keys() <= OPTIONS:
        _refuse()
    config: GCSConfig = {}
    if endpoint := given.get("endpoint") or env.get("STORAGE_EMULATOR_HOST", ""):
        config = {"base_url": endpoint.rstrip("/")}
    return GCSStore(
        parts.netloc,
        prefix=prefix or None,
        config=config,
        credential_provider=_no_account if config else None,  # else obstore would ask Google for one
        client_options={
            "allow_http": bool(config),
            "timeout": timedelta(days=1),
            "connect_timeout": timedelta(seconds=patience.silence),
        },
        retry_config={"max_retries": 5, "retry_timeout": timedelta(seconds=patience.seconds), "backoff": {}},
    )


def _no_account() -> GCSCredential:
    """For a stand-in, which has no accounts."""
    return {"token": "none", "expires_at": None}


def _refuse() -> NoReturn:
    raise SettingError("PACKHORSE_BLOBS must be gs://BUCKET/PREFIX, with no option but endpoint.", name="blobs")


class _Put(Incoming):
    """The bytes of one put, counted."""

    def __init__(self, key: str, limit: int | None) -> None:
        super().__init__(key, limit, PART)
        self.token = secrets.token_hex(16)

    def flush(self) -> bytes:
        data = b"".join(self.pending())
        self._sha256.update(data)
        return data


class GCS(S3):
    """Reads as `S3` does; everything that writes or lists is here."""

    def __init__(self, store: GCSStore, patience: Patience = Patience()) -> None:
        self._threads = Threads(THREADS)
        self._store = store
        self._downloads = Downloads(store, patience)

    async def put(self, key: str, chunks: AsyncIterator[bytes], *, limit: int | None = None) -> Sum:
        put, rest = _Put(check_key(key), limit), aiter(chunks)
        crashpoints.reach("blob.put.before")
        async for chunk in rest:
            if put.take(chunk):
                break
        else:
            await self._create(put, put.flush())
            return put.sum()

        errors: list[Exception] = []

        async def pieces() -> AsyncIterator[bytes]:
            yield put.flush()
            try:
                async for chunk in rest:
                    if put.take(chunk):
                        yield put.flush()
            except Exception as error:  # broad: obstore wraps it, and the caller wants its own
                errors.append(error)
                raise
            yield put.flush()

        whole = f"{UNFINISHED}/{put.token}"
        try:
            with _translated():
                await obstore.put_async(self._store, whole, pieces(), attributes={TOKEN: put.token})
            crashpoints.reach("blob.put.written")
            await self._name(whole, key)
        except Exception:  # broad, as above
            if errors:
                raise errors[0] from None
            raise
        finally:
            with suppress(BlobUnavailable):
                await self._remove([whole])
        crashpoints.reach("blob.put.after")
        return put.sum()

    async def _create(self, put: _Put, data: bytes) -> None:
        crashpoints.reach("blob.put.written")
        try:
            with _translated():
                await obstore.put_async(
                    self._store, put.key, data, mode="create", use_multipart=False, attributes={TOKEN: put.token}
                )
        except TAKEN as error:
            if await self._token(put.key) != put.token:  # else the answer to our own request was lost
                raise BlobExists(key=put.key) from error
        crashpoints.reach("blob.put.after")

    async def _token(self, key: str) -> str | None:
        with _translated():
            return (await obstore.get_async(self._store, key)).attributes.get(TOKEN)

    async def copy(self, source: str, key: str) -> None:
        crashpoints.reach("blob.put.before")
        await self._name(check_key(source), check_key(key))
        crashpoints.reach("blob.put.after")

    async def _name(self, source: str, key: str) -> None:
        try:
            with _translated(source):
                await obstore.copy_async(self._store, source, key, overwrite=False)
        except TAKEN as error:
            raise BlobExists(key=key) from error

    async def keys(self, prefix: str, *, after: str | None = None, limit: int = 1000) -> list[str]:
        found = [key async for key, _ in self._listed(check_key(prefix), after, limit) if is_key(key)]
        return found[:limit]

    async def folders(self, prefix: str, *, after: str | None = None, limit: int = 1000) -> list[str]:
        found: list[str] = []
        start = f"{prefix}/{after}/\U0010ffff" if after else None
        async for key, _ in self._listed(check_key(prefix), start, None):
            name, slash, _ = key.removeprefix(f"{prefix}/").partition("/")
            if slash and name not in found[-1:] and is_key(f"{prefix}/{name}"):
                found.append(name)
                if len(found) > limit:
                    break
        return found[:limit]

    async def delete(self, keys: Sequence[str]) -> None:
        await self._remove([check_key(key) for key in keys])

    async def delete_all(self, prefix: str) -> None:
        await self._remove([key async for key, _ in self._listed(check_key(prefix), None, None)])

    async def abandon(self, older_than: float) -> int:
        end = datetime.now(UTC) - timedelta(seconds=older_than)
        old = [key async for key, at in self._listed(UNFINISHED, None, None) if at <= end]
        await self._remove(old)
        return len(old)

    async def presign(self, key: str, *, seconds: int, filename: str, content_type: str) -> str | None:  # noqa: ARG002
        check_key(key)
        return None

    async def close(self) -> None:
        await self._threads.close()

    async def _remove(self, keys: Sequence[str]) -> None:
        for key in keys:
            with _translated(), suppress(FileNotFoundError):
                await obstore.delete_async(self._store, key)
            crashpoints.reach("blob.delete.after")

    async def _listed(self, prefix: str, after: str | None, limit: int | None) -> AsyncIterator[tuple[str, datetime]]:
        count = 0
        with _translated():
            async for page in obstore.list(self._store, f"{prefix}/", offset=after, chunk_size=1000):
                for each in page:
                    yield each["path"], each["last_modified"]
                    count += 1
                if limit is not None and count >= limit:
                    return


@contextmanager
def _translated(source: str | None = None) -> Iterator[None]:
    """Errors of obstore as those of the contract. A taken name, or a missing one if ``source`` is not given, is left to
    the caller."""
    try:
        yield
    except TAKEN:
        raise
    except FileNotFoundError as error:
        if source is None:
            raise
        raise BlobNotFound(key=source) from error
    except (BaseError, OSError) as error:
        raise BlobUnavailable(reason=str(error).partition("\n")[0]) from error
