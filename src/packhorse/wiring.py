"""Settings in, wired objects out."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import unquote, urlsplit

from packhorse.blob import open_blobs
from packhorse.blob.base import Blobs
from packhorse.errors import SettingError
from packhorse.settings import Settings
from packhorse.store.base import Store


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
        case "postgresql" | "postgres":
            try:
                from packhorse.store.postgres import PostgresStore
            except ModuleNotFoundError as error:
                raise SettingError(
                    "PACKHORSE_STORE names PostgreSQL, whose driver is not installed: pip install packhorse[postgres]",
                    name="store",
                ) from error

            return await PostgresStore.open(url)
    raise SettingError(
        f"PACKHORSE_STORE must begin with sqlite:// or postgresql://, not {url!r}.", name="store", value=url
    )


async def opened(settings: Settings) -> tuple[Store, Blobs]:
    return await open_store(settings.store), opened_blobs(settings)


def opened_blobs(settings: Settings) -> Blobs:
    return open_blobs(settings.blobs, settings.s3_access_key, settings.s3_secret_key)
