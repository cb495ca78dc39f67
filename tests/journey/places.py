"""Where journeys take place: each store once, and both sorts of objects."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tests.servers import postgres, seaweed, valkey

Settings = dict[str, str]


def embedded(folder: Path) -> Settings:
    return {"store": f"sqlite://{folder / 'store.db'}", **_folder(folder)}


def postgres_and_s3(_: Path) -> Settings:
    return {"store": postgres.server().url(), **bucket()}


def redis_and_a_folder(folder: Path) -> Settings:
    return {"store": valkey.shared().url(valkey.fresh_prefix()), **_folder(folder)}


PLACES: dict[str, Callable[[Path], Settings]] = {
    "sqlite": embedded,
    "postgresql": postgres_and_s3,
    "redis": redis_and_a_folder,
}


def _folder(folder: Path) -> Settings:
    return {"blobs": f"file://{folder / 'blobs'}"}


def bucket() -> Settings:
    keys = seaweed.KEYS
    return {"blobs": seaweed.running().place(), "s3_access_key": keys.access, "s3_secret_key": keys.secret}
