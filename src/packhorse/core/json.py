"""JSON encoding of jobs and records, the version of the stored state, and values at paths inside JSON."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import msgspec
from msgspec import Struct, field

from packhorse.core.models import Event, Failure, Firing, Job, Result, Spec, Stage, Stopping
from packhorse.core.plan import Path, Plan
from packhorse.errors import CorruptRecord, SchemaTooNew

VERSION = 3
"""Version of the stored state. A reader refuses a newer one. 2: Redis leaves fields and names out. 3: the plan has
limits, fairness or a line for its slot, which a reader that does not know them would break."""
UNREGULATED = 2
"""What every other job has, so that workers of the version before can continue with it."""
ANY = "*"  # a path step that matches every element of a list or every value of a mapping

UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError)  # UnicodeDecodeError comes from an invalid byte inside a string

T = TypeVar("T")


class UnregulatedState(Struct, frozen=True, array_like=True):
    """The part of a job that changes and that no query filters by."""

    v: int
    run: int
    events: int
    stopping: Stopping | None
    error: Failure | None
    stages: tuple[Stage, ...]
    webhooks: tuple[str, ...] = ()
    promoted: tuple[str, ...] = ()
    firing: Firing | None = None
    revived: int = 0
    lineage: int = 0
    counted: int | None = None


class State(UnregulatedState, frozen=True, array_like=True):
    """The same of a job with limits or fairness."""

    limit_values: Mapping[str, str] = field(default_factory=dict)


_encoder = msgspec.json.Encoder()
_state = msgspec.json.Decoder(State)
_spec = msgspec.json.Decoder(Spec)
_result = msgspec.json.Decoder(Result)
_events = msgspec.json.Decoder(tuple[Event, ...])

encode = _encoder.encode


_decoders: dict[Any, msgspec.json.Decoder[Any]] = {Any: msgspec.json.Decoder(), Plan: msgspec.json.Decoder(Plan)}
_making = threading.Lock()
"""msgspec crashes the process if two threads decode into a type for the first time at once."""


def decode(data: bytes | str, type: type[T] = Any) -> T:  # type: ignore[assignment]
    decoder = _decoders.get(type)
    if decoder is None:
        with _making:
            decoder = _decoders.setdefault(type, msgspec.json.Decoder(type))
    found: T = decoder.decode(data)
    return found


def record(data: bytes | str, type: type[T]) -> T:
    """Decode a record that is not a job. Raises CorruptRecord."""
    try:
        return decode(data, type)
    except UNREADABLE as error:
        what = getattr(type, "__name__", "record").lower()
        raise CorruptRecord(f"A {what} cannot be read: {error}.", what=what, reason=str(error)) from error


def state_of(job: Job) -> bytes:
    values = (
        job.run, job.events, job.stopping, job.error, job.stages, job.webhooks, job.promoted, job.firing, job.revived,
        job.lineage, job.counted,
    )  # fmt: skip
    if job.plan.needs_current_reader:
        return encode(State(VERSION, *values, job.limit_values))
    return encode(UnregulatedState(UNREGULATED, *values))


def state_from(data: bytes, job_id: str) -> State:
    state = _read(_state, data, "state", job_id)
    if state.v > VERSION:
        raise SchemaTooNew(found=state.v, known=VERSION, job_id=job_id)
    return state


def plan_from(data: bytes) -> Plan:
    """Raises CorruptRecord."""
    return record(data, Plan)


def spec_from(data: bytes, job_id: str) -> Spec:
    return _read(_spec, data, "spec", job_id)


def result_from(data: bytes, job_id: str) -> Result:
    return _read(_result, data, "result", job_id)


def events_from(data: bytes, job_id: str) -> tuple[Event, ...]:
    return _read(_events, data, "events", job_id)


def _read(decoder: msgspec.json.Decoder[T], data: bytes, what: str, job_id: str) -> T:
    try:
        return decoder.decode(data)
    except UNREADABLE as error:
        raise CorruptRecord(what=what, job_id=job_id, reason=str(error)) from error


def replace_at(value: Any, paths: Sequence[Path], change: Callable[[Any], Any]) -> Any:
    """The value with ``change`` applied to everything at the paths. None is left as it is."""
    for path in paths:
        value = _replace_at(value, path, change)
    return value


def values_at(value: Any, paths: Sequence[Path]) -> list[Any]:
    seen: list[Any] = []
    replace_at(value, paths, seen.append)
    return seen


def _replace_at(value: Any, path: Path, change: Callable[[Any], Any]) -> Any:
    if not path:
        return value if value is None else change(value)
    step, rest = path[0], path[1:]
    if isinstance(value, Mapping):
        return {
            name: _replace_at(inner, rest, change) if step in (ANY, name) else inner for name, inner in value.items()
        }
    if isinstance(value, list) and step == ANY:
        return [_replace_at(inner, rest, change) for inner in value]
    return value
