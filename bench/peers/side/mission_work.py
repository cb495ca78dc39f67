"""What each stage of the mission does to its file, whatever stack runs it. Nobody's application code."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

CHUNK = 1024 * 1024
EVERY = 0.1  # seconds between two reports of progress
TABLE = bytes((7 * i + 3) % 256 for i in range(256))


def transform(source: Path, made: Path, seconds: float, report: Callable[[int, int], object]) -> None:
    """Write the file again, byte by byte another one. ``seconds``: how long it takes at least."""
    total = max(1, source.stat().st_size)
    done, began = 0, time.monotonic()
    told = began
    report(0, total)
    with source.open("rb") as given, made.open("wb") as out:
        while chunk := given.read(CHUNK):
            out.write(chunk.translate(TABLE))
            done += len(chunk)
            if time.monotonic() - told >= EVERY:
                told = time.monotonic()
                report(done, total)
    while (left := began + seconds - time.monotonic()) > 0:
        time.sleep(min(EVERY, left))
        report(done, total)
    report(total, total)
