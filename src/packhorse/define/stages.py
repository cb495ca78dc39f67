"""Stages: user functions, their context and special outcomes, the results they need, and their plan."""

from __future__ import annotations

import functools
import inspect
import logging
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence, Sized
from datetime import datetime
from pathlib import Path
from types import NoneType
from typing import Any, Generic, Literal, ParamSpec, TypeVar, Union, get_args, get_origin, overload

from msgspec import Struct

from packhorse.core import error_codes
from packhorse.core.plan import Need, StagePlan, fingerprint
from packhorse.define.files import File
from packhorse.define.introspection import Scope, alternatives, check_name, definition_error, hint, place_of
from packhorse.define.options import STAGE_DEFAULTS, stage_limits, unset_options
from packhorse.define.values import check_type, decode_result

T = TypeVar("T")


class Context(ABC):
    """No method is a coroutine or waits for the network, so sync and async stages use it in the same way."""

    job_id: str
    user_id: str
    attempt: int
    """1 for the first attempt of a run."""
    trace_id: str
    scratch: Path
    """Folder for this attempt only, deleted when it ends."""
    log: logging.Logger
    schedule_id: str | None = None
    """The schedule that created the job, if any."""
    tick: datetime | None = None
    """The scheduled time in UTC. It stays the same however late the job runs and however often it is retried."""
    previous: Any = None
    """Result of the last completed run before this tick, as JSON. Files are given by name, size and SHA-256.

    None on the first run, after an edit of the schedule, and once that job is purged.
    """

    @property
    @abstractmethod
    def cancelled(self) -> bool:
        """Whether the job is being stopped. A stage can check it and clean up before it is killed."""

    @abstractmethod
    def progress(self, current: float, total: float | None = None, message: str = "") -> None:
        """Report progress. Call it as often as you like: only the latest value is sent.

        In a process that the stage has forked it does nothing.
        """

    @abstractmethod
    def artifact(self, name: str, content: Path | str | bytes) -> None:
        """Publish a file beside the result, as ``{stage}/{name}``; the name may have folders.

        Of a stage that runs once per element it is ``{stage}/{element}/{name}``, counted from 0.
        A ``str`` is a path; bytes are the content itself. Raises RuntimeError in a process that the stage has forked.
        """

    def redact(self, text: str) -> str:
        """The text with the job's secret parameters masked, in every form in which a program writes them.

        Results, errors, logs and progress are masked anyway. A file that the stage writes is not: pass its text here.
        """
        return text

    def track(self, iterable: Iterable[T], total: float | None = None, message: str = "") -> Iterator[T]:
        """Iterate over ``iterable`` and report progress after each element."""
        if total is None and isinstance(iterable, Sized):
            total = len(iterable)
        self.progress(0, total, message)
        for done, element in enumerate(iterable, start=1):
            yield element
            self.progress(done, total, message)


class Later(Struct, frozen=True):
    """Return it to be called again after ``seconds``, or not before ``until``. The attempt does not count.

    Annotate such a stage ``-> X | Later``. Stages that need it receive the ``X``.
    """

    seconds: float = 0.0
    until: datetime | None = None

    def __post_init__(self) -> None:
        if not math.isfinite(self.seconds) or self.seconds < 0:
            raise ValueError(f"Later takes seconds from now, not {self.seconds!r}")
        if self.until is not None and (self.seconds or self.until.utcoffset() is None):
            raise ValueError(f"Later takes either seconds or until=, a time with a time zone, not {self.until!s}")


class Skip(Struct, frozen=True):
    """Return it if there is nothing to do. The stage is skipped, with this reason; what needs its result is, too.

    Annotate such a stage ``-> X | Skip``. Stages with ``needs(stage, optional=True)`` receive ``X | None``.
    """

    reason: str  # to be read by people

    def __post_init__(self) -> None:
        reason: object = self.reason
        if not isinstance(reason, str) or not reason.strip() or "\0" in reason:
            raise ValueError(f"Skip takes a reason, not {self.reason!r}")


class Failed(Struct, frozen=True):
    """An element that failed. `gather` returns it in place of a result if the stage has ``tolerate=``."""

    element: int
    """Its place in the list, counted from 0."""
    code: str
    message: str


