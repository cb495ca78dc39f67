"""`serve` and `worker`: the two processes an installation consists of."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from dataclasses import replace

from packhorse import log
from packhorse.cli.options import SAMPLE, Pace, Places, settings_from
from packhorse.factory import open_both
from packhorse.settings import Settings
from packhorse.worker.pool import describe
from packhorse.worker.status import serve_status
from packhorse.worker.worker import Worker, tune_gc


def serve(
    *, host: str | None = None, port: str | None = None, keyless: bool = False, places: Places = Places()
) -> None:
    """Run the server.

    Parameters
    ----------
    host
        Address to listen on.
    port
        Port to listen on.
    keyless
        Ask for no key, and serve this machine only.
    """
    from packhorse.web.app import serve as serve_api

    settings = settings_from(places, host=host, port=port, keyless="yes" if keyless else None).settings
    log.write(settings.log_format, settings.log_level)
    serve_api(settings)


def worker(file: str | None = None, /, *, pace: Pace = Pace(), places: Places = Places()) -> None:
    """Run a worker. SIGTERM or Ctrl-C lets its stages finish, for a while; the second one hands them back at once.

    Parameters
    ----------
    file
        file.py or module:attribute with the pipelines; else the one in the settings, else the built-in sample.
    """
    settings = settings_from(pace, places, app=file).settings
    log.write(settings.log_format, settings.log_level)
    with asyncio.Runner(loop_factory=_loops()) as runner:
        runner.run(work(replace(settings, app=settings.app or SAMPLE)))


async def work(settings: Settings) -> None:
    store, blobs = await open_both(settings)
    try:
        worker = Worker(store, blobs, settings, await describe(settings.app))
        stop, hurry = asyncio.Event(), asyncio.Event()

        def told_to_stop() -> None:
            (hurry if stop.is_set() else stop).set()

        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, told_to_stop)
        tune_gc()
        with serve_status(worker, settings):
            await worker.run(stop, hurry)
    finally:
        await store.close()
        await blobs.close()


def _loops() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """uvloop is a faster event loop with the same meaning; without it, Python's own does."""
    try:
        from uvloop import new_event_loop
    except ImportError:
        return None
    return new_event_loop
