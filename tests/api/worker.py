"""A worker as a process of its own, with the settings of the environment."""

from __future__ import annotations

import asyncio
import signal

from packhorse.engine.describe import describe
from packhorse.engine.worker import Worker
from packhorse.settings import load
from packhorse.wiring import opened


async def main() -> None:
    settings = load().settings
    store, blobs = await opened(settings)
    worker = Worker(store, blobs, settings, await describe(settings.app))
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    await worker.run(stop)
    await store.close()
    await blobs.close()


if __name__ == "__main__":
    asyncio.run(main())
