"""Settings in, wired objects out."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import unquote, urlsplit

from packhorse.blob import open_blobs
from packhorse.blob.base import Blobs
from packhorse.errors import SettingError
from packhorse.settings import KEYS, Settings, without_secrets
from packhorse.store.base import Store

LOCAL = frozenset({"sqlite", "file"})
REDIS = {"unix"} | {
    f"{name}{tls}{sort}" for name in ("redis", "valkey") for tls in ("", "s") for sort in ("", "+cluster", "+sentinel")
}


async def open_store(url: str, prefix: str = KEYS) -> Store:
    """The store that the URL names. Adding one is a line here."""
    parts = urlsplit(url)
    match parts.scheme:
        case "sqlite":
            from packhorse.store.sqlite import SqliteStore

            if parts.netloc or not parts.path.startswith("/"):
                raise SettingError(
                    f"PACKHORSE_STORE must be sqlite:///absolute/path, not {url!r}.", name="store", value=url
                )
            return await SqliteStore.open(Path(unquote(parts.path)))
        case "postgresql" | "postgres":
            try:
                from packhorse.store.postgres import PostgresStore
            except ImportError as error:
                raise _missing("postgres", parts.scheme) from error
            return await PostgresStore.open(url)
        case scheme if scheme in REDIS:
            try:
                from packhorse.store.redis import RedisStore
            except ImportError as error:
                raise _missing("redis", parts.scheme) from error
            return await RedisStore.open(url, prefix)
    place = without_secrets(url)
    raise SettingError(
        f"PACKHORSE_STORE must begin with sqlite://, postgresql:// or redis://, not {place!r}.",
        name="store",
        value=place,
    )


def is_absent(url: str) -> bool:
    """Whether a store or an object store of this machine has not been made yet. Makes nothing."""
    parts = urlsplit(url)
    return parts.scheme in LOCAL and not parts.netloc and not Path(unquote(parts.path)).exists()


async def opened(settings: Settings) -> tuple[Store, Blobs]:
    return await open_store(settings.store, settings.prefix), opened_blobs(settings)


def opened_blobs(settings: Settings) -> Blobs:
    return open_blobs(settings.blobs, settings.s3_access_key, settings.s3_secret_key)


def _missing(extra: str, scheme: str) -> SettingError:
    return SettingError(
        f"PACKHORSE_STORE begins with {scheme}://, but its driver is not installed: pip install packhorse[{extra}]",
        name="store",
        value=scheme,
    )
