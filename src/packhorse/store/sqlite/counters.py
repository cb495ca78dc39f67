"""Rate limits and quotas: counters, in a file of their own beside the store's.

A busy server counts at every request. In the store's file each count would wait for a sync of the disk, keep jobs
waiting, and wake every watcher. Here nobody watches, and a power cut may forget the last counts: a crash does not.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from pathlib import Path

import apsw

from packhorse.core import json
from packhorse.errors import StoreUnavailable
from packhorse.store import counters
from packhorse.store.base import Charge, Spent
from packhorse.store.counters import Buckets, Counter
from packhorse.store.sqlite.connection import Session, connect
from packhorse.store.sqlite.writer import Writer

# A row per counter: what was spent, by bucket. Of no use to anybody after `until`.
SCHEMA = """
CREATE TABLE IF NOT EXISTS counters (
    name TEXT NOT NULL,
    window REAL NOT NULL,
    until REAL NOT NULL,
    buckets BLOB NOT NULL,
    PRIMARY KEY (name, window)
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS counters_by_end ON counters (until);
"""

KEEP = """
INSERT INTO counters VALUES (?, ?, ?, ?)
ON CONFLICT DO UPDATE SET until = excluded.until, buckets = excluded.buckets
"""

Kept = dict[Counter, Buckets]


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
        db.execute(SCHEMA)
    except apsw.Error as error:
        db.close()
        raise StoreUnavailable(f"SQLite cannot open {path}: {error}") from error
    return db


def spend(db: apsw.Connection, charges: Sequence[Charge], now: float) -> Spent:
    kept = _counted(db, charges)
    spent = counters.spend(kept, charges, now)
    if spent.refused is None and any(charge.amount for charge in charges):
        _keep(db, kept)
    return spent


def refund(db: apsw.Connection, charges: Sequence[Charge], at: float) -> None:
    kept = _counted(db, charges)
    counters.refund(kept, charges, at)
    _keep(db, kept)


def trim(db: apsw.Connection, now: float) -> None:
    db.execute("DELETE FROM counters WHERE until <= ?", (now,))


def _counted(db: apsw.Connection, charges: Sequence[Charge]) -> Kept:
    query = "SELECT buckets FROM counters WHERE name = ? AND window = ?"
    found = {each: db.execute(query, each).fetchone() for each in counters.counters_of(charges)}
    return {each: json.record(row[0], Buckets) for each, row in found.items() if row is not None}


def _keep(db: apsw.Connection, kept: Kept) -> None:
    for each, buckets in kept.items():
        db.execute(KEEP, (*each, counters.until(each[1], buckets), json.encode(buckets)))
