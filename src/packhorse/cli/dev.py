"""`packhorse dev`: a real server and a real worker, kept running and restarted when the code changes."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Sequence
from dataclasses import replace

from packhorse.cli import USAGE
from packhorse.cli.kept import Kept
from packhorse.cli.options import SAMPLE, Places, flags_of, settings_from
from packhorse.cli.printing import forwarded
from packhorse.cli.watched import Watched
from packhorse.engine.describe import describe
from packhorse.errors import PackhorseError
from packhorse.ports import require_free
from packhorse.settings import Settings, keep_secret_key
from packhorse.wiring import opened

PORT = "3003"
LOOK = 0.5
"""Seconds between looks at the user's files."""
KNOCK = 0.05
"""Seconds between tries to reach a server that is starting."""
DRAIN = "10m"
"""How long a job may go on with the old code after a change, unless the settings say otherwise."""


def dev(file: str | None = None, /, *, port: str | None = None, places: Places = Places()) -> int:
    """Run server and worker here, and restart the worker when the code changes; a running stage keeps the old code.

    Parameters
    ----------
    file
        file.py or module:attribute with the pipelines; else the one in the settings, else the built-in sample.
    port
        Port to listen on: 3003 unless given here or in the settings.
    """
    loaded = settings_from(places, app=file, port=port)
    if loaded.origins["port"] == "default":
        loaded = settings_from(places, app=file, port=PORT)
    settings = replace(loaded.settings, app=loaded.settings.app or SAMPLE)
    require_free(settings.host, settings.port)
    drain = ["--drain", DRAIN] if loaded.origins["drain"] == "default" else []
    return asyncio.run(Dev(settings, flags_of(places), drain).run())


class Dev:
    def __init__(self, settings: Settings, flags: Sequence[str], drain: Sequence[str]) -> None:
        self._settings = settings
        self._loaded: Sequence[str] = ()
        self._over = asyncio.Event()
        self._serve = Kept("serve", ["serve", "--keyless", "--port", str(settings.port), *flags], forwarded)
        self._worker = Kept("worker", ["worker", settings.app, *drain, *flags], forwarded)

    async def run(self) -> int:
        await self._prepare()
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, self._told_to_stop)
        self._serve.start()
        self._worker.start()
        waits = [self._over.wait(), self._serve.refused.wait(), self._greet(), self._watch()]
        tasks = [asyncio.ensure_future(each) for each in waits]
        await asyncio.wait(tasks[:2], return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:
            task.cancel()
        await asyncio.gather(self._worker.end(), self._serve.end())
        return USAGE if self._serve.refused.is_set() else 0

    async def _prepare(self) -> None:
        """Fail now, with one sentence, rather than in two children over and over."""
        self._loaded = (await describe(self._settings.app)).files
        if not self._settings.secret_key:
            keep_secret_key()
        store, blobs = await opened(self._settings)
        await store.close()
        await blobs.close()

    def _told_to_stop(self) -> None:
        if self._over.is_set():
            self._worker.kill()
            self._serve.kill()
        self._over.set()

    async def _greet(self) -> None:
        host, port = self._settings.host, self._settings.port
        while True:
            with contextlib.suppress(OSError):
                _, writer = await asyncio.open_connection(host, port)
                writer.close()
                break
            await asyncio.sleep(KNOCK)
        forwarded("dev", f"{self._settings.app} runs at http://{host}:{port}; Ctrl-C ends it")
        if str(port) != PORT:
            forwarded("dev", f"other commands find it with: export PACKHORSE_URL=http://{host}:{port}")

    async def _watch(self) -> None:
        watched = Watched(self._settings.app, self._loaded)
        while True:
            await asyncio.sleep(LOOK)
            if not watched.has_changed():
                continue
            try:
                described = await describe(self._settings.app)
            except PackhorseError as error:
                watched.knows(None)
                forwarded("dev", f"{error.message}\nThe worker is restarted when it can be loaded again.")
                continue
            watched.knows(described.files)
            forwarded("dev", "the code has changed: what starts from now on runs the new one")
            self._worker.start()
