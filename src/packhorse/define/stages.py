"""Stages: user functions, the results they need from other stages, and their plan."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Coroutine, Mapping, Sequence
from types import NoneType
from typing import Any, Generic, Literal, ParamSpec, TypeVar, Union, get_args, get_origin, overload

from packhorse.core.plan import Need, StagePlan, fingerprint
from packhorse.define.context import Later
from packhorse.define.files import File
from packhorse.define.introspection import Scope, alternatives, caller, definition_error, hint
from packhorse.define.values import check_type, decode_result
from packhorse.errors import DefinitionError

Q = ParamSpec("Q")
R_co = TypeVar("R_co", covariant=True)
T = TypeVar("T")

Document = tuple[bytes, Sequence[File]]
"""A result as JSON, and the files it refers to by number."""


class Stage(Generic[Q, R_co]):
    """The result of the decorator. It can still be called like the function."""

    def __init__(
        self,
        function: Callable[Q, R_co],
        plan: StagePlan,
        *,
        place: str,
        markers: Mapping[str, Marker],
        returns: Any,
    ) -> None:
        functools.update_wrapper(self, function)
        self.function = function
        self.plan = plan
        self.place = place
        self.markers = markers
        self.returns = returns
        """Type of the result, awaited and without `Later`."""

    @property
    def name(self) -> str:
        return self.plan.name

    @property
    def is_async(self) -> bool:
        return self.plan.is_async

    def __call__(self, *args: Q.args, **kwargs: Q.kwargs) -> R_co:
        absent = [name for name in list(self.markers)[max(0, len(args) - 2) :] if name not in kwargs]
        if absent:
            raise TypeError(f"{self.name}() was called directly, so nothing fills {', '.join(absent)}: pass a value")
        return self.function(*args, **kwargs)

    def arguments(self, given: Mapping[str, Sequence[Document]]) -> dict[str, object]:
        """Arguments for the parameters after the first two, decoded as the types that the earlier stages return.

        ``given`` has per parameter the one result (``needs``), the one element (``each``) or all results (``gather``).
        """
        return {name: marker.value(given[name]) for name, marker in self.markers.items()}

    def __repr__(self) -> str:
        return f"<stage {self.plan.kind} at {self.place}>"


class Marker:
    """Default value of a parameter that takes another stage's result."""

    def __init__(self, how: Literal["needs", "each", "gather"], stage: Stage[..., Any], item: Any = Any) -> None:
        self.how = how
        self.stage = stage
        self.item = item
        """Type of one decoded document."""

    def need(self, parameter: str) -> Need:
        return Need(parameter, self.stage.name, self.how)

    def value(self, given: Sequence[Document]) -> object:
        what = f"The result of {self.stage.name}"
        values = [decode_result(data, self.item, files, what) for data, files in given]
        if self.how == "gather":
            return values
        (value,) = values
        return value


@overload
def needs(stage: Stage[..., Coroutine[Any, Any, T | Later]]) -> T: ...
@overload
def needs(stage: Stage[..., T | Later]) -> T: ...
def needs(stage: Stage[..., Any]) -> Any:
    """The result of that stage."""
    return Marker("needs", _stage(stage, "needs"), stage.returns)


@overload
def each(stage: Stage[..., Sequence[T] | Later]) -> T: ...
@overload
def each(stage: Stage[..., Coroutine[Any, Any, Sequence[T] | Later]]) -> T: ...
@overload
def each(stage: list[T]) -> T: ...
def each(stage: Any) -> Any:
    """One element of that stage's list result. This stage runs once per element, in parallel.

    ``each(gather(stage))`` runs once per result of a stage that itself runs once per element.
    """
    if isinstance(stage, Marker) and stage.how == "gather":
        return Marker("each", stage.stage, stage.item)
    if _stage(stage, "each").plan.over is not None:
        raise _error(f"{stage.name!r} runs once per element itself, so write each(gather({stage.name}))")
    return Marker("each", stage, _item(stage))


@overload
def gather(stage: Stage[..., Coroutine[Any, Any, T | Later]]) -> list[T]: ...
@overload
def gather(stage: Stage[..., T | Later]) -> list[T]: ...
def gather(stage: Stage[..., Any]) -> Any:
    """All results of a stage that runs once per element, in the order of the elements."""
    return Marker("gather", _stage(stage, "gather"), stage.returns)


def markers_of(function: Callable[..., Any]) -> dict[str, Marker]:
    """Markers of the parameters after the first two. Raises TypeError for a parameter without one."""
    parameters = list(inspect.signature(function).parameters.values())
    first, rest = parameters[:2], parameters[2:]
    if len(first) < 2 or any(isinstance(p.default, Marker) or p.kind not in _POSITIONAL for p in first):
        raise TypeError("a stage takes the context and the parameters first, as in (ctx, p)")
    for parameter in rest:
        if not isinstance(parameter.default, Marker):
            raise TypeError(f"parameter {parameter.name!r} must be filled by needs(...), each(...) or gather(...)")
        if parameter.kind is parameter.POSITIONAL_ONLY:
            raise TypeError(f"parameter {parameter.name!r} must not be positional-only")
    return {parameter.name: parameter.default for parameter in rest}


def plan_stage(
    pipeline: str, name: str, function: Callable[..., Any], markers: Mapping[str, Marker], limits: Mapping[str, Any]
) -> StagePlan:
    needs = tuple(marker.need(parameter) for parameter, marker in markers.items())
    # The kind changes with the wiring, so that a worker with other code does not receive arguments it cannot take.
    wiring = fingerprint(sorted(needs, key=lambda need: need.parameter))
    return StagePlan(
        name=name,
        kind=f"{pipeline}/{name}#{wiring[:8]}",
        needs=needs,
        is_async=inspect.iscoroutinefunction(function),
        **limits,
    )


def result_type(function: Callable[..., Any], scope: Scope) -> Any:
    """Return type of the function without `Later`. Raises TypeError if it cannot be stored and read back."""
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise TypeError("a stage returns its result, it cannot yield")
    written = hint(function, "return", scope)
    kept = tuple(part for part in alternatives(written) if part is not Later)
    found = Union[kept] if kept else NoneType  # noqa: UP007  (a union made of a tuple has no other spelling)
    check_type(found)
    return found


_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


def _stage(stage: object, marker: str) -> Stage[..., Any]:
    if not isinstance(stage, Stage):
        raise _error(f"{marker}(...) takes a stage, not {type(stage).__name__}")
    return stage


def _item(stage: Stage[..., Any]) -> Any:
    """Type of one element of the list that a stage returns."""
    if stage.returns is Any:
        return Any
    origin, inside = get_origin(stage.returns) or stage.returns, get_args(stage.returns)
    if origin not in (list, tuple, Sequence) or (origin is tuple and inside[1:] != (...,)):
        raise _error(f"each({stage.name}) needs a stage that returns a list, and it returns {stage.returns}")
    return inside[0] if inside else Any


def _error(sentence: str) -> DefinitionError:
    return definition_error(sentence, caller()[0])
