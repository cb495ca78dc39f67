"""What the disk allows: the yardstick for every rate that promises durability."""

from __future__ import annotations

import os
import time
from pathlib import Path

PAGE = b"x" * 4096


def synced_writes(folder: Path, seconds: float) -> float:
    """Appends of 4 KiB, each followed by fdatasync, per second."""
    path = folder / "raw"
    fd = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_APPEND)
    try:
        done, began = 0, time.perf_counter()
        while (taken := time.perf_counter() - began) < seconds:
            os.write(fd, PAGE)
            os.fdatasync(fd)
            done += 1
        return done / taken
    finally:
        os.close(fd)
        path.unlink()
