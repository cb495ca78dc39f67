"""A worker as a process of its own, as `packhorse worker` is, with a door before its claims.

SIGUSR1 shuts the door, so that a queue can be filled while a warm worker waits; SIGUSR2 opens it.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import Collection, Mapping

from bench.loops import LOOP, LOOPS
from packhorse import host
from packhorse.factory import open_both
from packhorse.settings import load
from packhorse.store.base import Claim, Decide, Store
from packhorse.worker.pool import describe
from packhorse.worker.worker import Worker, tune_gc


def hang_a_door(store: Store) -> asyncio.Event:
    is_open = asyncio.Event()
    is_open.set()
    claim = store.claim

    async def claim_through_the_door(wants: Mapping[str, int], kinds: Collection[str], decide: Decide) -> list[Claim]:
        await is_open.wait()
        return await claim(wants, kinds, decide)

    store.claim = claim_through_the_door  # type: ignore[method-assign]
    return is_open


async def main() -> None:
    settings = load().settings
    if "BENCH_BOOT" in os.environ:  # as if it ran on another machine: nobody here can see whether it lives
        boot = os.environ["BENCH_BOOT"]
        host.boot = lambda: boot
    store, blobs = await open_both(settings)
    door = hang_a_door(store)
    worker = Worker(store, blobs, settings, await describe(settings.app))
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, stop.set)
    loop.add_signal_handler(signal.SIGUSR1, door.clear)
    loop.add_signal_handler(signal.SIGUSR2, door.set)
    tune_gc()
    await worker.run(stop)
    await store.close()


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(process)d %(levelname)s %(message)s")
    with asyncio.Runner(loop_factory=LOOPS[os.environ[LOOP]]) as runner:
        runner.run(main())
