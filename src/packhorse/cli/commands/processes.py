"""`serve` and `worker`, the two processes of an installation; and `dev`, which runs both and restarts them."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from packhorse import log
from packhorse.cli import USAGE
from packhorse.cli.options import SAMPLE, Pace, Places, flags_of, settings_from
from packhorse.cli.output import forward
from packhorse.cli.reloader import Watched
from packhorse.cli.supervisor import Kept
from packhorse.define.validation import list_some
from packhorse.errors import AppMissing, BlobUnavailable, PackhorseError, SettingError, SeveralApps
from packhorse.factory import open_both, publish_destination, run_app_sql
from packhorse.host import StageUser, hide_settings, require_free_port
from packhorse.jobs.deployment import PATIENCE
from packhorse.plurals import plural
from packhorse.settings import (
    DEV_PORT,
    PREFIX,
    PRODUCTION,
    Loaded,
    Settings,
    dev_allow,
    dev_url,
    keep_dev_url,
    keep_secret_key,
)
from packhorse.worker.pool import describe
from packhorse.worker.status import serve_status
from packhorse.worker.worker import Worker, tune_gc

LOOK = 0.5  # seconds between looks at the user's files
KNOCK = 0.05  # seconds between tries to reach a server that is starting
NO_APP = re.compile(r"test_|conftest\.py|.*_test\.py")  # names of files that make an App only for tests
MAKES_APP = re.compile(r"^\w+(?:\s*:[^=\n]+)?\s*=\s*(?:packhorse\.)?App\(", re.MULTILINE)
DRAIN = "10m"  # how long a stage may continue with the old code after a change, unless the settings say otherwise


def serve(
    *, host: str | None = None, port: str | None = None, keyless: bool = False, places: Places = Places()
) -> None:
    """Run the server.

    Args:
        host: Address to listen on.
        port: Port to listen on.
        keyless: Require no API key, and accept requests from this machine only.
    """
    from packhorse.web.app import serve as serve_api

    loaded = settings_from(places, host=host, port=port, keyless="yes" if keyless else None)
    settings = loaded.settings
    log.write(settings.log_format, settings.log_level)
    hide_settings(loaded.borrowed)
    serve_api(settings)


def worker(file: str | None = None, /, *, pace: Pace = Pace(), places: Places = Places()) -> None:
    """Run a worker. Ctrl-C or SIGTERM waits for running stages (--drain); a second one returns them at once.

    Args:
        file: file.py or module:attribute with the pipelines. Default: the app in the settings.
    """
    loaded = settings_from(pace, places, app=file)
    settings = loaded.settings
    if not settings.app:
        raise AppMissing
    log.write(settings.log_format, settings.log_level)
    hide_settings(loaded.borrowed)
    with asyncio.Runner(loop_factory=_loops()) as runner:
        runner.run(work(settings))


async def work(settings: Settings) -> None:
    store, blobs = await open_both(settings)
    published = publish_destination(store, settings)
    try:
        if published is not None:
            with contextlib.suppress(BlobUnavailable, TimeoutError):  # the janitor claims it before it publishes
                async with asyncio.timeout(PATIENCE):
                    await published.claim()
        described = await describe(settings.app, StageUser.find(settings.stage_user))
        worker = Worker(store, blobs, settings, described, published)
        # In the background: an index of a large table can take minutes, and jobs do not need it.
        sql = asyncio.create_task(run_app_sql(settings, described.postgres))
        stop, hurry = asyncio.Event(), asyncio.Event()

        def told_to_stop() -> None:
            (hurry if stop.is_set() else stop).set()

        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, told_to_stop)
        tune_gc()
        try:
            with serve_status(worker, settings):
                await worker.run(stop, hurry)
        finally:
            sql.cancel()
            await asyncio.wait([sql])
    finally:
        await store.close()
        await blobs.close()
        if published is not None:
            await published.blobs.close()


def _loops() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """uvloop is a faster event loop with the same meaning; without it, Python's own does."""
    try:
        from uvloop import new_event_loop
    except ImportError:
        return None
    return new_event_loop


def dev(*files: str, port: str | None = None, places: Places = Places()) -> int:
    """Run a server and a worker here. dev restarts the worker when its code changes; running stages keep the old code.

    Args:
        files: file.py or module:attribute with the pipelines. Default: the app in the settings, else the only .py file
            in this folder that makes an App, else the built-in sample. Each of several files gets its own worker.
        port: Port to listen on: 3003 unless given here or in the settings.
    """
    loaded = with_dev_port(settings_from(places, port=port))
    settings = loaded.settings
    if settings.env == PRODUCTION:
        message = "packhorse dev does not run with PACKHORSE_ENV=production, because it serves without keys."
        raise SettingError(f"{message} Start packhorse serve and packhorse worker, or unset PACKHORSE_ENV.", name="env")
    require_free_port(settings.host, settings.port)
    drain = ["--drain", DRAIN] if loaded.origins["drain"] == "default" else []
    apps = list(dict.fromkeys(files)) or [settings.app or find_app(Path())]
    return asyncio.run(Dev(loaded, apps, flags_of(places), drain).run())


