"""Submitting a job from Python: what can be asked for, and what one gets to hold. The app does the work."""

from __future__ import annotations

from collections.abc import AsyncIterator, Coroutine, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Protocol, TypedDict, TypeVar, Unpack, overload

from msgspec import Struct, field

from packhorse.core import json
from packhorse.core.models import Event, Failure
from packhorse.core.plan import Status
from packhorse.define.context import Later
from packhorse.define.durations import Duration, seconds
from packhorse.define.options import check_int, check_names
from packhorse.define.validation import NUL, find_nul, invalid, quote_short
from packhorse.errors import InvalidInput

if TYPE_CHECKING:
    from packhorse.define.pipelines import Pipeline
    from packhorse.define.stages import Stage

R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)

MAX_PRIORITY = 1000
"""Bounds priority both ways: a store may pack it and the time into one number."""
MAX_TEXT = 255


class SubmitOptions(TypedDict, total=False):
    user: str
    """Whose job it is. Default: ``local``."""
    priority: int
    """Higher goes first. Default: 0."""
    delay: Duration
    """Wait so long before the first stage. Default: 0."""
    key: str | None
    """Submitting again with the same key gives the first job. Default: none."""
    metadata: Mapping[str, object] | None
    """Kept with the job and shown with it, not looked at."""


class Options(Struct, frozen=True, kw_only=True):
    """`SubmitOptions`, checked."""

    user: str = "local"
    priority: int = 0
    delay: float = 0.0
    key: str | None = None
    metadata: Mapping[str, object] = field(default_factory=dict)


def options_from(**given: Unpack[SubmitOptions]) -> Options:
    """Raises InvalidInput that names the option; TypeError if there is none of this name."""
    check_names(given, SubmitOptions, "submit")
    user, key, metadata = given.get("user", "local"), given.get("key"), given.get("metadata")
    priority, delay = given.get("priority", 0), given.get("delay", 0.0)
    about = "user"
    try:
        _check_text(user)
        about = "priority"
        check_int("it", priority, -MAX_PRIORITY, MAX_PRIORITY)
        about = "delay"
        delay = seconds(delay)
        about = "key"
        if key is not None:
            _check_text(key)
        about = "metadata"
        plain: Any = json.decode(json.encode(metadata)) if metadata else None
    except (ValueError, TypeError) as error:
        raise InvalidInput(f"{about}: {error}.", errors=[{"field": about, "message": str(error)}]) from error
    if plain and (mistakes := list(find_nul(plain, "metadata"))):
        raise invalid("The request is not valid", mistakes)
    return Options(user=user, priority=priority, delay=delay, key=key, metadata=dict(metadata or {}))


class JobSnapshot(Protocol[R_co]):
    """A job as it was at one moment."""

    @property
    def id(self) -> str: ...

    @property
    def status(self) -> Status: ...

    @property
    def progress(self) -> float:
        """0 to 100."""

    @property
    def error(self) -> Failure | None: ...

    @property
    def result(self) -> R_co:
        """The value of the only last stage, else a mapping by last stage. Raises `NotFinished` before there is one."""


class JobHandle(Protocol[R_co]):
    """A submitted job. Each verb is there twice: plain, and as a coroutine with the prefix ``a_``."""

    @property
    def id(self) -> str: ...

    def wait(self, timeout: float | None = None) -> JobSnapshot[R_co]:
        """Until it has ended, or ``timeout`` seconds have passed: look at the status of what you get."""

    async def a_wait(self, timeout: float | None = None) -> JobSnapshot[R_co]: ...

    def events(self, after: int = 0) -> Iterator[Event]:
        """Events numbered ``after`` + 1 and on, as they come, until the job has ended."""

    def a_events(self, after: int = 0) -> AsyncIterator[Event]: ...

    def cancel(self) -> JobSnapshot[R_co]: ...

    async def a_cancel(self) -> JobSnapshot[R_co]: ...

    def retry(self, stage: str | None = None) -> JobSnapshot[R_co]:
        """Start a new run: from what failed, from a stage, or of everything (``*``)."""

    async def a_retry(self, stage: str | None = None) -> JobSnapshot[R_co]: ...

    @overload
    def result_of(self, stage: Stage[..., Coroutine[Any, Any, R | Later]]) -> R: ...
    @overload
    def result_of(self, stage: Stage[..., R | Later]) -> R: ...
    @overload
    def result_of(self, stage: list[R]) -> list[R]: ...
    def result_of(self, stage: Any) -> Any:
        """What the stage returned. Raises `NotFinished` before it has.

        A stage that runs once per element has returned a list, and no type says that it does: write
        ``result_of(gather(stage))``.
        """

    @overload
    async def a_result_of(self, stage: Stage[..., Coroutine[Any, Any, R | Later]]) -> R: ...
    @overload
    async def a_result_of(self, stage: Stage[..., R | Later]) -> R: ...
    @overload
    async def a_result_of(self, stage: list[R]) -> list[R]: ...
    async def a_result_of(self, stage: Any) -> Any: ...


class Submitter(Protocol):
    """Where a pipeline's jobs go. ``params`` are not checked yet: encoding them with ``pipeline.schema`` does."""

    def submit(self, pipeline: Pipeline[Any], params: object, options: Options) -> JobHandle[Any]:
        """When this returns, the job is durable."""

    async def a_submit(self, pipeline: Pipeline[Any], params: object, options: Options) -> JobHandle[Any]: ...


def _check_text(value: Any) -> None:
    if not isinstance(value, str) or not 0 < len(value) <= MAX_TEXT:
        raise ValueError(f"expected a text of 1 to {MAX_TEXT} characters, not {quote_short(value)}")
    if "\0" in value:
        raise ValueError(NUL)
