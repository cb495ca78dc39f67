"""Ports for the servers of tests: each process that tests has a range of its own, below the ports that clients get.

A port that the system calls free may be given to somebody else before our server takes it. Worse, Granian sets
SO_REUSEPORT: two servers of different tests would share a port, and each would get half of the other's requests.
"""

from __future__ import annotations

import itertools
import socket
from collections.abc import Iterator
from functools import cache

FIRST, SPAN, RANGES = 20_000, 250, 50
"""They end below 32,768, where the ports of clients begin on Linux. Several runs may be under way on one machine."""


def free_port() -> int:
    for port in itertools.islice(_ports(), SPAN):
        if found := _bind(port):
            found.close()
            return port
    raise RuntimeError("No port of this process is free.")


@cache
def _ports() -> Iterator[int]:
    """The ports of this process, over and over. Its range is marked as taken by a socket at its first port."""
    for first in range(FIRST, FIRST + RANGES * SPAN, SPAN):
        if mark := _bind(first):
            _marks.append(mark)
            return itertools.cycle(range(first + 1, first + SPAN))
    raise RuntimeError(f"All {RANGES} ranges of ports from {FIRST} on are taken by other processes that test.")


_marks: list[socket.socket] = []
"""Open for as long as the process lives."""


def _bind(port: int) -> socket.socket | None:
    found = socket.socket()
    try:
        found.bind(("127.0.0.1", port))
    except OSError:
        found.close()
        return None
    return found
