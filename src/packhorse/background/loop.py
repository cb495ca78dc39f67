"""Runs a background task: one step at a time, for ever. A step that fails does not end it."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import MutableMapping
from typing import Protocol

from packhorse.errors import PackhorseError
from packhorse.log import log, new_trace, traced

AFTER_FAILURE = 1.0
"""Seconds until the next step after one that failed, unless the task has an ``after_failure`` of its own."""


class BackgroundTask(Protocol):
    async def tick(self) -> float:
        """Do one step; return the seconds until the next."""


async def run_forever(
    task: BackgroundTask,
    beats: MutableMapping[str, float] | None = None,
    errors: MutableMapping[str, str] | None = None,
) -> None:
    """Put the time of the last step that did not fail into ``beats``, by the monotonic clock, and the error of the last
    step, if it failed, into ``errors``. Each step has a trace of its own in the log."""
    name = name_of(task)
    beats, errors = {} if beats is None else beats, {} if errors is None else errors
    while True:
        with traced(new_trace()):
            try:
                wait = await task.tick()
                beats[name] = time.monotonic()
                errors.pop(name, None)
            except Exception as error:  # broad: a failed step must not end the worker, whose stages are running
                log.background_failed(name, error)
                errors[name] = describe(error)
                wait = getattr(task, "after_failure", AFTER_FAILURE)
        await asyncio.sleep(wait)


def describe(error: Exception) -> str:
    """The message and what to do, as health shows them. An unexpected error is in the log, with its traceback."""
    return f"{error} {error.hint}".strip() if isinstance(error, PackhorseError) else type(error).__name__


def name_of(task: BackgroundTask) -> str:
    """As health and the log show it: ``dead workers`` for `DeadWorkers`."""
    return re.sub(r"(?<!^)(?=[A-Z])", " ", type(task).__name__).lower()
