"""The plan of a job: its stages and their graph, fixed at submit; checks, deployment defaults and retention."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from enum import StrEnum
from functools import cached_property
from typing import Any, Literal

import msgspec
from msgspec import Struct, field
from msgspec.structs import replace

from packhorse.core.conditions import Condition
from packhorse.core.limits import Fair as Fair
from packhorse.core.limits import Limit as Limit
from packhorse.errors import DefinitionError

OnConflict = Literal["refuse", "queue", "replace"]
Path = tuple[str, ...]  # a path into a JSON value: keys, or `json.ANY` for every element


class Status(StrEnum):
    """Of a job."""

    PENDING = "pending"
    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"

    __hash__ = str.__hash__
    """Faster than Enum's own hash, which is a Python call at every set lookup."""

    @property
    def is_terminal(self) -> bool:
        return self in TERMINAL


class TaskStatus(StrEnum):
    """Of a stage, or of one element of it."""

    PENDING = "pending"
    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"  # its run was stopped after it had started
    SKIPPED = "skipped"  # on purpose, or because its run was stopped before it started

    __hash__ = str.__hash__

    @property
    def is_terminal(self) -> bool:
        return self is not TaskStatus.PENDING and self is not TaskStatus.RUNNING


TERMINAL = frozenset({Status.COMPLETED, Status.FAILED, Status.CANCELLED})

RESULT_NAME = "{source}-{name}"
DEFAULT_KEEP = 7 * 86_400.0
FILLABLE = ("deadline", "pending", "revive")  # pipeline options that the deployment fills in if unset, besides `keep`
CACHE = "filled"
MAX_REVIVE_DELAY = 86_400.0
SLIP = 1e-9  # 0.07 of 100 elements is 7.000000000000001, and 0.29 of 100 is 28.999999999999996: both are meant whole
MAX_DOUBLINGS = 32  # the cap is reached long before; more would overflow a float


# The plan, fixed at submit and shared by all jobs of one definition.


class Need(Struct, frozen=True, array_like=True):
    """A parameter of a stage that takes an earlier stage's result."""

    parameter: str
    stage: str
    how: Literal["needs", "each", "gather"]


class Backoff(Struct, frozen=True, array_like=True):
    """Seconds before the first retry, doubled for each further one up to the cap."""

    base: float = 1.0
    cap: float = 60.0

    def delay(self, attempt: int, luck: float) -> float:
        """Seconds to wait after the failure of ``attempt``, spread by ``luck`` in [0, 1).

        The spread keeps tasks that failed together from retrying together.
        """
        whole = min(self.cap, self.base * 2.0 ** min(attempt - 1, MAX_DOUBLINGS))
        return whole * (0.5 + luck / 2)


class Revive(Struct, frozen=True, array_like=True):
    """Which failed runs are retried automatically, how often, and the budget per fingerprint."""

    codes: tuple[str, ...] = ()  # Failure codes to retry. Empty: none.
    times: int = 3  # Maximum automatic retries per job. A manual retry resets the count.
    backoff: float = 300.0
    """Seconds before the first automatic retry, doubled each time up to `MAX_REVIVE_DELAY`."""
    budget: int = 100  # maximum automatic retries per fingerprint within `per` seconds
    per: float = 3_600.0

    def delay(self, revived: int) -> float:
        """Seconds before the next automatic retry of a job that has had ``revived`` of them."""
        return min(MAX_REVIVE_DELAY, self.backoff * 2.0 ** min(revived, MAX_DOUBLINGS))


class Tolerance(Struct, frozen=True, array_like=True):
    """How many elements of a stage may fail permanently without failing the run: a number, or a share of them."""

    most: int = 0
    share: float = 0.0

    def bound(self, elements: int) -> int:
        return max(self.most, int(self.share * elements + SLIP))


class AlertRate(Struct, frozen=True, array_like=True):
    """Alert when ``failures`` runs have failed within ``per`` seconds. 1 alerts to every failure, with its record."""

    failures: int = 1
    per: float = 3_600.0


class DownloadLimits(Struct, frozen=True, omit_defaults=True):
    """How much of a pipeline's results may be downloaded. None: as the settings say. 0: unlimited."""

    per: Literal["user", "key"] | None = None
    """Whom it is counted for: the job's user, or the key. A token may use only a share of either."""
    at_once: int | None = None
    per_10s: int | None = None
    per_minute: int | None = None
    bytes_per_hour: int | None = None
    bytes_per_day: int | None = None


