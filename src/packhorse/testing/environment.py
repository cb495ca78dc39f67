"""What a bench runs in: its clock, its store and files, and what the test has arranged for its stages."""

from __future__ import annotations

import asyncio
import os
import secrets
import shutil
import tempfile
from collections.abc import Callable, Collection, Coroutine
from concurrent.futures import Future
from contextlib import ExitStack
from dataclasses import replace
from enum import Enum
from pathlib import Path
from typing import Any, Generic, TypedDict, TypeVar

from packhorse.blobs.base import Blobs
from packhorse.blobs.local import Folder
from packhorse.define.stages import Stage
from packhorse.errors import StoreUnavailable
from packhorse.plurals import counted
from packhorse.runtime import Runtime
from packhorse.settings import Settings
from packhorse.store.base import Store
from packhorse.store.sqlite import SqliteStore

T = TypeVar("T")

MEMORY = Path("/dev/shm")  # noqa: S108 (each bench has a folder of its own there)
"""A file system in memory, if the machine has one: a sync takes no time there."""
RECORDS, OBJECTS = 16 * 1024**2, 1024**3
"""Bytes that must be free in it for the database, and for files of any size: in a container it may have 64 MB."""


class Clock:
    """Stands still until it is set."""

    def __init__(self, now: float) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


class Place(Runtime):
    """The runtime behind ``.submit()``, with a store and files of its own that use the clock of the bench."""

    def __init__(self, clock: Clock, settings: Settings | None) -> None:
        self._clock = clock
        self._temporary = ExitStack()
        self.folder = self._new_folder(None)
        """On disk: for files of any size, and for programs, which a file system in memory often refuses to execute."""
        self._database = self._new_folder(_memory(RECORDS)) / "packhorse.db"
        self._objects = self._new_folder(_memory(OBJECTS)) / "blobs"
        self._is_closed = False
        settings = settings or Settings()
        super().__init__(
            replace(
                settings,
                scratch=str(self.folder / "scratch"),
                secret_key=settings.secret_key or secrets.token_urlsafe(32),
            )
        )

    async def _open_both(self) -> tuple[Store, Blobs]:
        return await SqliteStore.open(self._database, self._clock), Folder(self._objects)

    def wait_for(self, work: Coroutine[Any, Any, T]) -> T:
        if self._is_closed:
            work.close()
            raise StoreUnavailable("The bench is closed.")
        return super().wait_for(work)

    def begin(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Start the work without waiting for it. `wait_for` must have been called before."""
        assert self._loop is not None
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def downloads(self, job_id: str) -> Path:
        folder = self.folder / "downloads" / job_id
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def close(self) -> None:
        super().close()
        self._is_closed = True
        self._temporary.close()

    def _new_folder(self, where: Path | None) -> Path:
        folder = tempfile.TemporaryDirectory(prefix="packhorse-bench-", dir=where)
        return Path(self._temporary.enter_context(folder))


def _memory(room: int) -> Path | None:
    has_room = os.access(MEMORY, os.W_OK) and shutil.disk_usage(MEMORY).free >= room
    return MEMORY if has_room else None


Hook = Callable[[str], object]  # called with the id of the job


class Fault(Enum):
    """What happens to an attempt instead of its stage."""

    CRASH = "its process dies"
    LOSE = "its worker dies"
    STALL = "it reports nothing more and does not end"
    TIME_OUT = "it keeps reporting and does not end"


class Moment(Enum):
    """When a hook is called."""

    BEFORE = "the attempt has begun, the stage is not called yet"
    DURING = "the stage has reported progress"
    AFTER = "the outcome is recorded"


class Attempts(TypedDict, total=False):
    """Which attempts of a stage are meant."""

    times: int | None
    """How many of the next attempts, None for all. Default: 1."""
    element: int | None
    """Only attempts of this element, counted from 0, of a stage that runs once per element. Default: any."""


class Rule(Generic[T]):
    """Something that a test has arranged for the next attempts of a stage."""

    def __init__(self, what: T, stage: Stage[..., Any], *, times: int | None = 1, element: int | None = None) -> None:
        self.what = what
        self.stage = stage
        self.is_used = False
        """Whether it was for any attempt so far."""
        self._kind = stage.plan.kind
        self.element = element
        self._left = times

    def applies(self, kind: str, element: int) -> bool:
        """Whether it is for this attempt. If so, this attempt uses it up by one."""
        if self._kind != kind or self.element not in (None, element) or self._left == 0:
            return False
        if self._left is not None:
            self._left -= 1
        self.is_used = True
        return True


class Script:
    """Everything that a test has arranged."""

    def __init__(self) -> None:
        self.faults: list[Rule[Fault | BaseException]] = []
        self.hooks: list[tuple[Moment, int, Rule[Hook]]] = []
        self.replacements: dict[str, Callable[..., Any]] = {}
        """The function to call instead of a stage's own, by the kind of the stage."""
        self.reports: dict[str, int] = {}
        """The most reports of one call of a stage, by its kind. A stage that was not called is not in it."""

    def next_fault(self, kind: str, element: int) -> Fault | BaseException | None:
        """The first that was arranged for such an attempt and is not used up."""
        return next((rule.what for rule in self.faults if rule.applies(kind, element)), None)

    def next_hooks(self, moment: Moment, reports: int, kind: str, element: int) -> list[Hook]:
        return [
            rule.what
            for when, after, rule in self.hooks
            if (when, after) == (moment, reports) and rule.applies(kind, element)
        ]

    def require_during(self, kinds: Collection[str] | None = None) -> None:
        """Raises `AssertionError` for a hook that waited for a report that did not come. None: of any stage."""
        for each in list(self.hooks):
            moment, report, rule = each
            kind, name = rule.stage.plan.kind, rule.stage.name
            is_over = kinds is None or (kind in kinds and kind in self.reports)  # a later run may call the stage
            if moment is Moment.DURING and not rule.is_used and is_over:
                self.hooks.remove(each)  # so that it is reported once
                element = "" if rule.element is None else f", element={rule.element}"
                count = self.reports.get(kind)
                seen = "was not called" if count is None else f"called ctx.progress {counted(count, 'time')}"
                raise AssertionError(
                    f"The hook of during({name}, report={report}{element}) did not run: {name} {seen}. "
                    f"Call ctx.progress in {name}, or use before() or after(), which need no report."
                )