def with_dev_port(loaded: Loaded) -> Loaded:
    """The port of `dev` where nobody names one. Nothing else differs from other commands in this folder."""
    if not loaded.origins["port"].startswith("default"):
        return loaded
    return replace(loaded, settings=replace(loaded.settings, port=DEV_PORT))


def find_app(folder: Path) -> str:
    """The file in this folder that makes an App, or the built-in sample if none does. Fails if several do."""
    found = [path.name for path in sorted(folder.glob("*.py")) if not NO_APP.match(path.name) and _makes_app(path)]
    if len(found) > 1:
        raise SeveralApps(files=", ".join(found))
    if found:
        forward("dev", f"running {found[0]}, the only file in this folder that makes an App")
        return found[0]
    forward("dev", "no file in this folder makes an App: running the built-in sample")
    forward("dev", "run your own pipelines with: packhorse dev FILE.py")
    return SAMPLE


def _makes_app(path: Path) -> bool:
    with contextlib.suppress(OSError):
        return MAKES_APP.search(path.read_text(errors="replace")) is not None
    return False


class Dev:
    def __init__(self, loaded: Loaded, apps: Sequence[str], flags: Sequence[str], drain: Sequence[str]) -> None:
        settings = self._settings = loaded.settings
        self._loaded = loaded
        self._user = StageUser.find(settings.stage_user)
        self._over = asyncio.Event()
        self._url = f"http://{settings.host}:{settings.port}"
        env = {**os.environ, f"{PREFIX}OUTBOUND_ALLOW": dev_allow(settings)}
        self._serve = Kept("serve", ["serve", "--keyless", "--port", str(settings.port), *flags], forward, env)
        self._workers = {
            app: Kept("worker" if len(apps) == 1 else f"worker {app}", ["worker", app, *drain, *flags], forward, env)
            for app in apps
        }

    async def run(self) -> int:
        hide_settings(self._loaded.borrowed)  # server and worker get them from here
        files = await self._prepare()
        noted = keep_dev_url(self._url)
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, self._told_to_stop)
        self._serve.start()
        for worker in self._workers.values():
            worker.start()
        watching = [self._watch(app, files[app]) for app in self._workers]
        waits = [self._over.wait(), self._serve.refused.wait(), self._greet(), *watching]
        tasks = [asyncio.ensure_future(each) for each in waits]
        await asyncio.wait(tasks[:2], return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*(each.end() for each in (*self._workers.values(), self._serve)))
        if dev_url() == self._url:  # not that of another one that was started here since
            noted.unlink(missing_ok=True)
            with contextlib.suppress(OSError):  # there is more in the folder: the store, the files, or a secret key
                noted.parent.rmdir()
        return USAGE if self._serve.refused.is_set() else 0

    async def _prepare(self) -> Mapping[str, Sequence[str]]:
        """The files of each app. Fails now, with one sentence, rather than in two children over and over."""
        loaded = {app: (await describe(app, self._user)).files for app in self._workers}
        if not self._settings.secret_key:
            keep_secret_key()
        store, blobs = await open_both(self._settings)
        await store.close()
        await blobs.close()
        return loaded

    def _told_to_stop(self) -> None:
        if self._over.is_set():
            for each in (*self._workers.values(), self._serve):
                each.kill()
        self._over.set()

    async def _greet(self) -> None:
        host, port = self._settings.host, self._settings.port
        url = self._url
        while True:
            with contextlib.suppress(OSError):
                _, writer = await asyncio.open_connection(host, port)
                writer.close()
                break
            await asyncio.sleep(KNOCK)
        apps = ", ".join(self._workers)
        forward("dev", f"{apps} {plural(len(self._workers), 'runs', 'run')} at {url}; press Ctrl-C to stop")
        if port != DEV_PORT:
            forward("dev", f"commands in this folder use it; in other folders, first run: export PACKHORSE_URL={url}")

    async def _watch(self, app: str, loaded: Sequence[str]) -> None:
        watched = Watched(app, loaded)
        while True:
            await asyncio.sleep(LOOK)
            if not (changed := watched.find_changes()):
                continue
            try:
                described = await describe(app, self._user)
            except PackhorseError as error:
                watched.knows(None)
                forward("dev", f"{list_some(changed)} changed. {error.message}")
                forward("dev", "dev restarts the worker when the file can be loaded again.")
                continue
            watched.knows(described.files)
            forward(
                "dev", f"{list_some(changed)} changed: new stages run the new code, running ones finish with the old"
            )
            self._workers[app].start()
