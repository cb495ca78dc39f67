"""Counters of rates and quotas, in a file of their own beside the store's, and statistics.

A busy server counts at every request. In the store's file each count would wait for a sync of the disk, keep jobs
waiting, and wake every watcher. Here nobody watches, and a power cut may forget the last counts: a crash does not.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path

import apsw

from packhorse.core import json
from packhorse.core.models import TaskId
from packhorse.core.plan import Status
from packhorse.errors import StoreUnavailable
from packhorse.store import counters, sql_files
from packhorse.store.counters import Buckets, Charge, Counts, Head, Spent, Tally
from packhorse.store.sqlite import limits
from packhorse.store.sqlite.commit import usage
from packhorse.store.sqlite.connection import Session, connect
from packhorse.store.sqlite.session import Handle, Writer, read, write

SQL = sql_files.load(__package__, "counters")
TALLIES = sql_files.load(__package__, "statistics")

Kept = dict[counters.Counter, Buckets]


class CounterFile:
    """Opened when something is first counted: most handles never count."""

    def __init__(self, store: Path) -> None:
        self.path = store.with_name(f"{store.name}-counters")
        self._opening = threading.Lock()
        self._writer: Writer | None = None
        self._is_closed = False

    def close(self) -> None:
        with self._opening:
            self._is_closed = True
            if self._writer is not None:
                self._writer.close()

    async def writer(self) -> Writer:
        writer = self._writer
        return writer if writer is not None else await asyncio.to_thread(self._open)

    def _open(self) -> Writer:
        with self._opening:
            if self._is_closed:
                raise StoreUnavailable("The store is closed.")
            if self._writer is None:
                self._writer = Writer(_connect(self.path), lambda _: None)
            return self._writer


def _connect(path: Path) -> Session:
    db = connect(path, synchronous="normal")
    try:
        db.execute(SQL.schema)
    except apsw.Error as error:
        db.close()
        raise StoreUnavailable(f"SQLite cannot open {path}: {error}") from error
    return db


class Counters(Handle):
    def __init__(self, path: Path, clock: Callable[[], float] = time.time) -> None:
        super().__init__(path, clock)
        self._counters = CounterFile(path)

    def _close(self) -> None:
        self._counters.close()
        super()._close()

    async def spend(self, charges: Sequence[Charge]) -> Spent:
        writer = await self._counters.writer()
        return await writer.run(lambda db: _spend(db, charges, self.now()))

    async def refund(self, charges: Sequence[Charge], at: float) -> None:
        writer = await self._counters.writer()
        await writer.run(lambda db: _refund(db, charges, at))

    async def _trim_counters(self) -> None:
        if self._counters.path.exists():
            writer = await self._counters.writer()
            await writer.run(lambda db: db.execute(SQL.trim, (self.now(),)))


def _spend(db: Session, charges: Sequence[Charge], now: float) -> Spent:
    kept = _load(db, charges)
    spent = counters.spend(kept, charges, now)
    if spent.refused is None and any(charge.amount for charge in charges):
        _keep(db, kept)
    return spent


def _refund(db: Session, charges: Sequence[Charge], at: float) -> None:
    kept = _load(db, charges)
    counters.refund(kept, charges, at)
    _keep(db, kept)


def _load(db: Session, charges: Sequence[Charge]) -> Kept:
    found = {each: db.execute(SQL.counter, each).fetchone() for each in counters.counters_of(charges)}
    return {each: json.record(row[0], Buckets) for each, row in found.items() if row is not None}


def _keep(db: Session, kept: Kept) -> None:
    for each, buckets in kept.items():
        db.execute(SQL.keep, (*each, counters.until(each[1], buckets), json.encode(buckets)))


class Statistics(Handle):
    @write
    def tally(self, db: Session, counts: Mapping[Tally, int]) -> None:
        for each, count in counts.items():
            db.execute(TALLIES.add, (each.step, each.at, each.queue, each.pipeline, each.name, count))

    @read
    def list_tallies(
        self, db: Session, step: int, since: float, *, queue: str | None = None, pipeline: str | None = None
    ) -> list[tuple[Tally, int]]:
        found = db.execute(TALLIES.counts, (step, counters.first(step, since, self.now()), queue, pipeline))
        return [(Tally(step, *key), count) for *key, count in found]

    @read
    def heads(self, db: Session, kinds: Mapping[str, Collection[str]]) -> list[Head]:
        return [head for queue, names in kinds.items() for kind in names for head in _heads(db, queue, kind)]

    @read
    def count_by_status(self, db: Session, most: int, *, tenant: str | None = None) -> Counts:
        """Each pair is a range of an index that covers the question; none is walked further than there is to count."""
        if tenant is not None:
            used = usage(db, tenant)
            return Counts(active=used.jobs, bytes=used.bytes)
        found: Counter[str] = Counter()
        for number, pair in enumerate(_pairs(db), 1):
            for status in Status:
                left = most + 1 - found[status.value]
                if left > 0:
                    [count] = db.row(TALLIES.count, (*pair, status.value, left))
                    found[status.value] += count
            if number == counters.MOST_PAIRS:
                return counters.capped(found, most, is_all=False)
        return counters.capped(found, most, is_all=True)

    @write
    def _trim_tallies(self, db: Session) -> None:
        for step, kept in counters.KEPT.items():
            db.execute(TALLIES.trim, (step, self.now() - kept - step))


def _heads(db: Session, queue: str, kind: str) -> Iterator[Head]:
    for job_id, task in limits.first_turns(db, queue, kind, counters.MOST_RANKS):
        yield Head(queue, job_id, task)
    above = -(2**62)
    for _ in range(counters.MOST_RANKS):
        row = db.execute(TALLIES.head, (queue, kind, above)).fetchone()
        if row is None:
            return
        above, job_id, stage, element = row
        yield Head(queue, job_id, TaskId(stage, element))


def _pairs(db: Session) -> Iterator[tuple[str, str]]:
    pair = ("", "")
    while (row := db.execute(TALLIES.pair, pair).fetchone()) is not None:
        pair = row
        yield pair
