"""What is going to happen: stages and their graph, fixed when a job is submitted. All frozen; decides nothing."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from enum import StrEnum
from functools import cached_property
from typing import Any, Literal

import msgspec
from msgspec import Struct, field
from msgspec.structs import replace

from packhorse.errors import DefinitionError

Path = tuple[str, ...]
"""A place inside a JSON value: the names that lead there, `json.ANY` for every element."""


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

DEFAULT_KEEP = 7 * 86_400.0
FILLABLE = ("deadline", "pending", "revive")
"""What a pipeline may leave to the deployment, besides how long its jobs are kept."""
CACHE = "filled"


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
    """Seconds before the first, doubling up to `failures.MAX_REVIVE_DELAY`."""
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


def fingerprint(value: Any) -> str:
    """The same for equal values, in every process: keys sorted, then hashed."""
    data = msgspec.json.encode(value, order="sorted")
    return hashlib.sha256(data).hexdigest()[:32]


def purge_at(plan: Plan, status: Status, ended_at: float) -> float:
    """When record, indexes and objects go together: per status if the plan says so, else after a week."""
    return ended_at + plan.keep.get(status, DEFAULT_KEEP)


def keep_periods(plan: Plan) -> dict[Status, float]:
    """Seconds that a job of this plan is kept, for each way it may end."""
    return {status: plan.keep.get(status, DEFAULT_KEEP) for status in sorted(TERMINAL)}


def fill_keep(plan: Plan, defaults: Defaults) -> dict[Status, float]:
    """What the plan says, per status; where it says nothing, the deployment."""
    said = {} if "keep" in plan.unset else plan.keep
    return {status: said.get(status, defaults.kept.get(status, defaults.keep)) for status in sorted(TERMINAL)}


def check_plan(plan: Plan) -> None:
    """Refuse a plan that could not run: doubled or unknown names, a stage before what it needs, a bad pairing."""
    seen: dict[str, StagePlan] = {}
    for stage in plan.stages:
        if stage.name in seen:
            raise DefinitionError(f"Pipeline {plan.pipeline!r} has two stages named {stage.name!r}.")
        for need in stage.needs:
            _check_need(plan.pipeline, stage, need.stage, need.how, seen)
        if sum(need.how == "each" for need in stage.needs) > 1:
            raise DefinitionError(f"Stage {stage.name!r} has two each(...) parameters; a stage runs over one list.")
        seen[stage.name] = stage
    if not plan.stages:
        raise DefinitionError(f"Pipeline {plan.pipeline!r} has no stages.")
    for name, called in plan.outputs.items():
        if called not in seen:
            raise DefinitionError(
                f"Pipeline {plan.pipeline!r} has outputs={{{name!r}: {called!r}}}, and no stage of that name."
            )


def fill_plan(plan: Plan, defaults: Defaults) -> Plan:
    """The plan with the deployment's word wherever its author left something open.

    Kept with the plan: every admission asks.
    """
    kept: tuple[Defaults, Plan] | None = plan.__dict__.get(CACHE)
    if kept is None or kept[0] != defaults:
        kept = plan.__dict__[CACHE] = (defaults, _fill(plan, defaults))
    return kept[1]


def _fill(plan: Plan, defaults: Defaults) -> Plan:
    stages = tuple(
        replace(stage, **{name: getattr(defaults, name) for name in stage.unset}, unset=()) for stage in plan.stages
    )
    rest: dict[str, Any] = {name: getattr(defaults, name) for name in FILLABLE if name in plan.unset}
    rest["keep"] = fill_keep(plan, defaults)
    bare = replace(plan, stages=stages, unset=(), fingerprint="", **rest)
    return replace(bare, fingerprint=fingerprint(bare))


def _check_need(pipeline: str, stage: StagePlan, needed: str, how: str, seen: Mapping[str, StagePlan]) -> None:
    if needed not in seen:
        raise DefinitionError(
            f"Stage {stage.name!r} of {pipeline!r} needs {needed!r}, which no earlier stage is named."
        )
    runs_over = seen[needed].over is not None
    if how == "needs" and runs_over:
        raise DefinitionError(
            f"Stage {needed!r} runs once per element, so {stage.name!r} must say gather({needed})"
            f" or each(gather({needed}))."
        )
    if how == "gather" and not runs_over:
        raise DefinitionError(f"Stage {needed!r} runs once, so {stage.name!r} must say needs({needed}), not gather.")
