"""A worker as a process of its own, as `packhorse worker` is; a crash point may be hung with a SIGKILL."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections import Counter

import psutil

from packhorse import crashpoints, host
from packhorse.factory import open_both
from packhorse.settings import load
from packhorse.worker.pool import describe
from packhorse.worker.worker import Worker


def hang(point: str, pass_number: int) -> None:
    """Die at the n-th pass of the point, as a power cut of this process alone would have it."""
    passes: Counter[str] = Counter()

    def passing(name: str, _by: object) -> None:
        passes[name] += 1
        if name == point and passes[name] == pass_number:
            os.kill(os.getpid(), signal.SIGKILL)

    crashpoints.hook = passing


def is_ours(pid: int) -> bool:
    """Whether it is this process or comes from it: those of another machine have no pid here."""
    try:
        return os.getpid() in (pid, *(parent.pid for parent in psutil.Process(pid).parents()))
    except psutil.Error:
        return False


async def main() -> None:
    settings = load().settings
    if "JOURNEY_HOST" in os.environ:  # as if it ran on a machine of its own: nobody else can see whether it lives
        name, born = os.environ["JOURNEY_HOST"], host.born
        host.boot = lambda: name
        host.born = lambda pid, **options: born(pid, **options) if is_ours(pid) else None
    store, blobs = await open_both(settings)
    worker = Worker(store, blobs, settings, await describe(settings.app))
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    if "JOURNEY_CRASH" in os.environ:
        point, _, number = os.environ["JOURNEY_CRASH"].partition(":")
        hang(point, int(number))
    await worker.run(stop)
    await store.close()


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(process)d %(message)s")
    asyncio.run(main())
