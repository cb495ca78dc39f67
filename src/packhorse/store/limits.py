"""The part of a store that limits what starts, and gives shares of a queue their turns.

What holds a key of a limit is tied to the leases of tasks, and what a rate counts is a log of starts: no counter could
drift. A task that may not start is parked under the first of its keys that is full, where no claim looks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from msgspec import Struct

from packhorse.core.models import TaskId

HOLDERS = 20
"""Holders that a state names at most."""
MOST_PARKED = 1_000
"""Parked tasks of a key that are counted at most."""


class Holder(Struct, frozen=True):
    """A task whose lease is counted under a key."""

    job_id: str
    task: TaskId
    worker: str
    since: float
    """When it started, by the store's clock."""


class LimitState(Struct, frozen=True):
    """One key of a limit as it was at one moment."""

    key: str
    most: int | None
    """What an operator has set for its name; None: each task goes by its own plan."""
    used: int
    """Tasks that hold it now; of a rate, starts that are still within the window."""
    holders: tuple[Holder, ...]
    """Longest first, at most `HOLDERS`; none for a rate."""
    parked: int
    """Tasks that wait for it, counted no further than `MOST_PARKED`."""
    free_at: float | None
    """When the oldest start leaves the window of a rate; None if there is none, and for what counts leases."""


class Limits(Protocol):
    """What operators set and see. The rest is part of `commit` and `claim`:

    - A task that has limits starts only in a step that has counted them: `used < most` for each, by the value in force,
      which is the operator's, or else the plan's. Two steps never count the same room. What counts leases is free again
      in the step that ends the lease, by the worker or the reaper. A rate counts starts in the last ``window`` seconds,
      both ends included, by the store's clock. Starts in the future, left by a clock that was ahead, count as of now.
    - ``claim`` passes tasks that may not start, and parks them: they are not `ready`, and later claims do not look at
      them. A task that becomes due while one of its keys is full may be parked at once.
    - Nothing waits while there is room: when a lease ends, when a parked or woken task is taken back, when a limit is
      raised, and when time frees a rate, as many parked tasks of each queue and kind as there is room for are ready for
      the next claim, most urgent first; in a fair queue, in the order of turns. A woken task that finds another of its
      keys full is parked there, and the next one is woken in its place. For time, the next claim sees to it.
    - A fair queue orders shares by virtual time. Each start of a task costs its share ``Share.cost``, and the share
      whose next start ends first in virtual time is next; of equal ones, the one whose name is first. A share that
      becomes active begins at the time of the queue, so that idling earns no credit. The time of a share is one for all
      kinds of a queue. In a share, the smallest rank goes first, then the oldest job.
    - Between tasks with and without a share, the one of higher priority goes first, then that of the older job; aging
      counts as priority 0 there.
    """

    async def set_limit(self, name: str, most: int | None) -> None:
        """Replace the number of every limit of this name, now and for all jobs; None: that of each plan again.

        0 stops what the limit applies to. When this returns, no later start goes by the old value. Tasks that run, run
        on.
        """

    async def limit_states(
        self, keys: Sequence[str] | None = None, *, name: str = "", after: str = "", limit: int = 100
    ) -> list[LimitState]:
        """The states of these keys, in their order; an unused key has a state, too.

        Without keys: of those that hold or have counted something, or have parked tasks, in the order of their bytes:
        of one limit if its ``name`` is given, behind the key ``after``, at most ``limit``. Reads no other keys.
        """
