"""Bytes of a file that lie in memory already: read on the spot, where a thread would cost more than they do."""

from __future__ import annotations

import os
import threading
from mmap import mmap

from packhorse.blobs.base import LARGEST

NOWAIT: int | None = getattr(os, "RWF_NOWAIT", None)
"""Linux alone can be asked not to wait."""


class _Pages(threading.local):
    def __init__(self) -> None:
        self.buffer = mmap(-1, LARGEST)


_pages = _Pages()
"""Whole pages, used again and again: copying from the cache to any other address takes up to twice as long."""


def read(fd: int, size: int, start: int) -> bytes | None:
    """Up to so many bytes; None if the disk would have to be waited for, or there may be no more.

    Whatever else is wrong is left to be found by whoever waits: not every file system can tell. So is the end: Linux
    5.9 and 5.10 may say none where there are some.
    """
    if NOWAIT is None:
        return None
    buffer = _pages.buffer
    try:
        return buffer[: os.preadv(fd, [memoryview(buffer)[:size]], start, NOWAIT)] or None
    except OSError:
        return None
