"""Runs a background task: one step at a time, for ever. A step that fails does not end it."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import MutableMapping
from typing import Protocol

from packhorse.log import log

AFTER_FAILURE = 1.0


class BackgroundTask(Protocol):
    async def tick(self) -> float:
        """Do one step; return the seconds until the next."""


async def run_forever(task: BackgroundTask, beats: MutableMapping[str, float] | None = None) -> None:
    """Put the time of the last step that did not fail into ``beats``, by the monotonic clock."""
    name = name_of(task)
    while True:
        try:
            wait = await task.tick()
            if beats is not None:
                beats[name] = time.monotonic()
        except Exception as error:  # broad: a failed step must not end the worker, whose stages are running
            log.background_failed(name, error)
            wait = AFTER_FAILURE
        await asyncio.sleep(wait)


def name_of(task: BackgroundTask) -> str:
    """As health and the log show it: ``dead workers`` for `DeadWorkers`."""
    return re.sub(r"(?<!^)(?=[A-Z])", " ", type(task).__name__).lower()
