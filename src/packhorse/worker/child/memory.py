"""The kernel's limit on the memory of a stage: a supervisor that samples once a second is too late for one allocation.

It limits what each process of the stage allocates (RLIMIT_DATA). Mapped libraries and files do not count, nor does
address space that is only reserved, so that numpy, onnxruntime or ffmpeg run as usual.
"""

from __future__ import annotations

import contextlib
import os
import re
import resource
import sys
from collections.abc import Iterator
from pathlib import Path

HEADROOM = 256 * 1024**2
"""Bytes that libraries may allocate and never touch, such as buffers."""
PER_CORE = 16 * 1024**2
"""Likewise, for each thread of a library that starts one per core: its stack and its arena."""
REFUSED = re.compile(r"std::bad_alloc|[Cc]annot allocate memory|[Ff]ailed to allocate")
"""How libraries say that they got no memory, in errors that are no MemoryError."""


@contextlib.contextmanager
def limit_memory(memory: int | None) -> Iterator[None]:
    """What is allocated meanwhile fails beyond ``memory`` bytes more than now, and some headroom."""
    if memory is None or not is_enforced():
        yield
        return
    before = resource.getrlimit(resource.RLIMIT_DATA)
    bounds = [each for each in before if each != resource.RLIM_INFINITY]
    most = min(_allocated() + memory + HEADROOM + PER_CORE * (os.cpu_count() or 1), *bounds, sys.maxsize)
    resource.setrlimit(resource.RLIMIT_DATA, (most, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, before)


def is_enforced() -> bool:
    """Whether the kernel counts all that a process allocates. Others count only the old data segment."""
    return sys.platform == "linux"


def says_refused(message: str) -> bool:
    return REFUSED.search(message) is not None


def _allocated() -> int:
    """Bytes that count for the limit already."""
    return int(Path("/proc/self/statm").read_text().split()[5]) * os.sysconf("SC_PAGE_SIZE")
