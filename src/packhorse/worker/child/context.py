"""The context of a stage in a child: every call becomes a message to the supervisor."""

from __future__ import annotations

import logging
import os
import shutil
import time
from collections.abc import Callable
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path

from packhorse.core import error_codes, json
from packhorse.core.redaction import redact
from packhorse.define.files import File, artifact_name
from packhorse.define.stages import Context, Permanent
from packhorse.worker.child.messages import FromChild, Made, Moved, Run, to_text

LONGEST = 1000
"""Characters of a progress message that are kept."""
EVERY = 0.05
"""Seconds between progress messages, however often a stage reports."""


class ChildContext(Context):
    def __init__(
        self,
        run: Run,
        send: Callable[[FromChild], None],
        monotonic: Callable[[], float] = time.monotonic,
        later: Callable[[float, Callable[[], None]], object] = lambda _seconds, _call: None,
    ) -> None:
        self.job_id = run.job_id
        self.user_id = run.user_id
        self.attempt = run.attempt
        self.trace_id = run.trace_id
        self.schedule_id = run.schedule
        self.tick = None if run.schedule is None else datetime.fromtimestamp(run.tick, UTC)
        self.previous = json.decode(run.previous) if run.previous else None
        self.is_cancelled = False
        self._call = run.call
        # Not the run itself: printing a context must not show its secrets.
        self._cut: Callable[[str], str] = lambda text: run.beginning(text, LONGEST)
        self._redact: Callable[[str], str] = lambda text: redact(text, run.words())
        self._kind = run.kind
        self._scratch = run.scratch
        self._send = send
        self._monotonic = monotonic
        self._later = later
        self._waiting: Moved | None = None
        self._sent_at = -EVERY
        self._copies = 0
        self.published = 0
        self._most_published = run.artifacts
        self._process = os.getpid()

    @cached_property
    def log(self) -> logging.Logger:  # type: ignore[override]
        return logging.getLogger(f"stage.{self._kind.partition('#')[0].replace('/', '.')}")

    @property
    def scratch(self) -> Path:  # type: ignore[override]
        """Created when it is first used: many stages do not need it."""
        self._folder.mkdir(parents=True, exist_ok=True)
        return self._folder

    @property
    def has_scratch(self) -> bool:
        """Whether the folder was used so far."""
        return "_folder" in self.__dict__

    @cached_property
    def _folder(self) -> Path:
        return Path(self._scratch)

    @property
    def cancelled(self) -> bool:
        return self.is_cancelled

    def progress(self, current: float, total: float | None = None, message: str = "") -> None:
        if os.getpid() != self._process:
            return
        moved = Moved(self._call, float(current), None if total is None else float(total), self._cut(to_text(message)))
        now = self._monotonic()
        if now - self._sent_at < EVERY:
            if self._waiting is None:  # the stage may report nothing more for an hour
                self._later(EVERY, self.flush)
            self._waiting = moved
            return
        self._sent_at = now
        self._waiting = None
        self._send(moved)

    def flush(self) -> None:
        """Send the report that was held back, if any."""
        moved, self._waiting = self._waiting, None
        if moved is not None:
            self._send(moved)

    def artifact(self, name: str, content: Path | str | bytes) -> None:
        if os.getpid() != self._process:
            raise RuntimeError("Only the process of the stage can publish an artifact, not one that it has forked.")
        if self.published >= self._most_published:
            message = error_codes.too_many_artifacts(self._most_published)
            raise Permanent(message, error_codes.TOO_MANY_ARTIFACTS)
        name = artifact_name(name)
        last = name.rpartition("/")[2]
        if isinstance(content, bytes):
            path = self._place(last)
            path.write_bytes(content)
        else:
            path = self.keep(File(content, last))
        self._send(Made(self._call, name, str(path)))
        self.published += 1

    def redact(self, text: str) -> str:
        return self._redact(text)

    def keep(self, file: File) -> Path:
        """A path in the scratch folder that the supervisor can read: a copy if the file is elsewhere."""
        real = file.path.resolve(strict=True)
        if real.is_relative_to(self._folder.resolve()) and to_text(real) == str(real):
            return real
        path = self._place(file.name)
        shutil.copyfile(real, path)
        return path

    def _place(self, name: str) -> Path:
        self._copies += 1
        folder = self.scratch / "out" / str(self._copies)
        folder.mkdir(parents=True)
        return folder / name
