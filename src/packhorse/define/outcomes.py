"""How a stage ends when it neither returns its result nor simply fails."""

from __future__ import annotations

import math

from msgspec import Struct

from packhorse.core import error_codes


class Later(Struct, frozen=True):
    """Returned: call the stage again in so many seconds. Not counted as an attempt.

    A stage that does so is annotated ``-> X | Later``; what needs it is given the ``X``.
    """

    seconds: float

    def __post_init__(self) -> None:
        if not math.isfinite(self.seconds) or self.seconds < 0:
            raise ValueError(f"Later takes seconds from now, not {self.seconds!r}")


class Permanent(Exception):
    """Raised: the job has failed, and another attempt would fail in the same way."""

    def __init__(self, message: str, code: str = error_codes.PERMANENT) -> None:
        super().__init__(message)
        self.message = message
        self.code = code
