"""Where journeys take place: each store once, and both sorts of objects."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tests.servers import postgres, seaweed

Settings = dict[str, str]


def embedded(folder: Path) -> Settings:
    return {"store": f"sqlite://{folder / 'store.db'}", **_folder(folder)}


def postgres_and_s3(_: Path) -> Settings:
    return {"store": postgres.server().url(), **_bucket()}


PLACES: dict[str, Callable[[Path], Settings]] = {"sqlite": embedded, "postgresql": postgres_and_s3}


def _folder(folder: Path) -> Settings:
    return {"blobs": f"file://{folder / 'blobs'}"}


def _bucket() -> Settings:
    keys = seaweed.KEYS
    return {"blobs": seaweed.running().place(), "s3_access_key": keys.access, "s3_secret_key": keys.secret}
