"""Which faults strike, and when: decided by the seed, one by one, so that a failing run can be replayed with fewer.

To add a fault: a line in `KINDS` with its rate, and a `strike` where it can happen. See CONTRIBUTING.md.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import NamedTuple

KINDS: Mapping[str, float] = {
    # Per call that changes a job. Other calls to the store are many, and little depends on one: see `Network._weight`.
    "store.refused": 0.02,  # the request is lost: nothing happens, and the caller is told so at once
    "store.reply lost": 0.03,  # it happens, and the caller waits in vain for the answer
    "store.late": 0.03,  # it happens after the caller has given up
    "store.slow": 0.02,  # it takes seconds on its way, or the answer does
    "store.twice": 0.01,  # the request is delivered a second time, at once; the first answer counts
    # Per call to the object store.
    "blobs.refused": 0.02,
    "blobs.reply lost": 0.02,
    "blobs.late": 0.02,
    "blobs.slow": 0.02,
    # Per resumption of a task of a worker.
    "worker.killed": 0.0003,
    "worker.stopped": 0.0003,  # for up to three leases; then it goes on
    "worker.drained": 0.0001,  # it is asked to leave, as at a deploy
    "worker.cut off": 0.0002,  # it reaches neither store for a while
    # Per stage that runs.
    "stage.killed": 0.03,
    # Per second.
    "store.frozen": 0.05,  # the server answers nobody for a while
    "clock.host": 0.02,  # the clock of one machine jumps
    "clock.drift": 0.02,  # the server's clock runs faster or slower by a few percent, for a while
    "clock.server": 0.03,  # the server's clock jumps, by up to an hour
    "clock.glitch": 0.02,  # the server's clock is eight days ahead for a moment
    "store.failover": 0.03,  # a replica that lags takes over: what it does not have is lost
}
"""Every fault, and how likely it strikes where it can."""


class Struck(NamedTuple):
    """A fault that has struck."""

    place: str
    """Where it could, by the name of the stream and a number: so a replay can name it."""
    kind: str
    at: float
    """Seconds since the simulation began."""

    def __str__(self) -> str:
        return f"{self.at:8.3f} s  {self.kind} ({self.place})"


class Stream:
    """A row of places at which faults can strike, such as all calls of one machine.

    The places of each are numbered on their own: what is left out of one stream does not move the others.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.count = 0
        self.base = zlib.crc32(name.encode()) << 32


class Faults:
    def __init__(
        self, seed: int, rates: Mapping[str, float], only: Collection[str] | None, now: Callable[[], float]
    ) -> None:
        """``only``: exactly the faults at these places strike. They are those of a run that is replayed."""
        self._seed = seed << 1
        self._rates = rates
        self._only = None if only is None else frozenset(only)
        self._now = now
        self.is_over = False
        self.struck: list[Struck] = []

    def strike(self, stream: Stream, kinds: Sequence[str], weight: float = 1.0) -> tuple[str, float] | None:
        """Which of these faults strikes here, if one does, and how hard, from 0 to 1.

        ``weight``: how much more likely than usual, where much depends on it.
        """
        stream.count += 1
        if self.is_over:
            return None
        base = (self._seed + stream.base + stream.count) * 2
        luck = _mix(base)
        if self._only is not None:
            if f"{stream.name}:{stream.count}" not in self._only:
                return None
            luck %= weight * sum(self._rates.get(kind, 0.0) for kind in kinds) or 1.0
        for kind in kinds:
            luck -= weight * self._rates.get(kind, 0.0)
            if luck < 0.0:
                self.struck.append(Struck(f"{stream.name}:{stream.count}", kind, self._now()))
                return kind, _mix(base + 1)
        return None


def _mix(value: int) -> float:
    """A number from 0 to 1 that looks random: splitmix64."""
    value = (value * 0x9E3779B97F4A7C15) & 0xFFFFFFFFFFFFFFFF
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & 0xFFFFFFFFFFFFFFFF
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & 0xFFFFFFFFFFFFFFFF
    return (value ^ (value >> 31)) / 2**64
