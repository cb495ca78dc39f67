"""What is going to happen: stages and their graph, fixed when a job is submitted. All frozen; decides nothing."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from functools import cached_property
from typing import Literal

from msgspec import Struct, field

from packhorse.core.paths import Path


class Status(StrEnum):
    PENDING = "pending"
    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"

    __hash__ = str.__hash__
    """That of the text it equals. Enum's own is a call of Python's, at every look into a set of statuses."""

    @property
    def is_terminal(self) -> bool:
        return self in TERMINAL


TERMINAL = frozenset({Status.COMPLETED, Status.FAILED, Status.CANCELLED})


# The plan: what was going to happen, fixed when the job was submitted and shared by all jobs of one definition.


class Need(Struct, frozen=True, array_like=True):
    """One parameter of a stage that an earlier stage fills."""

    parameter: str
    stage: str
    how: Literal["needs", "each", "gather"]


class Backoff(Struct, frozen=True, array_like=True):
    """Seconds before the second attempt, doubling up to the cap."""

    base: float = 1.0
    cap: float = 60.0


class Revive(Struct, frozen=True, array_like=True):
    """Which failed runs are begun again by themselves, how often, and how many of a kind in what time."""

    codes: tuple[str, ...] = ()
    """None: nothing is."""
    times: int = 3
    """Of one job, until a person retries it."""
    backoff: float = 300.0
    """Seconds before the first, doubling up to `LONGEST_REVIVAL`."""
    budget: int = 100
    """Revivals of failures of one fingerprint in so many seconds."""
    per: float = 3_600.0


class StagePlan(Struct, frozen=True, omit_defaults=True, dict=True):
    name: str
    queue: str = "default"
    kind: str = ""
    """Names the code that can run it: pipeline, stage and the shape of its parameters. A worker claims kinds it has."""
    needs: tuple[Need, ...] = ()
    retries: int = 3
    backoff: Backoff = Backoff()
    timeout: float = 600.0
    stall: float | None = None
    memory: int | None = None
    weight: float = 1.0
    is_async: bool = False
    elements: int = 1000
    """How many elements an ``each`` stage may have."""
    unset: tuple[str, ...] = ()
    """What its author left to the deployment; filled in when a job is admitted."""

    @cached_property
    def over(self) -> str | None:
        """The stage whose list result this one runs once per element of, if it does."""
        return next((need.stage for need in self.needs if need.how == "each"), None)


class Plan(Struct, frozen=True, omit_defaults=True, dict=True):
    """The graph of a pipeline, stages in an order in which each follows what it needs."""

    pipeline: str
    stages: tuple[StagePlan, ...]
    deadline: float = 86_400.0
    pending: float = 86_400.0
    """Seconds after which a run that was never started fails."""
    keep: Mapping[Status, float] = field(default_factory=dict)
    """Seconds a job is kept after it ended, per status."""
    revive: Revive = Revive()
    slot: str | None = None
    """Jobs of one user that name the same slot are admitted one at a time; None admits any number."""
    secrets: tuple[Path, ...] = ()
    """Where in the parameters there are secrets: encrypted at rest, and never shown."""
    lists: tuple[str, ...] = ()
    """Parameters that take several files."""
    publish: str = ""
    """A pattern of the path under which the files of a completed job are found as well; empty: nowhere."""
    statuses: Mapping[Status, str] = field(default_factory=dict)
    """What the app's own users call a status, where they call it otherwise than we do."""
    outputs: Mapping[str, str] = field(default_factory=dict)
    """By what they call the files of a stage, the stage."""
    unset: tuple[str, ...] = ()
    fingerprint: str = ""

    @cached_property
    def index(self) -> Mapping[str, int]:
        return {stage.name: i for i, stage in enumerate(self.stages)}

    @cached_property
    def followers(self) -> Mapping[str, tuple[int, ...]]:
        """For each stage, the stages that directly need it."""
        return {
            stage.name: tuple(i for i, s in enumerate(self.stages) if any(n.stage == stage.name for n in s.needs))
            for stage in self.stages
        }

    @cached_property
    def heirs(self) -> Mapping[str, tuple[StagePlan, ...]]:
        """For each stage, those that need nothing but its result and what it needed itself.

        Elements have none: which of them is the last is not known before the commit, and what follows needs all.
        """
        return {stage.name: tuple(self._heirs(stage)) if stage.over is None else () for stage in self.stages}

    def _heirs(self, stage: StagePlan) -> list[StagePlan]:
        known = {stage.name, *(need.stage for need in stage.needs)}
        after = [self.stages[i] for i in self.followers[stage.name]]
        return [each for each in after if each.over is None and all(need.stage in known for need in each.needs)]

    @cached_property
    def sinks(self) -> tuple[StagePlan, ...]:
        return tuple(stage for stage in self.stages if not self.followers[stage.name])

    def stage(self, name: str) -> StagePlan:
        return self.stages[self.index[name]]


class Definition(Struct, frozen=True):
    """A pipeline as a worker published it: all that an API host needs to validate and admit a job."""

    app: str
    pipeline: str
    plan: bytes
    schema: bytes
    """JSON Schema of the parameters, files as ``{"type": "string", "format": "binary"}``."""
    fingerprint: str
    published_at: float = 0.0
    description: str = ""


class Defaults(Struct, frozen=True):
    """What a deployment says where a pipeline does not."""

    retries: int = 3
    backoff: Backoff = Backoff()
    timeout: float = 600.0
    deadline: float = 86_400.0
    keep: float = 604_800.0
    """Of what `kept` says nothing about."""
    kept: Mapping[Status, float] = field(default_factory=dict)
    pending: float = 86_400.0
    revive: Revive = Revive()
