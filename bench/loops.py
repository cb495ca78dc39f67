"""The event loops to choose from, for the benchmark and for its workers alike."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

import uvloop

LOOP = "BENCH_LOOP"
"""The variable by which a worker process is told."""

LOOPS: Mapping[str, Callable[[], asyncio.AbstractEventLoop]] = {
    "asyncio": asyncio.new_event_loop,
    "uvloop": uvloop.new_event_loop,
}
