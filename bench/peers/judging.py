"""What the contenders' numbers mean for ours: each against the best peer of the same store and round."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from bench.book import Book, Bound, at_least, at_most
from bench.peers.contenders import Contender, Store
from bench.peers.crashing import Crash
from bench.peers.measuring import Found
from bench.sizes import Sizes

BEST = "x best peer"
SOON = at_most(2.0)
"""Seconds after kill -9 and a restart on the same host."""
IN_TIME = at_most(1.5, of_ratio=True)
"""Leases, where only the lease can tell."""
NAMES: Mapping[Store, str] = {"redis": "Redis", "postgresql": "PostgreSQL", "sqlite": "SQLite"}


class Measure(NamedTuple):
    field: str
    name: str
    unit: str
    bound: Bound | None = None
    """Of ours against the best peer."""


MEASURES = (
    Measure("submit", "submit", "/s"),
    Measure("bulk", "bulk", "/s"),
    Measure("drain", "drain", "/s", at_least(1.0, of_ratio=True)),
    Measure("chains", "3 stages", "/s", at_least(4.0, of_ratio=True)),
    Measure("pick_up_p50", "pick-up p50", "ms", at_most(1.0, of_ratio=True)),
    Measure("pick_up_p99", "p99", "ms"),
    Measure("memory", "RSS", "MiB"),
    Measure("size", "queued", "B/job"),
)


def section_of(store: Store) -> str:
    return f"peers, {NAMES[store]}"


def note_speeds(book: Book, store: Store, found: Mapping[Contender, Found], counted: str) -> None:
    measures = [*MEASURES, Measure("calls", counted, "/job")] if counted else MEASURES
    for measure in measures:
        for contender, each in found.items():
            value = getattr(each, measure.field)
            if value is None:
                continue
            ratio = against_best(measure, contender, found)
            bound = measure.bound if ratio is not None else None
            book.note(
                section_of(store),
                measure.name,
                value,
                measure.unit,
                of=contender.name,
                ratio=ratio,
                to=BEST if bound else "",
                bound=bound,
            )


def against_best(measure: Measure, contender: Contender, found: Mapping[Contender, Found]) -> float | None:
    """None for peers, and where nothing is expected or there is nobody to be compared with."""
    peers = [getattr(each, measure.field) for other, each in found.items() if not other.is_ours]
    if measure.bound is None or not peers or not (contender.is_ours and contender.is_compared):
        return None
    best = max(peers) if measure.bound.kind == "at least" else min(peers)
    return float(getattr(found[contender], measure.field) / best)


def note_crash(book: Book, contender: Contender, crash: Crash, sizes: Sizes) -> None:
    _note_crash(book, contender, contender.name, crash, sizes, SOON)


def note_elsewhere(book: Book, contender: Contender, crash: Crash, sizes: Sizes) -> None:
    _note_crash(book, contender, f"{contender.name}, not restarted", crash, sizes, IN_TIME)


def note_failure(book: Book, contender: Contender) -> None:
    """A measurement that could not be made would otherwise look like one that nobody asked for."""
    bound = at_most(0) if contender.is_ours else None
    book.note(section_of(contender.store), "failed", 1, "times", of=contender.name, bound=bound)


def _note_crash(book: Book, contender: Contender, of: str, crash: Crash, sizes: Sizes, bound: Bound) -> None:
    """Of peers, too; only ours is judged."""
    section = f"{section_of(contender.store)}, kill -9"
    resumed = crash.resumed if crash.resumed is not None else never(sizes)
    rows = (
        ("running", crash.hit, "jobs", None),
        ("finished", crash.finished, "jobs", at_least(sizes.crashed)),
        ("run twice to the end", crash.twice, "jobs", at_most(0)),
        ("all run again after", resumed, "s", bound),
    )
    for name, value, unit, expected in rows:
        if value == never(sizes) and not contender.is_ours:
            continue
        leases = value / sizes.lease if expected is IN_TIME else None
        to = "leases" if expected is IN_TIME else ""
        judged = expected if contender.is_ours else None
        book.note(section, name, value, unit, of=of, ratio=leases, to=to, bound=judged)


def never(sizes: Sizes) -> float:
    """Stands for jobs that did not run again while we watched."""
    return 1000 * sizes.peers_watched
