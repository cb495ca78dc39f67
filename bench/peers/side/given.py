"""What a contender is told through its environment."""

from __future__ import annotations

import os

URL = os.environ.get("BENCH_URL", "")
"""Of the store."""
SLOTS = int(os.environ.get("BENCH_SLOTS", "0"))
"""Jobs at the same time, 0 for what suits the library."""
IS_SAFE = os.environ.get("BENCH_SAFE") == "1"
"""Whether a worker is going to be killed: recovery is set as short as the library's options allow for these jobs."""
LONG = float(os.environ.get("BENCH_LONG", "3"))
"""Seconds a job takes that is to be interrupted."""
