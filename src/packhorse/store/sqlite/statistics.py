"""Counts over time, and of the jobs there are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping

import apsw

from packhorse.core.models import TaskId
from packhorse.core.plan import Status
from packhorse.store import statistics
from packhorse.store.statistics import KEPT, MOST_PAIRS, MOST_RANKS, Counts, Head, Tally

ADD = """
INSERT INTO tallies (step, at, queue, pipeline, name, count) VALUES (?, ?, ?, ?, ?, ?)
ON CONFLICT DO UPDATE SET count = count + excluded.count
"""
COUNTS = """
SELECT at, pipeline, queue, name, count FROM tallies
WHERE step = ? AND at >= ? AND (?3 IS NULL OR queue = ?3) AND (?4 IS NULL OR pipeline = ?4) ORDER BY at
"""
HEAD = """
SELECT rank, job_id, stage, element FROM ready WHERE queue = ? AND kind = ? AND rank > ?
ORDER BY rank, job_id, stage, element LIMIT 1
"""
PAIR = "SELECT tenant, pipeline FROM jobs WHERE (tenant, pipeline) > (?, ?) ORDER BY tenant, pipeline LIMIT 1"
COUNT = "SELECT count(*) FROM (SELECT 1 FROM jobs WHERE tenant = ? AND pipeline = ? AND status = ? LIMIT ?)"


def tally(db: apsw.Connection, counts: Mapping[Tally, int]) -> None:
    for each, count in counts.items():
        db.execute(ADD, (each.step, each.at, each.queue, each.pipeline, each.name, count))


def tallied(
    db: apsw.Connection, step: int, at: int, queue: str | None, pipeline: str | None
) -> list[tuple[Tally, int]]:
    found = db.execute(COUNTS, (step, at, queue, pipeline))
    return [(Tally(step, int(at), str(of), str(name), str(what)), int(n)) for at, of, name, what, n in found]


def heads(db: apsw.Connection, kinds: Mapping[str, Collection[str]]) -> list[Head]:
    return [head for queue, names in kinds.items() for kind in names for head in _heads(db, queue, kind)]


def _heads(db: apsw.Connection, queue: str, kind: str) -> Iterator[Head]:
    above = -(2**62)
    for _ in range(MOST_RANKS):
        row = db.execute(HEAD, (queue, kind, above)).fetchone()
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
                row = db.execute(COUNT, (*pair, status.value, left)).fetchone()
                assert row is not None
                found[status.value] += int(row[0])
        if number == MOST_PAIRS:
            return statistics.capped(found, most, is_all=False)
    return statistics.capped(found, most, is_all=True)


def _pairs(db: apsw.Connection) -> Iterator[tuple[str, str]]:
    pair = ("", "")
    while (row := db.execute(PAIR, pair).fetchone()) is not None:
        pair = (str(row[0]), str(row[1]))
        yield pair


def trim(db: apsw.Connection, now: float) -> None:
    for step, kept in KEPT.items():
        db.execute("DELETE FROM tallies WHERE step = ? AND at < ?", (step, now - kept - step))