class Permanent(Exception):
    """Raise it to fail the job without further attempts."""

    def __init__(self, message: str, code: str = error_codes.PERMANENT) -> None:
        super().__init__(message)
        self.message = message
        self.code = code


Q = ParamSpec("Q")
R_co = TypeVar("R_co", covariant=True)

Document = tuple[bytes, Sequence[File]] | Failed  # a result as JSON, and the files it refers to by number


class Stage(Generic[Q, R_co]):
    """The result of the decorator. It can still be called like the function."""

    def __init__(
        self, function: Callable[Q, R_co], plan: StagePlan, *, place: str, markers: Mapping[str, Marker], returns: Any
    ) -> None:
        functools.update_wrapper(self, function)
        self.function = function
        self.plan = plan
        self.place = place
        self.markers = markers
        self.returns = returns
        """Type of the result, awaited and without `Later` and `Skip`."""

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

    def arguments(self, given: Mapping[str, Sequence[Document] | None]) -> dict[str, object]:
        """Arguments for the parameters after the first two, decoded as the types that the earlier stages return.

        ``given`` has per parameter the one result (``needs``), the one element (``each``) or all results (``gather``);
        None if that stage was skipped.
        """
        return {name: marker.value(given[name]) for name, marker in self.markers.items()}

    def __repr__(self) -> str:
        return f"<stage {self.plan.kind} at {self.place}>"


class TolerantStage(Stage[Q, R_co]):
    """A stage with ``tolerate=``: what gathers its results has to deal with `Failed`."""


class Marker:
    """Default value of a parameter that takes another stage's result."""

    def __init__(
        self,
        how: Literal["needs", "each", "gather"],
        stage: Stage[..., Any],
        item: Any = Any,
        *,
        is_optional: bool = False,
    ) -> None:
        self.how = how
        self.stage = stage
        self.item = item
        """Type of one decoded document."""
        self.is_optional = is_optional
        """Whether it takes None if that stage was skipped."""

    def value(self, given: Sequence[Document] | None) -> object:
        if given is None:
            return None
        what = f"The result of {self.stage.name}"
        values = [
            each if isinstance(each, Failed) else decode_result(each[0], self.item, each[1], what) for each in given
        ]
        if self.how == "gather":
            return values
        (value,) = values
        return value


@overload
def needs(stage: Stage[..., Coroutine[Any, Any, T | Later | Skip]], *, optional: Literal[True]) -> T | None: ...
@overload
def needs(stage: Stage[..., T | Later | Skip], *, optional: Literal[True]) -> T | None: ...
@overload
def needs(stage: Stage[..., Coroutine[Any, Any, T | Later | Skip]]) -> T: ...
@overload
def needs(stage: Stage[..., T | Later | Skip]) -> T: ...
def needs(stage: Stage[..., Any], *, optional: bool = False) -> Any:
    """The result of that stage. With ``optional=True``, None if that stage was skipped; otherwise this one is, too."""
    return Marker("needs", _stage(stage, "needs"), stage.returns, is_optional=optional)


@overload
def each(stage: Stage[..., Sequence[T] | Later | Skip]) -> T: ...
@overload
def each(stage: Stage[..., Coroutine[Any, Any, Sequence[T] | Later | Skip]]) -> T: ...
@overload
def each(stage: list[T | Failed]) -> T: ...
@overload
def each(stage: list[T]) -> T: ...
def each(stage: Any) -> Any:
    """One element of that stage's list result. This stage runs once per element, in parallel.

    ``each(gather(stage))`` runs once per result of a stage that itself runs once per element; not for one that failed.
    """
    if isinstance(stage, Marker) and stage.how == "gather":
        return Marker("each", stage.stage, stage.item)
    if _stage(stage, "each").plan.over is not None:
        raise definition_error(f"{stage.name!r} runs once per element itself, so write each(gather({stage.name}))")
    return Marker("each", stage, _item(stage))