class StagePlan(Struct, frozen=True, omit_defaults=True, dict=True):
    name: str
    queue: str = "default"
    kind: str = ""
    """Identifies the code that runs it: pipeline, stage and parameter wiring. A worker claims the kinds it has."""
    needs: tuple[Need, ...] = ()
    retries: int = 3
    backoff: Backoff = Backoff()
    timeout: float = 600.0
    stall: float | None = None
    memory: int | None = None
    retry_on: tuple[Literal["timeout", "memory"], ...] = ()
    """Exceeded limits after which the stage is retried. An attempt that exceeds another limit is the last."""
    weight: float = 1.0
    is_async: bool = False
    elements: int = 1000  # maximum elements of an `each` stage
    when: Condition | None = None
    """On the parameters. If they do not meet it, the stage is skipped; decided at submit."""
    optional: tuple[str, ...] = ()  # parameters that take None if the stage that they need was skipped
    tolerate: Tolerance | None = None  # failed elements that do not fail the run; None: any fails it
    limits: tuple[Limit, ...] = ()
    """Those of the pipeline and its own: each bounds what starts."""
    fair: Fair | None = None  # whose turns its tasks take; None: they go by priority and age
    unset: tuple[str, ...] = ()
    """Options its author did not set; filled with the deployment's defaults at submit."""

    @cached_property
    def is_regulated(self) -> bool:
        """Whether more than priority and age decides when its tasks start."""
        return bool(self.limits) or self.fair is not None

    @cached_property
    def over(self) -> str | None:
        """For an ``each`` stage, the stage whose result it runs over."""
        return next((need.stage for need in self.needs if need.how == "each"), None)


class Plan(Struct, frozen=True, omit_defaults=True, dict=True):
    """The graph of a pipeline. Each stage comes after the stages it needs."""

    pipeline: str
    stages: tuple[StagePlan, ...]
    deadline: float = 86_400.0
    pending: float = 86_400.0  # seconds after which a run that no worker has started fails
    run_timeout: float | None = None  # seconds after its first start at which a run fails; None: only the deadline
    keep: Mapping[Status, float] = field(default_factory=dict)
    """Retention of ended jobs in seconds, per status."""
    revive: Revive = Revive()
    slot: str | None = None  # A user may have one active job per slot. None: any number.
    on_conflict: OnConflict = "refuse"
    """What a submit does while another job holds the slot: it is refused, waits, or has that job cancelled."""
    secrets: tuple[Path, ...] = ()  # paths of secret parameters: encrypted at rest, never shown
    lists: tuple[str, ...] = ()  # parameters that take several files
    primary: str = ""  # the parameter whose file the job is named after; empty: the file that came first
    search: tuple[str, ...] = ()  # parameters whose values its jobs are found by
    publish: str = ""
    """Path pattern under which the files of completed jobs are also published. Empty: not published. With a slash in
    front, which the deployment adds: in the destination of published files."""
    statuses: Mapping[Status, str] = field(default_factory=dict)  # the app's own names for statuses
    stage_statuses: Mapping[str, str] = field(default_factory=dict)  # and for a job while one of these stages runs
    outputs: Mapping[str, str] = field(default_factory=dict)
    """Stage by the app's own name for its files."""
    has_output: bool = False  # whether its jobs have them as `output` too, not only in their alias
    result_name: str = RESULT_NAME  # pattern of the file name with which the result is downloaded
    alerts: AlertRate | None = None  # which failures people are alerted to; None: to each new kind
    downloads: DownloadLimits | None = None  # None: as the settings say, counted together with other pipelines
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
        """For each stage, the stages that need only its result and its own inputs: the same worker can run them.

        Element stages have none: which element is the last one is known only at the commit.
        """
        return {stage.name: tuple(self._heirs(stage)) if stage.over is None else () for stage in self.stages}

    def _heirs(self, stage: StagePlan) -> list[StagePlan]:
        known = {stage.name, *(need.stage for need in stage.needs)}
        after = [self.stages[i] for i in self.followers[stage.name]]
        return [each for each in after if each.over is None and all(need.stage in known for need in each.needs)]

    @cached_property
    def has_conditions(self) -> bool:
        return any(stage.when is not None for stage in self.stages)

    @cached_property
    def is_regulated(self) -> bool:
        return any(stage.is_regulated for stage in self.stages)

    @cached_property
    def needs_current_reader(self) -> bool:
        """Whether workers of the version before must leave its jobs: they know no limits and no line of a slot."""
        return self.is_regulated or self.on_conflict != "refuse"

    @cached_property
    def sinks(self) -> tuple[StagePlan, ...]:
        return tuple(stage for stage in self.stages if not self.followers[stage.name])

    def stage(self, name: str) -> StagePlan:
        return self.stages[self.index[name]]


