"""Settings in, wired objects out."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import unquote, urlsplit

from packhorse.blob import open_blobs
from packhorse.blob.base import Blobs
from packhorse.errors import SettingError
from packhorse.settings import Settings
from packhorse.store.base import Store

LOCAL = frozenset({"sqlite", "file"})


async def open_store(url: str) -> Store:
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
    raise SettingError(f"PACKHORSE_STORE must begin with sqlite://, not {url!r}.", name="store", value=url)


def is_absent(url: str) -> bool:
    """Whether a store or an object store of this machine has not been made yet. Makes nothing."""
    parts = urlsplit(url)
    return parts.scheme in LOCAL and not parts.netloc and not Path(unquote(parts.path)).exists()


async def opened(settings: Settings) -> tuple[Store, Blobs]:
    return await open_store(settings.store), open_blobs(settings.blobs)
