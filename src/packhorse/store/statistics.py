"""The contract's part about how it goes: counts over time, readings of queues, and what there is of jobs right now.

They are statistics, not the truth: whoever counts adds up in memory for a few seconds, and takes that along if it is
killed. Nothing is decided by them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple, Protocol

from msgspec import Struct

from packhorse.core.models import TaskId

MINUTE, QUARTER = 60, 900
"""Seconds of the two stretches that everything is counted in."""
KEPT = {MINUTE: 6 * 3600, QUARTER: 72 * 3600}
"""Seconds for which the counts of each are kept: 360 and 288 stretches, so that no plot has to read many more."""
MOST_PAIRS = 1000
"""Tenants' pipelines that are looked at to count jobs, by stores that do not keep the numbers."""
MOST_RANKS = 10
"""Priorities in which the head of a queue is looked for."""


class Tally(NamedTuple):
    """What is counted: so many of ``name`` in the ``step`` seconds that began at ``at``."""

    step: int
    at: int
    pipeline: str
    queue: str
    """Of the stages it is about; empty for whole jobs."""
    name: str
    """An outcome, or a bucket of a histogram."""


class Counts(Struct, frozen=True):
    """The jobs there are, by what has become of them."""

    active: int = 0
    completed: int = 0
    failed: int = 0
    cancelled: int = 0
    capped: tuple[str, ...] = ()
    """Names of those that are more than was counted."""


class Head(NamedTuple):
    """What is claimed next of a queue, a kind and a priority."""

    queue: str
    job_id: str
    task: TaskId


class Statistics(Protocol):
    async def tally(self, counts: Mapping[Tally, int]) -> None:
        """Add to what is there: what two processes count at one time is the sum of both."""

    async def tallied(
        self, step: int, since: float, *, queue: str | None = None, pipeline: str | None = None
    ) -> list[tuple[Tally, int]]:
        """The counts of stretches that end after ``since``, oldest first; of all queues and pipelines, or of one."""

    async def heads(self, kinds: Mapping[str, Collection[str]]) -> list[Head]:
        """For each queue, kind and priority the foremost entry that is ready: the one of the oldest job."""

    async def counted(self, most: int) -> Counts:
        """How many jobs there are, of all tenants. Never walks all of them: what costs to count ends at ``most``."""


def first(step: int, since: float, now: float) -> int:
    """The beginning of the first stretch that ends after ``since`` and is still kept."""
    return int(max(since, now - KEPT[step], 0.0) // step) * step


def capped(found: Mapping[str, int], most: int, *, is_all: bool) -> Counts:
    """From counts by status that may be one more than ``most``, of all jobs there are or of some."""
    by_name = {
        "active": found.get("pending", 0) + found.get("running", 0),
        **{name: found.get(name, 0) for name in ("completed", "failed", "cancelled")},
    }
    more = tuple(name for name, count in by_name.items() if count > most or not is_all)
    return Counts(**{name: min(count, most) for name, count in by_name.items()}, capped=more)
