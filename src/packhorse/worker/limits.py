"""Stops attempts that exceed their time, stall or memory limit, and records the CPU and memory they use."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterable, Mapping

import psutil

from packhorse.log import log
from packhorse.store.base import Lease, Sample
from packhorse.worker.attempt import Attempt, StopReason
from packhorse.worker.pool import Pool
from packhorse.worker.process import Child
from packhorse.worker.reporter import Reporter

LOOK = 0.05
"""Seconds between checks of timeouts and stalls."""
SAMPLE = 1.0
"""Seconds between samples of CPU and memory. Memory limits are checked with them."""
START_PERIOD = 0.2
"""Seconds an attempt runs before we check whether it should stop: most have ended by then."""


def past_start(attempts: Iterable[Attempt]) -> list[Attempt]:
    now = time.monotonic()
    return [attempt for attempt in attempts if now - attempt.began > START_PERIOD]


class Limits:
    def __init__(
        self, running: Mapping[Lease, Attempt], pool: Pool, reporter: Reporter, now: Callable[[], float]
    ) -> None:
        self._running = running
        self._pool = pool
        self._reporter = reporter
        self._now = now

    async def watch_time(self) -> None:
        while True:
            await asyncio.sleep(LOOK)
            now = time.monotonic()
            for attempt in list(self._running.values()):
                if not attempt.is_sent:  # loading the app has a limit of its own, and does not count for the stage
                    continue
                if now - attempt.began > attempt.plan.timeout:
                    attempt.stop(StopReason.TIMEOUT)
                elif attempt.plan.stall is not None and now - attempt.moved_at > attempt.plan.stall:
                    attempt.stop(StopReason.STALLED)

    async def watch_memory(self) -> None:
        while True:
            await asyncio.sleep(SAMPLE)
            if not past_start(self._running.values()):  # no need to read every process of the machine
                continue
            try:
                self._record(await asyncio.to_thread(_measure, self._pool.busy()))
            except Exception as error:  # broad: one failed measurement must not end the loop
                log.background_failed("sampling", error)

    def _record(self, used: Mapping[Child, tuple[float, int]]) -> None:
        for attempt in past_start(self._running.values()):
            if attempt.child is not None and attempt.child in used:
                cpu, memory = used[attempt.child]
                attempt.child.memory = memory
                lease = attempt.lease
                self._reporter.sample(Sample(lease.job_id, lease.task, self._now(), cpu, memory))
                if attempt.plan.memory is not None and memory > attempt.plan.memory:
                    attempt.stop(StopReason.MEMORY)


def _measure(children: list[Child]) -> dict[Child, tuple[float, int]]:
    return {child: _usage(child.tree()) for child in children}


def _usage(tree: list[psutil.Process]) -> tuple[float, int]:
    """CPU, as a share of one core, since the last call, and resident memory of a process tree."""
    cpu, memory = 0.0, 0
    for process in tree:
        with contextlib.suppress(psutil.Error):
            cpu += process.cpu_percent(None) / 100
            memory += process.memory_info().rss
    return cpu, memory
