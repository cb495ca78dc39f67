"""Settings in, wired objects out."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import unquote, urlsplit

from packhorse.blob import open_blobs
from packhorse.blob.base import Blobs
from packhorse.errors import SettingError
from packhorse.settings import Settings, shown
from packhorse.store.base import Store

REDIS = {"unix"} | {
    f"{name}{tls}{sort}" for name in ("redis", "valkey") for tls in ("", "s") for sort in ("", "+cluster", "+sentinel")
}


async def open_store(url: str, prefix: str = "packhorse:") -> Store:
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
        case scheme if scheme in REDIS:
            try:
                from packhorse.store.redis import RedisStore
            except ImportError as error:
                raise _missing("redis", url) from error
            return await RedisStore.open(url, prefix)
    raise SettingError(
        f"PACKHORSE_STORE must begin with sqlite:// or redis://, not {shown(url)!r}.", name="store", value=shown(url)
    )


async def opened(settings: Settings) -> tuple[Store, Blobs]:
    return await open_store(settings.store, settings.prefix), open_blobs(settings.blobs)


def _missing(extra: str, url: str) -> SettingError:
    scheme = url.partition("://")[0]
    return SettingError(
        f"PACKHORSE_STORE begins with {scheme}://, but its driver is not installed: pip install packhorse[{extra}]",
        name="store",
        value=scheme,
    )
