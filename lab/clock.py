"""Replaces the clocks and the randomness of this process. Import it, and `install`, before anything of packhorse.

Functions of packhorse take `time.monotonic` as a default argument, so a later replacement would not reach all of them.
"""

from __future__ import annotations

import random
import secrets
import time
import uuid
from typing import Protocol

EPOCH = 1_800_000_000.0
"""The time of day at which a simulation begins."""


class Clock(Protocol):
    def monotonic(self) -> float: ...

    def wall(self) -> float:
        """The time of day, as the machine that asks has it."""


_real_monotonic, _real_time = time.monotonic, time.time
_current: Clock | None = None
_luck = random.Random(0)


def install() -> None:
    """From now on, `time` shows the time of the simulation while there is one."""
    time.monotonic = _monotonic
    time.time = _time
    secrets.token_hex = _token_hex
    import uuid_utils  # after the clock, like everything that could keep one

    uuid_utils.uuid7 = _uuid7  # type: ignore[assignment]


def enter(clock: Clock, seed: int) -> None:
    """Let this clock and this seed decide everything."""
    global _current
    _current = clock
    _luck.seed(f"names {seed}")
    random.seed(f"luck {seed}")


def leave() -> None:
    global _current
    _current = None


def real_time() -> float:
    """Seconds that really pass."""
    return _real_monotonic()


def _monotonic() -> float:
    return _real_monotonic() if _current is None else _current.monotonic()


def _time() -> float:
    return _real_time() if _current is None else _current.wall()


def _token_hex(nbytes: int | None = None) -> str:
    return _luck.randbytes(32 if nbytes is None else nbytes).hex()


def _uuid7() -> uuid.UUID:
    return uuid.UUID(int=int(time.time() * 1000) << 80 | 0x7 << 76 | 0b10 << 62 | _luck.getrandbits(62))
