"""Few and very many tasks parked under a full limit: what a claim costs beside either, and what the next turn costs."""

from __future__ import annotations

import statistics
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from msgspec.structs import replace

from bench import jobs
from bench.book import Book, at_most
from bench.sizes import Sizes
from packhorse.core.limits import Limit
from packhorse.core.plan import Plan, fingerprint
from packhorse.factory import open_store
from packhorse.store.base import Claim, Store

SECTION = "limits"
FREE = jobs.plan("free")
FLAT = at_most(1.2, of_ratio=True)
"""A claim does not look at what is parked."""
KEY = "gpu"


def gpu_plan() -> Plan:
    bare = jobs.plan("gpu")
    stages = tuple(replace(stage, limits=(Limit(KEY, "", 1),)) for stage in bare.stages)
    made = replace(bare, stages=stages, fingerprint="")
    return replace(made, fingerprint=fingerprint(made))


GPU = gpu_plan()


class Parked:
    """A store with so many tasks parked under one key, and the one that holds it."""

    def __init__(self, store: Store, count: int) -> None:
        self.store = store
        self.count = count
        self.holder: Claim

    async def seed(self) -> None:
        await jobs.commit(self.store, [jobs.submit(GPU, self.store.now())])
        [self.holder] = await jobs.claim(self.store, [GPU], 1)
        await jobs.seed(self.store, (jobs.submit(GPU, self.store.now()) for _ in range(self.count)))

    async def carry_free(self) -> None:
        await jobs.commit(self.store, [jobs.submit(FREE, self.store.now())])
        [claim] = await jobs.claim(self.store, [FREE, GPU], 1)
        await jobs.commit(self.store, [jobs.finish(claim, self.store.now())])

    async def claim_nothing(self) -> None:
        assert await jobs.claim(self.store, [FREE, GPU], 1) == []

    async def next_turn(self) -> None:
        await jobs.commit(self.store, [jobs.finish(self.holder, self.store.now())])
        [self.holder] = await jobs.claim(self.store, [FREE, GPU], 1)


WORK: dict[str, Callable[[Parked], Awaitable[None]]] = {
    "submit+claim+finish without a limit": Parked.carry_free,
    "claim that finds nothing": Parked.claim_nothing,
    "finish+claim of the next one": Parked.next_turn,
}


class LimitsSection:
    """Counts processor time, so that it can run on a machine with other work."""

    def __init__(self, folder: Path, sizes: Sizes) -> None:
        self._folder = folder
        self._sizes = sizes
        self._stores: list[Parked] = []

    async def round(self, book: Book) -> None:
        if not self._stores:
            for count in (self._sizes.few, self._sizes.many):
                parked = Parked(await open_store(f"sqlite://{self._folder / str(count)}.db"), count)
                self._stores.append(parked)
                await parked.seed()
        for name, work in WORK.items():
            few, many = [statistics.median(each) for each in await self._in_turn(work)]
            book.note(SECTION, f"{name}, {self._sizes.few:,} parked", few * 1e6, "us")
            ratio, to = many / few, f"x {self._sizes.few:,} parked"
            book.note(SECTION, f"{name}, {self._sizes.many:,} parked", many * 1e6, "us", ratio=ratio, to=to, bound=FLAT)

    async def close(self) -> None:
        for parked in self._stores:
            await parked.store.close()

    async def _in_turn(self, work: Callable[[Parked], Awaitable[None]]) -> list[list[float]]:
        """Processor seconds of each go, one beside the few, one beside the many."""
        for parked in self._stores:
            await work(parked)  # what is read and opened once
        taken: list[list[float]] = [[] for _ in self._stores]
        for _ in range(self._sizes.claims):
            for parked, mine in zip(self._stores, taken, strict=True):
                began = time.process_time()
                await work(parked)
                mine.append(time.process_time() - began)
        return taken
