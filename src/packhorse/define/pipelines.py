"""Pipelines: a parameter type and the stages that its jobs run."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Concatenate, Generic, ParamSpec, Protocol, TypeVar, Unpack, overload

from msgspec.structs import replace

from packhorse.core import json
from packhorse.core.conditions import Condition
from packhorse.core.limits import PARAMETER, Limit
from packhorse.core.plan import Definition, Plan, StagePlan, Status, check_plan, fingerprint
from packhorse.define.introspection import Scope, caller, check_name, definition_error, hint, place_of, require_function
from packhorse.define.options import (
    PIPELINE_DEFAULTS,
    START_OPTIONS,
    ElementOptions,
    PipelineOptions,
    StageOptions,
    check_names,
    fair_of,
    limits_of,
    pipeline_limits,
    sort_limits,
    unset_options,
)
from packhorse.define.params import Schema
from packhorse.define.schemas import fields_of
from packhorse.define.stages import Context, Stage, TolerantStage, build_stage, markers_of
from packhorse.define.submit import LOCAL, JobHandle, SubmitOptions, Submitter, options_from
from packhorse.define.validation import list_some
from packhorse.errors import DefinitionError, InvalidInput, PackhorseError

P = TypeVar("P")
Q = ParamSpec("Q")
R = TypeVar("R")

RESERVED = frozenset({"pipeline", "user_id", "parameters", "priority", "delay", "at", "debounce", "metadata"})
"""Field names of the submit form itself, which parameters cannot use."""


class Pipeline(Generic[P]):
    """Created by ``app.pipeline(...)``. Add stages with the ``stage`` decorator, each after the ones it needs."""

    def __init__(
        self, name: str, params: type[P], *, place: str | None = None, **options: Unpack[PipelineOptions]
    ) -> None:
        self.place = place or caller()[0]
        self.params = params
        self.stages: dict[str, Stage[..., Any]] = {}
        self.submitter: Submitter | None = None
        """Set by the app that the pipeline belongs to."""
        self.statuses: Mapping[Status, str] = {}
        """Set by the app: its own names for statuses."""
        self.stage_statuses: Mapping[str, str] = {}
        """Set by the app: its own names for jobs while a stage runs."""
        limits: dict[str, Any] = dict(options)
        described = limits.pop("description", None)
        starts = {each: limits.pop(each) for each in START_OPTIONS if each in limits}
        try:
            check_names(options, PipelineOptions, "a pipeline")
            self.name = check_name(name)
            self._limits = pipeline_limits(name, **limits) | {"unset": unset_options(limits, PIPELINE_DEFAULTS)}
            self.schema = Schema(params)
            bounds = limits_of(name, starts.pop("limits", ()))
            self._starts = tuple(_limit_with_default(each, self.schema) for each in bounds), fair_of(**starts)
            paths = {each.path for each in self.schema.accepts.values()}
            if taken := sorted(RESERVED & {*paths, *(field.name for field in fields_of(params))}):
                raise ValueError(f"a parameter cannot be named {taken[0]!r}: that field is part of every submit")
            self._check_search(self._limits["search"])
            self.description: str = described or self.schema.json_schema().get("description", "")
        except (ValueError, TypeError, DefinitionError) as error:
            raise definition_error(f"Pipeline {name!r}: {error}", self.place) from error

    def _check_search(self, names: Sequence[str]) -> None:
        """Raises ValueError: a file is always found by its name, and a secret never by its value."""
        known = {field.name for field in fields_of(self.params)}
        secret = {path[0] for path in self.schema.secrets if path}
        for name in names:
            if name not in known:
                raise ValueError(f"search= names {name!r}, which is no parameter")
            if name in secret or () in self.schema.secrets:
                raise ValueError(f"search= names {name!r}, which contains a secret")
            if name in self.schema.files:
                raise ValueError(f"search= names {name!r}, a file: files are found by their names without it")

    @property
    def stage(self) -> StageDecorator[P]:
        """``@convert.stage`` or ``@convert.stage(queue="onnx", timeout="10m")``."""
        return StageDecorator(self)

    def plan(self) -> Plan:
        stages = tuple(self._regulated(stage.plan) for stage in self.stages.values())
        lists = tuple(name for name, how in self.schema.files.items() if how == "many")
        files = self.schema.files
        plan = Plan(
            self.name,
            stages,
            secrets=self.schema.secrets,
            lists=lists,
            primary=next((name for name, how in files.items() if how == "one"), next(iter(files), "")),
            statuses=self.statuses,
            stage_statuses={stage: word for stage, word in self.stage_statuses.items() if stage in self.stages},
            **self._limits,
        )
        try:
            check_plan(plan)
        except DefinitionError as error:
            raise definition_error(error.message, self.place) from error
        return replace(plan, fingerprint=fingerprint(plan))

    def definition(self, app: str, *, is_default: bool = False) -> Definition:
        plan = self.plan()
        try:
            schema = self.schema.published_schema()
        except DefinitionError as error:
            raise definition_error(f"Pipeline {self.name!r}: {error}", self.place) from error
        return Definition(
            app=app,
            pipeline=self.name,
            plan=json.encode(plan),
            schema=json.encode(schema),
            fingerprint=fingerprint([plan.fingerprint, schema, self.description, *([True] if is_default else [])]),
            description=self.description,
            is_default=is_default,
        )

    def submit(self, params: P, **options: Unpack[SubmitOptions]) -> JobHandle[Any]:
        """Submit a job; when this returns, it is durable. Starts no worker.

        Raises `InvalidInput` or `SlotTaken`. `Choices` are not checked here, because only a worker knows them.
        """
        return self._submitter().submit(self, params, options_from(**options))

    async def a_submit(self, params: P, **options: Unpack[SubmitOptions]) -> JobHandle[Any]:
        return await self._submitter().a_submit(self, params, options_from(**options))

    def submit_many(
        self, jobs: Iterable[P | tuple[P, SubmitOptions]], **options: Unpack[SubmitOptions]
    ) -> list[JobHandle[Any] | PackhorseError]:
        """Submit many jobs; when this returns, they are durable. Much faster than one by one: 1,000 share a commit.

        Each job is its parameters, or a pair of them and of options that it has beside ``options`` or instead:
        ``(Count(text=...), {"key": "page-7"})``. Each is accepted or refused by itself: the list has its handle, or the
        error that `submit` would have raised, in the order of the jobs.
        """
        return self._submitter().submit_many(self, _pairs(jobs, options))

    async def a_submit_many(
        self, jobs: Iterable[P | tuple[P, SubmitOptions]], **options: Unpack[SubmitOptions]
    ) -> list[JobHandle[Any] | PackhorseError]:
        return await self._submitter().a_submit_many(self, _pairs(jobs, options))

    def find(self, job_id: str, *, user: str = LOCAL) -> JobHandle[Any]:
        """A job of this pipeline that was submitted earlier for ``user``, as given to `submit`.

        Raises `JobNotFound`, also for a job of another user.
        """
        return self._submitter().find(self, job_id, user)

    async def a_find(self, job_id: str, *, user: str = LOCAL) -> JobHandle[Any]:
        return await self._submitter().a_find(self, job_id, user)

    def add(self, stage: Stage[..., Any]) -> None:
        """Add the stage. Raises DefinitionError if the plan could not run with it."""
        title, mine = f"Stage {stage.name!r} of {self.name!r}", self.stages.values()
        for marker in stage.markers.values():
            if marker.stage not in mine:
                raise definition_error(f"{title} needs {marker.stage!r} of another pipeline", stage.place)
        twin = next((other for other in mine if other.name.lower() == stage.name.lower()), None)
        if twin is not None:
            raise definition_error(f"{title} has the name of {twin.name!r} at {twin.place}", stage.place)
        try:
            check_plan(Plan(self.name, (*(other.plan for other in mine), self._regulated(stage.plan))))
        except DefinitionError as error:
            raise definition_error(error.message, stage.place) from error
        self.stages[stage.name] = stage

    def _regulated(self, stage: StagePlan) -> StagePlan:
        """With what the pipeline says about all of its stages."""
        limits, fair = self._starts
        return replace(stage, limits=sort_limits((*limits, *stage.limits)), fair=stage.fair or fair)

    def _submitter(self) -> Submitter:
        if self.submitter is None:
            raise definition_error(
                f"Pipeline {self.name!r} belongs to no app, so there is nowhere to submit to", self.place
            )
        return self.submitter

    def __repr__(self) -> str:
        return f"<pipeline {self.name} at {self.place}>"


class StageDecorator(Generic[P]):
    def __init__(self, pipeline: Pipeline[P], options: StageOptions | None = None) -> None:
        self._pipeline = pipeline
        self._options = options or StageOptions()

    @overload
    def __call__(
        self, function: Callable[Concatenate[Context, P, Q], R], /
    ) -> Stage[Concatenate[Context, P, Q], R]: ...
    @overload
    def __call__(self, function: None = None, /, **options: Unpack[StageOptions]) -> StageDecorator[P]: ...
    @overload
    def __call__(self, function: None = None, /, **options: Unpack[ElementOptions]) -> ElementDecorator[P]: ...
    def __call__(self, function: Callable[..., Any] | None = None, /, **options: Any) -> Any:
        if function is None:
            return StageDecorator(self._pipeline, {**self._options, **options})  # type: ignore[arg-type]
        require_function(function)
        pipeline, limits, scope = self._pipeline, dict(self._options), caller()[1]
        name: Any = limits.pop("name", function.__name__)
        try:
            check_names(limits, ElementOptions, "a stage")
            markers = markers_of(function)
            _check_second(pipeline, function, scope)
            if isinstance(when := limits.get("when"), Condition):
                limits["when"] = _with_defaults(when, pipeline.schema)
            stage = build_stage(pipeline.name, name, function, limits, markers, scope)
            bounds = tuple(_limit_with_default(each, pipeline.schema) for each in stage.plan.limits)
            stage.plan = replace(stage.plan, limits=bounds)
        except (TypeError, ValueError, NameError) as error:
            raise definition_error(f"Stage {name!r} of {pipeline.name!r}: {error}", place_of(function)) from error
        pipeline.add(stage)
        return stage


def _with_defaults(condition: Condition, schema: Schema) -> Condition:
    """The condition with the defaults of its parameters. Raises ValueError for a parameter that it cannot be about."""
    if condition.op in ("all", "any", "not"):
        return replace(condition, parts=tuple(_with_defaults(part, schema) for part in condition.parts))
    name, known = condition.parameter, schema.json_schema().get("properties", {})
    if name not in known:
        raise ValueError(f"when= uses the unknown parameter {name!r}. Parameters: {list_some(known)}")
    if any(path[0] == name for path in schema.secrets):
        raise ValueError(f"when names {name!r}, which is secret: the server cannot read it")
    return replace(condition, default=known[name].get("default"))


def _limit_with_default(limit: Limit, schema: Schema) -> Limit:
    """The limit with the default of its parameter. Raises ValueError for a parameter that it cannot go by."""
    if not limit.by.startswith(PARAMETER):
        return limit
    name, known = limit.by.removeprefix(PARAMETER), schema.json_schema().get("properties", {})
    if name not in known:
        raise ValueError(f"a limit names the parameter {name!r}; there is {list_some(known)}")
    if name in schema.files or any(path[:1] in ((), (name,)) for path in schema.secrets):
        raise ValueError(f"a limit names {name!r}, which is a file or secret: what it counts by is shown to operators")
    return replace(limit, default=known[name].get("default"))


class ElementDecorator(Protocol[P]):
    """``@count.stage(tolerate=0.05)``: a `StageDecorator` whose stages may leave out elements that failed."""

    def __call__(
        self, function: Callable[Concatenate[Context, P, Q], R], /
    ) -> TolerantStage[Concatenate[Context, P, Q], R]: ...


def _pairs(jobs: Iterable[Any], options: SubmitOptions) -> list[tuple[object, SubmitOptions]]:
    """The parameters and options of each. Raises TypeError for an unknown option, before anything is submitted."""
    if options.get("key") is not None:
        raise InvalidInput("Each job needs a key of its own: give it as a pair, (params, {'key': ...}).", field="key")
    pairs = [each if type(each) is tuple else (each, SubmitOptions()) for each in jobs]
    for _, own in pairs:
        check_names({**options, **own}, SubmitOptions, "submit")
    return [(params, {**options, **own}) for params, own in pairs]


def _check_second(pipeline: Pipeline[Any], function: Callable[..., Any], scope: Scope) -> None:
    """Check the type of the second parameter, for users without mypy. Types missing at run time are skipped."""
    second = list(inspect.signature(function).parameters)[1]
    with suppress(NameError):
        written = hint(function, second, scope)
        if written is not Any and isinstance(written, type) and not issubclass(pipeline.params, written):
            raise TypeError(f"parameter {second!r} must be {pipeline.params.__name__}, not {written.__name__}")
