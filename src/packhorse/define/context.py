"""What a running stage is given to speak with: progress, log, artifacts, and who it runs for."""

from __future__ import annotations

import logging
import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sized
from datetime import datetime
from pathlib import Path
from typing import Any, TypeVar

from msgspec import Struct

from packhorse.core import error_codes

T = TypeVar("T")


class Context(ABC):
    """Nothing here is a coroutine and nothing waits for the network, so sync and async stages read the same."""

    job_id: str
    user_id: str
    attempt: int
    """1 for the first attempt of a run."""
    trace_id: str
    scratch: Path
    """A folder of this attempt alone, gone when it ends."""
    log: logging.Logger
    schedule_id: str | None = None
    """The schedule that has made the job, if one has."""
    tick: datetime | None = None
    """The moment it was made for, in UTC: however late it is run, and however often it is retried, the same."""
    previous: Any = None
    """What the last completed run before this tick returned, as JSON; a file in it is named, sized and summed.

    None at first, after an edit of the schedule, and when that job is kept no more: it is a memory, not a store.
    """

    @property
    @abstractmethod
    def cancelled(self) -> bool:
        """Whether the job is being stopped. A stage that looks can tidy up; one that does not is ended all the same."""

    @abstractmethod
    def progress(self, current: float, total: float | None = None, message: str = "") -> None:
        """Say how far it is. Call it as often as you like: only the latest of each moment travels."""

    @abstractmethod
    def artifact(self, name: str, content: Path | str | bytes) -> None:
        """Publish a file beside the result, as ``{stage}/{name}``; the name may have folders.

        Of a stage that runs once per element it is ``{stage}/{element}/{name}``, counted from 0.
        A ``str`` is a path; bytes are the content itself.
        """

    def track(self, iterable: Iterable[T], total: float | None = None, message: str = "") -> Iterator[T]:
        """Go through ``iterable`` and report each element when the loop is done with it."""
        if total is None and isinstance(iterable, Sized):
            total = len(iterable)
        self.progress(0, total, message)
        for done, element in enumerate(iterable, start=1):
            yield element
            self.progress(done, total, message)


class Later(Struct, frozen=True):
    """Returned: call the stage again in so many seconds. Not counted as an attempt.

    A stage that does so is annotated ``-> X | Later``; what needs it is given the ``X``.
    """

    seconds: float

    def __post_init__(self) -> None:
        if not math.isfinite(self.seconds) or self.seconds < 0:
            raise ValueError(f"Later takes seconds from now, not {self.seconds!r}")


class Permanent(Exception):
    """Raised: the job has failed, and another attempt would fail in the same way."""

    def __init__(self, message: str, code: str = error_codes.PERMANENT) -> None:
        super().__init__(message)
        self.message = message
        self.code = code
