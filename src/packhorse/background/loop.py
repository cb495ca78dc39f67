"""A background role: one step at a time, for ever, and a failed step never ends it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import MutableMapping
from typing import Protocol

from packhorse.log import log

AFTER_FAILURE = 1.0


class Duty(Protocol):
    async def tick(self) -> float:
        """Do one step; return the seconds until the next."""


async def keep(duty: Duty, beats: MutableMapping[str, float] | None = None) -> None:
    """``beats`` is told when it last did a step without fault, by the steady clock."""
    name = type(duty).__name__.lower()
    while True:
        try:
            wait = await duty.tick()
            if beats is not None:
                beats[name] = time.monotonic()
        except Exception as error:  # broad: a step that fails must not take the worker along, whose stages are running
            log.duty_failed(name, error)
            wait = AFTER_FAILURE
        await asyncio.sleep(wait)
