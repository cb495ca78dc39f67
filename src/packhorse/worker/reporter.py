"""Collects progress, log lines and samples of running stages, and stores them a few times a second."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence

from packhorse.core.models import TaskId
from packhorse.errors import StoreError
from packhorse.plurals import counted
from packhorse.store.base import Line, Report, Sample, Store

LINE = 32
"""Bytes that a line counts besides its text: otherwise empty lines would be free."""
MOST_LINES = 20_000
"""Lines kept while the store is away: an empty one takes memory, too."""
PERIOD = 0.1
"""Seconds between writes, so that a watcher sees progress within a quarter of a second."""


class Reporter:
    def __init__(self, store: Store, *, log_limit: int, samples: int) -> None:
        self._store = store
        self._log_limit = log_limit
        self._keep = samples
        self._reports: dict[tuple[str, TaskId], Report] = {}
        self._lines: list[Line] = []
        self._size = 0
        """Bytes that the lines count."""
        self._samples: list[Sample] = []
        self._writing = asyncio.Lock()

    def report(self, report: Report) -> None:
        """Only the latest of a task is stored."""
        self._reports[report.job_id, report.task] = report

    def line(self, line: Line) -> None:
        self._lines.append(line)
        self._size += max(1, len(line.text))
        # The store is slow or away, and stages keep printing.
        if self._size > 2 * self._log_limit or len(self._lines) > 2 * MOST_LINES:
            self._keep_lines(self._lines)

    def sample(self, sample: Sample) -> None:
        self._samples.append(sample)

    async def work(self) -> None:
        while True:
            await asyncio.sleep(PERIOD)
            await self.flush()

    async def flush(self) -> None:
        """Store what there is. While the store is away, progress waits, and log lines up to the limit of a job.

        One flush at a time: on return, everything that was reported before the call is stored.
        """
        async with self._writing:
            await self._flush()

    async def _flush(self) -> None:
        reports, self._reports = self._reports, {}
        lines, self._lines, self._size = self._lines, [], 0
        samples, self._samples = self._samples, []
        try:
            if reports:
                await self._store.report(list(reports.values()))
                reports = {}
            if lines:
                await self._store.log(lines, keep=self._log_limit)
                lines = []  # stored: if the samples fail, lines must not be stored twice
            if samples:
                await self._store.sample(samples, keep=self._keep)
        except StoreError:
            self._reports = reports | self._reports
            self._keep_lines(lines + self._lines)
            self._samples = (samples + self._samples)[-self._keep :]

    def _keep_lines(self, lines: list[Line]) -> None:
        """The newest of them, up to the limit of a job in bytes and to `MOST_LINES`."""
        kept, self._size = 0, 0
        for line in reversed(lines[-MOST_LINES:]):
            cost = max(1, len(line.text))
            if self._size + cost > self._log_limit:
                break
            kept, self._size = kept + 1, self._size + cost
        self._lines = lines[len(lines) - kept :]


class Throttle:
    """Lets ``rate`` bytes per second through, and counts the lines it holds back."""

    def __init__(self, rate: int, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._rate = rate
        self._monotonic = monotonic
        self._left = float(rate)
        self._at = monotonic()
        self._held_back = 0

    def admit(self, lines: Sequence[str]) -> list[str]:
        """Those of the lines that may pass. The rest is counted at once when not even an empty line may."""
        now = self._monotonic()
        self._left = min(self._rate, self._left + (now - self._at) * self._rate)
        self._at = now
        admitted: list[str] = []
        for i, text in enumerate(lines):
            cost = len(text) + LINE
            if self._left < LINE:
                self._held_back += len(lines) - i
                break
            if cost > self._left:
                self._held_back += 1
                continue
            self._left -= cost
            admitted += [*self.remainder(), text]
        return admitted

    def remainder(self) -> list[str]:
        held_back, self._held_back = self._held_back, 0
        return [f"... {counted(held_back, 'line')} held back ..."] if held_back else []
