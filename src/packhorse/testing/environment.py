"""Where a bench keeps its things, and the clock they go by."""

from __future__ import annotations

import asyncio
import os
import secrets
import shutil
import tempfile
from collections.abc import Coroutine
from concurrent.futures import Future
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from packhorse.blobs.base import Blobs
from packhorse.blobs.local import Folder
from packhorse.errors import StoreUnavailable
from packhorse.runtime import Runtime
from packhorse.settings import Settings
from packhorse.store.base import Store
from packhorse.store.sqlite import SqliteStore

T = TypeVar("T")

MEMORY = Path("/dev/shm")  # noqa: S108 (what is put there is in a folder of our own)
"""A file system in memory, where there is one: each sync is asked for as always, and takes no time."""
RECORDS, OBJECTS = 16 * 1024**2, 1024**3
"""Bytes that must be free in it for the database, and for files of any size: in a container it may have 64 MB."""


class Clock:
    """Stands still until it is set."""

    def __init__(self, now: float) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


class Place(Runtime):
    """The runtime behind ``.submit()``, with a store and objects of its own that go by the clock it is given."""

    def __init__(self, clock: Clock, settings: Settings | None) -> None:
        self._clock = clock
        self._temporary = ExitStack()
        self.folder = self._new_folder(None)
        """For files of any size, and for what a stage may want to execute: in memory, that is often forbidden."""
        self._database = self._new_folder(_memory(RECORDS)) / "packhorse.db"
        self._objects = self._new_folder(_memory(OBJECTS)) / "blobs"
        self._is_closed = False
        settings = settings or Settings()
        super().__init__(
            replace(
                settings,
                scratch=str(self.folder / "scratch"),
                secret_key=settings.secret_key or secrets.token_urlsafe(32),
            )
        )

    async def _open_both(self) -> tuple[Store, Blobs]:
        return await SqliteStore.open(self._database, self._clock), Folder(self._objects)

    def wait_for(self, work: Coroutine[Any, Any, T]) -> T:
        if self._is_closed:
            work.close()
            raise StoreUnavailable("The bench is closed.")
        return super().wait_for(work)

    def begin(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Like `wait_for`, which must have been called before, without waiting."""
        assert self._loop is not None
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def downloads(self, job_id: str) -> Path:
        folder = self.folder / "downloads" / job_id
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def close(self) -> None:
        super().close()
        self._is_closed = True
        self._temporary.close()

    def _new_folder(self, where: Path | None) -> Path:
        folder = tempfile.TemporaryDirectory(prefix="packhorse-bench-", dir=where)
        return Path(self._temporary.enter_context(folder))


def _memory(room: int) -> Path | None:
    is_fit = os.access(MEMORY, os.W_OK) and shutil.disk_usage(MEMORY).free >= room
    return MEMORY if is_fit else None
