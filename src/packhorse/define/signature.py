"""``@app.job``: a pipeline of one stage from a function. Its parameters are the function's parameters."""

from __future__ import annotations

import copy
import functools
import inspect
from collections.abc import Callable, Coroutine
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar, Unpack, overload

import msgspec

from packhorse.define.introspection import Scope, caller, definition_error, hint, place_of, require_function
from packhorse.define.options import JobOptions, PipelineOptions, check_names
from packhorse.define.params import params_type
from packhorse.define.pipelines import Pipeline
from packhorse.define.stages import Context, Later, Skip, Stage, build_stage
from packhorse.define.submit import LOCAL, JobHandle, SubmitOptions

C = ParamSpec("C")
Q = ParamSpec("Q")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)
T = TypeVar("T")


class Submits(Generic[Q, R_co]):
    """Submits jobs with the function's arguments, without the context. The result has the function's return type."""

    def __init__(self, pipeline: Pipeline[Any], signature: inspect.Signature, options: SubmitOptions) -> None:
        self.pipeline = pipeline
        self._signature = signature
        self.options = options

    @overload
    def submit(
        self: Submits[Q, Coroutine[Any, Any, T | Later | Skip]], *args: Q.args, **kwargs: Q.kwargs
    ) -> JobHandle[T]: ...
    @overload
    def submit(self: Submits[Q, T | Later | Skip], *args: Q.args, **kwargs: Q.kwargs) -> JobHandle[T]: ...
    def submit(self, *args: Any, **kwargs: Any) -> JobHandle[Any]:
        """Submit a job with these arguments; as `Pipeline.submit`."""
        return self.pipeline.submit(self.params_from(*args, **kwargs), **self.options)

    @overload
    async def a_submit(
        self: Submits[Q, Coroutine[Any, Any, T | Later | Skip]], *args: Q.args, **kwargs: Q.kwargs
    ) -> JobHandle[T]: ...
    @overload
    async def a_submit(self: Submits[Q, T | Later | Skip], *args: Q.args, **kwargs: Q.kwargs) -> JobHandle[T]: ...
    async def a_submit(self, *args: Any, **kwargs: Any) -> JobHandle[Any]:
        return await self.pipeline.a_submit(self.params_from(*args, **kwargs), **self.options)

    @overload
    def find(
        self: Submits[Q, Coroutine[Any, Any, T | Later | Skip]], job_id: str, *, user: str = LOCAL
    ) -> JobHandle[T]: ...
    @overload
    def find(self: Submits[Q, T | Later | Skip], job_id: str, *, user: str = LOCAL) -> JobHandle[T]: ...
    def find(self, job_id: str, *, user: str = LOCAL) -> JobHandle[Any]:
        """A job that was submitted earlier; as `Pipeline.find`."""
        return self.pipeline.find(job_id, user=user)

    @overload
    async def a_find(
        self: Submits[Q, Coroutine[Any, Any, T | Later | Skip]], job_id: str, *, user: str = LOCAL
    ) -> JobHandle[T]: ...
    @overload
    async def a_find(self: Submits[Q, T | Later | Skip], job_id: str, *, user: str = LOCAL) -> JobHandle[T]: ...
    async def a_find(self, job_id: str, *, user: str = LOCAL) -> JobHandle[Any]:
        return await self.pipeline.a_find(job_id, user=user)

    def params_from(self, *args: Any, **kwargs: Any) -> Any:
        """The function's arguments as the parameters of its pipeline."""
        return self.pipeline.params(**self._signature.bind(*args, **kwargs).arguments)


class Function(Submits[Q, R_co], Generic[C, Q, R_co]):
    """The result of ``@app.job``. It can still be called like the function."""

    def __init__(self, function: Callable[C, R_co], pipeline: Pipeline[Any], signature: inspect.Signature) -> None:
        super().__init__(pipeline, signature, SubmitOptions())
        functools.update_wrapper(self, function)
        self.function = function

    def __call__(self, *args: C.args, **kwargs: C.kwargs) -> R_co:
        return self.function(*args, **kwargs)

    def using(self, **options: Unpack[SubmitOptions]) -> Submits[Q, R_co]:
        """``add.using(user="ann", priority=3).submit(a=1)``."""
        return Submits(self.pipeline, self._signature, options)

    @property
    def name(self) -> str:
        return self.pipeline.name

    @property
    def stage(self) -> Stage[..., R_co]:
        return self.pipeline.stages[self.name]


