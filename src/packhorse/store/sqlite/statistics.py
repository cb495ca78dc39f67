"""Counts over time, and of the jobs there are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping

import apsw

from packhorse.core.models import TaskId
from packhorse.core.plan import Status
from packhorse.store import counters, sql_files
from packhorse.store.counters import KEPT, MOST_PAIRS, MOST_RANKS, Counts, Head, Tally

SQL = sql_files.load(__package__, "statistics")


def tally(db: apsw.Connection, counts: Mapping[Tally, int]) -> None:
    for each, count in counts.items():
        db.execute(SQL.add, (each.step, each.at, each.queue, each.pipeline, each.name, count))


def tallied(
    db: apsw.Connection, step: int, at: int, queue: str | None, pipeline: str | None
) -> list[tuple[Tally, int]]:
    found = db.execute(SQL.counts, (step, at, queue, pipeline))
    return [(Tally(step, int(at), str(of), str(name), str(what)), int(n)) for at, of, name, what, n in found]


def heads(db: apsw.Connection, kinds: Mapping[str, Collection[str]]) -> list[Head]:
    return [head for queue, names in kinds.items() for kind in names for head in _heads(db, queue, kind)]


def _heads(db: apsw.Connection, queue: str, kind: str) -> Iterator[Head]:
    above = -(2**62)
    for _ in range(MOST_RANKS):
        row = db.execute(SQL.head, (queue, kind, above)).fetchone()
        if row is None:
            return
        above = int(row[0])
        yield Head(queue, str(row[1]), TaskId(str(row[2]), int(row[3])))


def counted(db: apsw.Connection, most: int) -> Counts:
    """Each pair is a range of an index that covers the question; none is walked further than there is to count."""
    found: Counter[str] = Counter()
    for number, pair in enumerate(_pairs(db), 1):
        for status in Status:
            left = most + 1 - found[status.value]
            if left > 0:
                row = db.execute(SQL.count, (*pair, status.value, left)).fetchone()
                assert row is not None
                found[status.value] += int(row[0])
        if number == MOST_PAIRS:
            return counters.capped(found, most, is_all=False)
    return counters.capped(found, most, is_all=True)


def _pairs(db: apsw.Connection) -> Iterator[tuple[str, str]]:
    pair = ("", "")
    while (row := db.execute(SQL.pair, pair).fetchone()) is not None:
        pair = (str(row[0]), str(row[1]))
        yield pair


def trim(db: apsw.Connection, now: float) -> None:
    for step, kept in KEPT.items():
        db.execute(SQL.trim, (step, now - kept - step))
