"""Submitting jobs from Python: options, job handles and snapshots. The app implements them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypedDict, TypeVar, Unpack, overload

from msgspec import Struct, field

from packhorse.core import json
from packhorse.core.models import Event, Failure
from packhorse.core.plan import Status
from packhorse.core.text import CONTROLS
from packhorse.define.options import Duration, check_int, check_names, seconds
from packhorse.define.stages import Later, Skip
from packhorse.define.validation import NUL, find_nul, invalid, quote_short
from packhorse.errors import InvalidInput, NotFinished, PackhorseError

if TYPE_CHECKING:
    from packhorse.define.pipelines import Pipeline
    from packhorse.define.stages import Stage

R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)

MAX_PRIORITY = 1000  # limit of priority in both directions: a store may pack it and the time into one number
MAX_TEXT = 255


class SubmitOptions(TypedDict, total=False):
    user: str
    """User of the job. Default: ``local``."""
    priority: int
    """Higher runs first. Default: 0."""
    delay: Duration
    """Delay before the first stage. Default: 0."""
    at: datetime | None
    """Earliest start of the first stage, with a time zone, instead of ``delay``. Default: at once."""
    debounce: Duration
    """Time to wait for another submit with the same ``key``, which replaces this one. Default: 0."""
    key: str | None
    """Idempotency key: submitting again with the same key returns the first job. Default: none."""
    metadata: Mapping[str, object] | None
    """Free data, stored and shown with the job."""


LOCAL = "local"
"""The user of a job that was submitted without one."""


class Options(Struct, frozen=True, kw_only=True):
    """`SubmitOptions`, checked."""

    user: str = LOCAL
    priority: int = 0
    delay: float = 0.0
    at: float | None = None
    debounce: float = 0.0
    key: str | None = None
    metadata: Mapping[str, object] = field(default_factory=dict)


def options_from(**given: Unpack[SubmitOptions]) -> Options:
    """Raises InvalidInput that names the option, TypeError for an unknown option."""
    check_names(given, SubmitOptions, "submit")
    checked: dict[str, Any] = {}
    for name, value in given.items():
        try:
            checked[name] = CHECKS[name](value)
        except (ValueError, TypeError) as error:
            raise InvalidInput(f"{name}: {error}.", errors=[{"field": name, "message": str(error)}]) from error
    if checked.get("at") is not None and checked.get("delay"):
        raise InvalidInput("at: give either at or delay.", errors=[{"field": "at", "message": "Give it or delay"}])
    if checked.get("debounce"):
        if checked.get("key") is None:
            raise InvalidInput("debounce: it needs a key.", errors=[{"field": "debounce", "message": "It needs a key"}])
        if checked.get("at") is not None or checked.get("delay"):
            message = "Give it without delay and at"
            raise InvalidInput("debounce: give it alone.", errors=[{"field": "debounce", "message": message}])
    return Options(**checked)


def moment(value: Any) -> float:
    """The time of a datetime with a time zone. Raises ValueError for anything else."""
    if not isinstance(value, datetime) or value.tzinfo is None or value.utcoffset() is None:
        raise ValueError(f"expected a time with a time zone, such as 2026-01-31T12:00:00+00:00, not {value!s:.80}")
    return value.timestamp()


def _check_text(value: Any) -> str:
    if not isinstance(value, str) or not 0 < len(value) <= MAX_TEXT:
        raise ValueError(f"expected a text of 1 to {MAX_TEXT} characters, not {quote_short(value)}")
    if "\0" in value:
        raise ValueError(NUL)
    return value


def _check_user(value: Any) -> str:
    """Users are printed in logs and on terminals."""
    if CONTROLS.search(found := _check_text(value)):
        raise ValueError("It contains a control character")
    return found


def _check_metadata(value: Mapping[str, object] | None) -> dict[str, object]:
    if value and (mistakes := list(find_nul(json.decode(json.encode(value)), "metadata"))):
        raise invalid("The request is not valid", mistakes)
    return dict(value or {})


CHECKS: Mapping[str, Callable[[Any], object]] = {
    "user": _check_user,
    "priority": lambda value: check_int("it", value, -MAX_PRIORITY, MAX_PRIORITY),
    "delay": seconds,
    "debounce": seconds,
    "at": lambda value: None if value is None else moment(value),
    "key": lambda value: None if value is None else _check_text(value),
    "metadata": _check_metadata,
}


class JobSnapshot(Struct, Generic[R_co], frozen=True):
    """A job as it was at one moment."""

    id: str
    status: Status
    progress: float
    """0 to 100."""
    error: Failure | None
    value: Any

    @property
    def result(self) -> R_co:
        """The result of the last stage; a mapping by stage if there are several last stages. Raises `NotFinished`."""
        if self.status is not Status.COMPLETED:
            raise NotFinished(job_id=self.id, status=self.status.value, verb="give its result")
        value: R_co = self.value
        return value


class JobHandle(Protocol[R_co]):
    """A submitted job. Each method exists twice: blocking, and as a coroutine with the prefix ``a_``."""

    id: str

    def wait(self, timeout: float | None = None) -> JobSnapshot[R_co]:
        """Wait until the job has ended or ``timeout`` seconds have passed. Check the status of the snapshot."""

    async def a_wait(self, timeout: float | None = None) -> JobSnapshot[R_co]: ...

    def events(self, after: int = 0) -> Iterator[Event]:
        """Events after number ``after``, as they happen, until the job has ended."""

    def a_events(self, after: int = 0) -> AsyncIterator[Event]: ...

    def watch(self) -> Iterator[JobSnapshot[R_co]]:
        """The job as it is now, then again when its status or progress has changed, until it has ended."""

    def a_watch(self) -> AsyncIterator[JobSnapshot[R_co]]: ...

    def cancel(self) -> JobSnapshot[R_co]: ...

    async def a_cancel(self) -> JobSnapshot[R_co]: ...

    def retry(self, stage: str | None = None, *, failed_elements: bool = False) -> JobSnapshot[R_co]:
        """Start a new run: of unfinished stages, from a stage on, or of everything (``*``).

        ``failed_elements``: of the elements that failed and were left out, and of what follows them.
        """

    async def a_retry(self, stage: str | None = None, *, failed_elements: bool = False) -> JobSnapshot[R_co]: ...

    @overload
    def result_of(self, stage: Stage[..., Coroutine[Any, Any, R | Later | Skip]]) -> R: ...
    @overload
    def result_of(self, stage: Stage[..., R | Later | Skip]) -> R: ...
    @overload
    def result_of(self, stage: list[R]) -> list[R]: ...
    def result_of(self, stage: Any) -> Any:
        """The result of the stage. Raises `NotFinished` while there is none.

        For a stage that runs once per element use ``result_of(gather(stage))``, which is typed as a list.
        """

    @overload
    async def a_result_of(self, stage: Stage[..., Coroutine[Any, Any, R | Later | Skip]]) -> R: ...
    @overload
    async def a_result_of(self, stage: Stage[..., R | Later | Skip]) -> R: ...
    @overload
    async def a_result_of(self, stage: list[R]) -> list[R]: ...
    async def a_result_of(self, stage: Any) -> Any: ...


class Submitter(Protocol):
    """Where a pipeline submits its jobs. Encoding ``params`` with ``pipeline.schema`` checks them."""

    def submit(self, pipeline: Pipeline[Any], params: object, options: Options) -> JobHandle[Any]:
        """Submit the job. When this returns, it is durable."""

    async def a_submit(self, pipeline: Pipeline[Any], params: object, options: Options) -> JobHandle[Any]: ...

    def submit_many(
        self, pipeline: Pipeline[Any], jobs: Sequence[tuple[object, SubmitOptions]]
    ) -> list[JobHandle[Any] | PackhorseError]:
        """Submit jobs, each with its parameters and options: its handle, or why it was refused, in their order."""

    async def a_submit_many(
        self, pipeline: Pipeline[Any], jobs: Sequence[tuple[object, SubmitOptions]]
    ) -> list[JobHandle[Any] | PackhorseError]: ...

    def find(self, pipeline: Pipeline[Any], job_id: str, user: str) -> JobHandle[Any]:
        """A job of the pipeline that was submitted earlier. Raises JobNotFound."""

    async def a_find(self, pipeline: Pipeline[Any], job_id: str, user: str) -> JobHandle[Any]: ...
