"""The object stores that the contract is held against, and short ways to speak to them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from packhorse.blobs import open_blobs
from packhorse.blobs.base import Blobs
from tests.blobs import gcs_server
from tests.servers import seaweed

PLACES: dict[str, Callable[[Path], str]] = {
    "folder": lambda tmp_path: (tmp_path / "objects").as_uri(),
    "s3": lambda _: seaweed.running().place(),
    "gcs": lambda _: gcs_server.running().place(),
}
"""A new, empty place for each test, as a URL."""


@pytest.fixture(params=PLACES)
def url(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    for name, value in seaweed.ENV.items():
        monkeypatch.setenv(name, value)
    return PLACES[request.param](tmp_path)


@pytest.fixture
async def another(url: str) -> AsyncIterator[Callable[[], Blobs]]:
    """Opens one more handle on the same objects, as another process would have."""
    handles: list[Blobs] = []

    def opened() -> Blobs:
        handles.append(open_blobs(url))
        return handles[-1]

    yield opened
    for handle in handles:
        await handle.close()


@pytest.fixture
def blobs(another: Callable[[], Blobs]) -> Blobs:
    return another()


async def stream(*chunks: bytes) -> AsyncIterator[bytes]:
    for chunk in chunks:
        yield chunk


async def content(blobs: Blobs, key: str, *, start: int = 0, length: int | None = None) -> bytes:
    return b"".join([piece async for piece in blobs.read(key, start=start, length=length)])


async def is_empty(blobs: Blobs) -> bool:
    """Neither an object below `jobs` nor anything that a put has left unfinished."""
    return await blobs.keys("jobs") == [] and await blobs.abandon(older_than=0) == 0