class Definition(Struct, frozen=True):
    """A pipeline as published by a worker: all that a server needs to validate and admit a job."""

    app: str
    pipeline: str
    plan: bytes
    schema: bytes
    """JSON Schema of the parameters, files as ``{"type": "string", "format": "binary"}``."""
    fingerprint: str
    published_at: float = 0.0
    description: str = ""
    is_default: bool = False  # whether a submit to its app that names no pipeline means this one


class Defaults(Struct, frozen=True):
    """The deployment's values for options that a pipeline leaves unset."""

    retries: int = 3
    backoff: Backoff = Backoff()
    timeout: float = 600.0
    deadline: float = 86_400.0
    keep: float = 604_800.0  # retention for statuses that are not in `kept`
    kept: Mapping[Status, float] = field(default_factory=dict)
    pending: float = 86_400.0
    revive: Revive = Revive()
    has_destination: bool = False  # published files go to a destination of their own


def fingerprint(value: Any) -> str:
    """A hash that is equal for equal values in every process."""
    data = msgspec.json.encode(value, order="sorted")
    return hashlib.sha256(data).hexdigest()[:32]


def purge_at(plan: Plan, status: Status, ended_at: float) -> float:
    """When the job and its objects are deleted: per status if the plan sets it, else after a week."""
    return ended_at + plan.keep.get(status, DEFAULT_KEEP)


def keep_periods(plan: Plan) -> dict[Status, float]:
    """Retention in seconds for each terminal status."""
    return {status: plan.keep.get(status, DEFAULT_KEEP) for status in sorted(TERMINAL)}


def fill_keep(plan: Plan, defaults: Defaults) -> dict[Status, float]:
    """Retention per status: the plan's value, else the deployment's."""
    said = {} if "keep" in plan.unset else plan.keep
    return {status: said.get(status, defaults.kept.get(status, defaults.keep)) for status in sorted(TERMINAL)}


def check_plan(plan: Plan) -> None:
    """Raise DefinitionError for a plan that cannot run."""
    seen: dict[str, StagePlan] = {}
    for stage in plan.stages:
        if stage.name in seen:
            raise DefinitionError(f"Pipeline {plan.pipeline!r} has two stages named {stage.name!r}.")
        for need in stage.needs:
            _check_need(plan.pipeline, stage, need, seen)
        if sum(need.how == "each" for need in stage.needs) > 1:
            raise DefinitionError(f"Stage {stage.name!r} has two each(...) parameters; it can run over one list only.")
        seen[stage.name] = stage
        names = [limit.name for limit in stage.limits]
        if twice := [name for name in names if names.count(name) > 1]:
            raise DefinitionError(f"Stage {stage.name!r} of {plan.pipeline!r} has two limits named {twice[0]!r}.")
        if stage.tolerate is not None and stage.over is None:
            raise DefinitionError(
                f"Stage {stage.name!r} has tolerate=, but no each(...) parameter: it has no elements to leave out."
            )
    if not plan.stages:
        raise DefinitionError(f"Pipeline {plan.pipeline!r} has no stages.")
    for name, called in plan.outputs.items():
        if called not in seen:
            raise DefinitionError(
                f"Pipeline {plan.pipeline!r} has outputs={{{name!r}: {called!r}}}, but no stage {called!r}."
            )


def fill_plan(plan: Plan, defaults: Defaults) -> Plan:
    """The plan with the deployment's defaults for unset options. Cached on the plan, because every submit needs it."""
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
    if plan.publish and defaults.has_destination:
        rest["publish"] = f"/{plan.publish}"
    bare = replace(plan, stages=stages, unset=(), fingerprint="", **rest)
    return replace(bare, fingerprint=fingerprint(bare))


def _check_need(pipeline: str, stage: StagePlan, need: Need, seen: Mapping[str, StagePlan]) -> None:
    needed = need.stage
    if needed not in seen:
        raise DefinitionError(
            f"Stage {stage.name!r} of {pipeline!r} needs {needed!r}, but no earlier stage has that name."
        )
    runs_over = seen[needed].over is not None
    if need.how == "needs" and runs_over:
        raise DefinitionError(
            f"Stage {needed!r} runs once per element, so {stage.name!r} must use gather({needed})"
            f" or each(gather({needed}))."
        )
    if need.how == "gather" and not runs_over:
        raise DefinitionError(f"Stage {needed!r} runs once, so {stage.name!r} must use needs({needed}), not gather.")
