"""A background role: one step at a time, for ever, and a failed step never ends it."""

from __future__ import annotations

import asyncio
from typing import Protocol

from packhorse.errors import PackhorseError
from packhorse.telemetry import log

AFTER_FAILURE = 1.0


class Duty(Protocol):
    async def tick(self) -> float:
        """Do one step; return the seconds until the next."""


async def keep(duty: Duty) -> None:
    while True:
        try:
            wait = await duty.tick()
        except (PackhorseError, OSError) as error:
            log.duty_failed(type(duty).__name__.lower(), error)
            wait = AFTER_FAILURE
        await asyncio.sleep(wait)
