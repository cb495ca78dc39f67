"""The contract's part about who is well: what workers say of themselves, what they found, and who was lost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from msgspec import Struct, field

from packhorse.core.models import TaskId

LOST_KEPT = 86_400.0
"""Seconds for which a lost worker stays listed."""
MOST_NAMED = 20
"""Tasks of one worker that are named, on its card and when it is lost; the rest is a number."""


class Work(Struct, frozen=True):
    """What a worker has in hand."""

    job_id: str
    task: TaskId
    since: float


class Machine(Struct, frozen=True):
    """The host as a worker on it finds it."""

    at: float
    cpu: float
    """Of all cores together, 0 to 1, since the last look."""
    cores: int
    memory: int
    """Bytes in use."""
    memory_total: int


class WorkerCard(Struct, frozen=True):
    """Who a worker is, so precisely that a neighbour on its host can tell whether it is dead; and how it is."""

    id: str
    host: str
    boot: str
    pid_space: str
    pid: int
    born: float
    """The start time of the process: a pid is used again, a pid with its start time is not."""
    version: str
    queues: Mapping[str, int]
    seen_at: float = 0.0
    scratch: str = ""
    kinds: tuple[str, ...] = ()
    """The stages it has code for; empty for a worker that is too old to say."""
    started_at: float = 0.0
    is_draining: bool = False
    busy: Mapping[str, int] = field(default_factory=dict)
    """Slots in use, by queue."""
    work: tuple[Work, ...] = ()
    """The first few of what runs there, longest first."""
    duties: Mapping[str, float] = field(default_factory=dict)
    """When each of its background roles last did a step without fault."""
    machine: Machine | None = None


class Lost(Struct, frozen=True, omit_defaults=True):
    """A worker that was missed, and what it had in hand then: all of that is given back."""

    id: str
    host: str
    pid: int
    version: str
    seen_at: float
    missed_at: float
    by: str
    """The worker that noticed."""
    tasks: int = 0
    work: tuple[Work, ...] = ()
    """The first few of them."""


class Finding(Struct, frozen=True):
    """One line of the self-check."""

    name: str
    is_ok: bool
    value: str
    meaning: str
    part: str = "settings"
    """What it is about: store, files, workers, duties, queues, host, or how the store is set up."""
    measured_at: float | None = None
    """None for what was looked at just now."""


class Vitals(Protocol):
    async def note(self, findings: Sequence[Finding]) -> None:
        """Keep what was found of each part, in place of what was found before, for those who only read."""

    async def noted(self) -> list[Finding]:
        """What was last found of each part, with when; how old that may be is for the reader to judge."""

    async def miss(self, lost: Lost) -> None:
        """Keep the loss of a worker. Of several who noticed the same silence, the first is kept."""

    async def lost(self) -> list[Lost]:
        """Those missed within a day, the latest first; one that came back since is among them."""
