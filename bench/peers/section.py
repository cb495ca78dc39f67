"""The section `peers`: every contender once in each round, in turn, then the killing of workers."""

from __future__ import annotations

import asyncio
import itertools
import sys
from collections.abc import Awaitable, Sequence
from pathlib import Path
from typing import TypeVar

from bench.book import Book
from bench.peers.contenders import CONTENDERS, Contender, Store
from bench.peers.crashing import Crash, crashed, crashed_elsewhere
from bench.peers.judging import note_crash, note_elsewhere, note_failure, note_speeds, section_of
from bench.peers.measuring import Found, measured
from bench.peers.places import PLACES, Place
from bench.peers.running import Failed
from bench.sizes import Sizes

T = TypeVar("T")


class PeersSection:
    def __init__(self, folder: Path, sizes: Sizes) -> None:
        self._folder = folder
        self._sizes = sizes
        asked = [each for each in CONTENDERS if not sizes.peers_only or each.name in sizes.peers_only]
        self._missing = [each for each in asked if not each.is_there]
        self._contenders = [each for each in asked if each.is_there]
        self._places: dict[Store, Place] = {}
        self._numbers = itertools.count(1)

    async def round(self, book: Book) -> None:
        for store in dict.fromkeys(each.store for each in self._contenders):
            if store not in self._places:
                self._places[store] = PLACES[store](self._folder / store)
                self._introduce(book, store)
            contenders = [each for each in self._contenders if each.store == store]
            await self._speeds(book, store, contenders)
            await self._crashes(book, store, contenders)

    async def close(self) -> None:
        for place in self._places.values():
            await place.close()

    def _introduce(self, book: Book, store: Store) -> None:
        book.remark(section_of(store), f"Durability of all: {self._places[store].durability}.")
        for each in self._missing:
            if each.store == store:
                why = "needs Python 3.12; " if each.environment == "oban" else ""
                book.remark(section_of(store), f"{each.name} is left out: {why}`make peers` has made no environment.")

    async def _speeds(self, book: Book, store: Store, contenders: Sequence[Contender]) -> None:
        found: dict[Contender, Found] = {}
        for each in contenders:
            result = await self._tried(book, each, measured(each, self._places[store], self._fresh(), self._sizes))
            if result is not None:
                found[each] = result
        note_speeds(book, store, found, self._places[store].counted)

    async def _crashes(self, book: Book, store: Store, contenders: Sequence[Contender]) -> None:
        """Ours alone; the others side by side, for their jobs only sleep and some take half a minute."""
        place, sizes = self._places[store], self._sizes
        compared = [each for each in contenders if each.is_compared]
        for each in compared:
            if each.is_ours:
                self._noted(book, each, await self._tried(book, each, crashed(each, place, self._fresh(), sizes)))
                elsewhere = await self._tried(book, each, crashed_elsewhere(each, place, self._fresh(), sizes))
                if elsewhere is not None:
                    note_elsewhere(book, each, elsewhere, sizes)
        peers = [each for each in compared if not each.is_ours]
        tries = [
            self._tried(book, each, crashed(each, place, self._fresh(), sizes, n)) for n, each in enumerate(peers, 1)
        ]
        for each, result in zip(peers, await asyncio.gather(*tries), strict=True):
            self._noted(book, each, result)

    def _noted(self, book: Book, contender: Contender, result: Crash | None) -> None:
        if result is not None:
            note_crash(book, contender, result, self._sizes)

    async def _tried(self, book: Book, contender: Contender, work: Awaitable[T]) -> T | None:
        """What one of them cannot do must not keep the others from being measured; it is said, and ours is judged."""
        try:
            return await work
        except Failed as error:
            print(f"{contender.name} on {contender.store}: {error}", file=sys.stderr, flush=True)
            book.remark(section_of(contender.store), f"{contender.name}: {str(error).splitlines()[0]}")
            note_failure(book, contender)
            return None

    def _fresh(self) -> Path:
        return self._folder / str(next(self._numbers))
