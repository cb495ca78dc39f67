"""The keys of the store, as far as this process has met them.

A key is believed for half a second after it was read, so that most requests cost no read, and a revoked one is out
within a second: also for what is being streamed with it.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from typing import NamedTuple
from weakref import WeakValueDictionary

from packhorse.errors import CorruptRecord, StoreError
from packhorse.log import log
from packhorse.store.base import Store
from packhorse.store.collections import keys
from packhorse.store.collections.keys import Key

FRESH = 0.5
"""Seconds for which what was read of a key is taken for true."""
MOST = 10_000
"""Keys remembered. One that was forgotten is read again."""


class _Read(NamedTuple):
    key: Key
    at: float


class Keyring:
    def __init__(self, store: Store) -> None:
        self._store = store
        self._known: OrderedDict[str, _Read] = OrderedDict()
        self._asked: dict[str, asyncio.Task[Key | None]] = {}
        self._ends: WeakValueDictionary[str, asyncio.Event] = WeakValueDictionary()

    async def get(self, key_id: str) -> Key | None:
        """The key, ended or not; None if there is none."""
        found = self._known.get(key_id)
        if found is not None and time.monotonic() - found.at < FRESH:
            return found.key
        if key_id not in self._asked:
            self._asked[key_id] = asyncio.create_task(self._read(key_id))
        return await asyncio.shield(self._asked[key_id])

    def is_live(self, key: Key) -> bool:
        return key.ends_at is None or self._store.now() < key.ends_at

    def end_of(self, key_id: str) -> asyncio.Event:
        """Set when the key has ended. Looked after for as long as somebody holds it."""
        event = self._ends.get(key_id)
        if event is None:
            event = self._ends[key_id] = asyncio.Event()
        return event

    def forget(self, key_id: str) -> None:
        """It was changed here: what is remembered of it is wrong."""
        self._known.pop(key_id, None)

    async def run(self) -> None:
        """Tell those who stream when their key has ended."""
        while True:
            await asyncio.sleep(FRESH)
            if not self._ends:
                continue
            try:
                await self._look()
            except StoreError as error:
                log.store_away(error)

    async def _look(self) -> None:
        watched = dict(self._ends)  # holds them until we are through
        try:
            found = await keys.get(self._store, list(watched))
        except CorruptRecord:
            found = [await self._readable(key_id) for key_id in watched]
        for key_id, key in zip(watched, found, strict=True):
            if key is None or not self.is_live(key):
                self.forget(key_id)
                watched[key_id].set()

    async def _readable(self, key_id: str) -> Key | None:
        """One that cannot be read has ended; the others have not."""
        try:
            [key] = await keys.get(self._store, [key_id])
        except CorruptRecord:
            return None
        return key

    async def _read(self, key_id: str) -> Key | None:
        at = time.monotonic()
        try:
            [key] = await keys.get(self._store, [key_id])
        finally:
            del self._asked[key_id]
        if key is None:
            self.forget(key_id)
            return None
        self._known[key_id] = _Read(key, at)
        self._known.move_to_end(key_id)
        if len(self._known) > MOST:
            self._known.popitem(last=False)
        return key