@overload
def gather(stage: TolerantStage[..., Coroutine[Any, Any, T | Later | Skip]]) -> list[T | Failed]: ...
@overload
def gather(stage: TolerantStage[..., T | Later | Skip]) -> list[T | Failed]: ...
@overload
def gather(stage: Stage[..., Coroutine[Any, Any, T | Later | Skip]]) -> list[T]: ...
@overload
def gather(stage: Stage[..., T | Later | Skip]) -> list[T]: ...
def gather(stage: Stage[..., Any]) -> Any:
    """All results of a stage that runs once per element, in the order of the elements.

    With ``tolerate=``, elements that failed are `Failed`. Elements that were skipped are left out.
    """
    return Marker("gather", _stage(stage, "gather"), stage.returns)


def markers_of(function: Callable[..., Any]) -> dict[str, Marker]:
    """Markers of the parameters after the first two. Raises TypeError for a parameter without one."""
    parameters = list(inspect.signature(function).parameters.values())
    first, rest = parameters[:2], parameters[2:]
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    if len(first) < 2 or any(isinstance(p.default, Marker) or p.kind not in positional for p in first):
        raise TypeError("a stage takes the context and the parameters first, as in (ctx, p)")
    for parameter in rest:
        if not isinstance(parameter.default, Marker):
            raise TypeError(f"parameter {parameter.name!r} must be filled by needs(...), each(...) or gather(...)")
        if parameter.kind is parameter.POSITIONAL_ONLY:
            raise TypeError(f"parameter {parameter.name!r} must not be positional-only")
    return {parameter.name: parameter.default for parameter in rest}


def build_stage(
    pipeline: str,
    name: str,
    function: Callable[..., Any],
    limits: Mapping[str, Any],
    markers: Mapping[str, Marker],
    scope: Scope,
    call: Callable[..., Any] | None = None,
) -> Stage[..., Any]:
    """A stage of the function with these `StageOptions`. ``call`` is called instead of the function, if given."""
    needs = tuple(Need(parameter, marker.stage.name, marker.how) for parameter, marker in markers.items())
    # The kind changes with the wiring, so that a worker with other code does not receive arguments it cannot take.
    wiring = fingerprint(sorted(needs, key=lambda need: need.parameter))
    if tolerant := sorted(p for p, m in markers.items() if m.how == "gather" and m.stage.plan.tolerate is not None):
        wiring = fingerprint([wiring, tolerant])
    if optional := tuple(sorted(parameter for parameter, marker in markers.items() if marker.is_optional)):
        wiring = fingerprint([wiring, optional, "optional"])
    plan = StagePlan(
        name=check_name(name),
        kind=f"{pipeline}/{name}#{wiring[:8]}",
        needs=needs,
        optional=optional,
        is_async=inspect.iscoroutinefunction(function),
        unset=unset_options(limits, STAGE_DEFAULTS),
        **stage_limits(**limits, owner=f"{pipeline}.{name}"),
    )
    returns = result_type(function, scope)
    kind = Stage if plan.tolerate is None else TolerantStage
    return kind(call or function, plan, place=place_of(function), markers=markers, returns=returns)


def result_type(function: Callable[..., Any], scope: Scope) -> Any:
    """Return type of the function without `Later` and `Skip`. Raises TypeError if it cannot be stored and read back."""
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise TypeError("a stage returns its result, it cannot yield")
    written = hint(function, "return", scope)
    kept = tuple(part for part in alternatives(written) if part not in (Later, Skip))
    found = Union[kept] if kept else NoneType  # noqa: UP007  (a union made of a tuple has no other spelling)
    check_type(found)
    return found


def _stage(stage: object, marker: str) -> Stage[..., Any]:
    if not isinstance(stage, Stage):
        raise definition_error(f"{marker}(...) takes a stage, not {type(stage).__name__}")
    return stage


def _item(stage: Stage[..., Any]) -> Any:
    """Type of one element of the list that a stage returns."""
    if stage.returns is Any:
        return Any
    origin, inside = get_origin(stage.returns) or stage.returns, get_args(stage.returns)
    if origin not in (list, tuple, Sequence) or (origin is tuple and inside[1:] != (...,)):
        raise definition_error(f"each({stage.name}) needs a stage that returns a list, and it returns {stage.returns}")
    return inside[0] if inside else Any