class JobDecorator:
    """``@app.job`` or ``@app.job(queue="gpu", retries=0)``. ``adopt`` registers the pipeline with the app."""

    def __init__(self, adopt: Callable[[Pipeline[Any]], None], options: JobOptions | None = None) -> None:
        self._adopt = adopt
        self._options = options or JobOptions()

    @overload
    def __call__(
        self, function: Callable[Concatenate[Context, Q], R], /
    ) -> Function[Concatenate[Context, Q], Q, R]: ...
    @overload
    def __call__(self, function: Callable[Q, R], /) -> Function[Q, Q, R]: ...
    @overload
    def __call__(self, function: None = None, /, **options: Unpack[JobOptions]) -> JobDecorator: ...
    def __call__(self, function: Callable[..., Any] | None = None, /, **options: Unpack[JobOptions]) -> Any:
        if function is None:
            return JobDecorator(self._adopt, {**self._options, **options})
        require_function(function)
        made = _make_job(function, self._options, caller()[1])
        self._adopt(made.pipeline)
        return made


def _make_job(function: Callable[..., Any], options: JobOptions, scope: Scope) -> Function[..., ..., Any]:
    place = place_of(function)
    rest: dict[str, Any] = dict(options)
    name = rest.pop("name", function.__name__)
    about = {key: rest.pop(key) for key in PipelineOptions.__annotations__ if key in rest}
    about.setdefault("description", inspect.getdoc(function) or "")
    signature = inspect.signature(function)
    has_context = _has_context(function, signature, scope)
    own = list(signature.parameters.values())[has_context:]
    try:
        check_names(options, JobOptions, "a job")
        fields = {parameter.name: _field(function, parameter, scope) for parameter in own}
        params = params_type(function.__name__, function.__module__, fields)
        stage = build_stage(name, name, function, rest, {}, scope, _as_stage(function, own, has_context))
    except (TypeError, ValueError, NameError) as error:
        raise definition_error(f"Job {name!r}: {error}", place) from error
    pipeline = Pipeline(name, params, place=place, **about)
    pipeline.add(stage)
    return Function(function, pipeline, signature.replace(parameters=own))


def _as_stage(function: Callable[..., Any], own: list[inspect.Parameter], has_context: bool) -> Callable[..., Any]:
    """Wrap the function as a stage that passes the parameters one by one."""
    by_place = [p.name for p in own if p.kind is p.POSITIONAL_ONLY]
    by_name = [p.name for p in own if p.kind is not p.POSITIONAL_ONLY]

    @functools.wraps(function)
    def stage(ctx: Context, params: Any) -> Any:
        first = (ctx,) if has_context else ()
        placed = (getattr(params, name) for name in by_place)
        return function(*first, *placed, **{name: getattr(params, name) for name in by_name})

    return stage


def _has_context(function: Callable[..., Any], signature: inspect.Signature, scope: Scope) -> bool:
    first = next(iter(signature.parameters.values()), None)
    if first is None or first.kind not in (first.POSITIONAL_ONLY, first.POSITIONAL_OR_KEYWORD):
        return False
    if first.annotation is first.empty:
        return first.name == "ctx"
    try:
        written = hint(function, first.name, scope)
    except NameError:  # imported for the type checker only: compare the text
        return str(first.annotation).rpartition(".")[2] == "Context"
    return isinstance(written, type) and issubclass(written, Context)


def _field(function: Callable[..., Any], parameter: inspect.Parameter, scope: Scope) -> tuple[Any, Any]:
    name, default = parameter.name, parameter.default
    if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
        raise TypeError(f"parameter {name!r} takes any number of arguments; name each of them")
    if parameter.annotation is parameter.empty:
        raise TypeError(f"parameter {name!r} has no type")
    written = hint(function, name, scope)
    if isinstance(written, type) and issubclass(written, Context):
        raise TypeError(f"parameter {name!r} is the context, which comes first")
    if default is parameter.empty:
        return written, msgspec.field()
    if isinstance(default, list | dict | set | bytearray):  # each call gets its own copy
        return written, msgspec.field(default_factory=functools.partial(copy.deepcopy, default))
    return written, msgspec.field(default=default)
