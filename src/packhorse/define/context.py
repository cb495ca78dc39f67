"""The context of a running stage (progress, log, artifacts, job), and its special outcomes: Later, Permanent."""

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
        """Report progress. Call it as often as you like: only the latest value is sent."""

    @abstractmethod
    def artifact(self, name: str, content: Path | str | bytes) -> None:
        """Publish a file beside the result, as ``{stage}/{name}``; the name may have folders.

        Of a stage that runs once per element it is ``{stage}/{element}/{name}``, counted from 0.
        A ``str`` is a path; bytes are the content itself.
        """

    def track(self, iterable: Iterable[T], total: float | None = None, message: str = "") -> Iterator[T]:
        """Iterate over ``iterable`` and report progress after each element."""
        if total is None and isinstance(iterable, Sized):
            total = len(iterable)
        self.progress(0, total, message)
        for done, element in enumerate(iterable, start=1):
            yield element
            self.progress(done, total, message)


class Later(Struct, frozen=True):
    """Return it to be called again after ``seconds``. The attempt does not count.

    Annotate such a stage ``-> X | Later``. Stages that need it receive the ``X``.
    """

    seconds: float

    def __post_init__(self) -> None:
        if not math.isfinite(self.seconds) or self.seconds < 0:
            raise ValueError(f"Later takes seconds from now, not {self.seconds!r}")


class Permanent(Exception):
    """Raise it to fail the job without further attempts."""

    def __init__(self, message: str, code: str = error_codes.PERMANENT) -> None:
        super().__init__(message)
        self.message = message
        self.code = code
