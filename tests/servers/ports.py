"""Ports for the servers of tests: each test process has a range of its own, below the ports that clients get.

A port that the system calls free may be given to somebody else before our server takes it. Worse, Granian sets
SO_REUSEPORT: two servers of different tests would share a port, and each would get half of the other's requests.
"""

from __future__ import annotations

import itertools
import os
import random
import socket

FIRST = 20_000
SPAN = 1_500
"""Ports per process. Eight ranges fit below 32,768, where the ports of clients begin on Linux."""

_process = int(os.environ.get("PYTEST_XDIST_WORKER", "gw7").removeprefix("gw")) % 8
_numbers = itertools.count(random.SystemRandom().randrange(SPAN))


def free_port() -> int:
    for number in itertools.islice(_numbers, SPAN):
        port = FIRST + _process * SPAN + number % SPAN
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise RuntimeError(f"No port is free from {FIRST + _process * SPAN} on.")
