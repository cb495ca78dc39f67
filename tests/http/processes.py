"""Servers and workers as real processes on real sockets, and what they leave behind."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
import psutil

from packhorse.blobs import open_blobs
from packhorse.blobs.s3.http import Keys, Signed, address
from packhorse.core.models import Job
from packhorse.factory import open_store
from packhorse.jobs.deployment import MARK
from packhorse.settings import Settings
from packhorse.store.base import Filter
from tests.servers import forks
from tests.servers.ports import free_port

SAMPLE = Path(__file__).with_name("sample.py")
ROOT = Path(__file__).parents[2]
LIMIT = 60.0
STARTING = 60.0
"""Seconds for a server on a machine that has much else to do."""


def until(condition: Callable[[], Any], limit: float = LIMIT) -> Any:
    """What the condition came to, as soon as it holds."""
    start = time.monotonic()
    while not (found := condition()):
        waited = time.monotonic() - start
        assert waited < limit, f"still not so after {limit} s"
        time.sleep(0.02 if waited < 0.2 else 0.06)  # what takes long is asked for less often
    return found


def is_taken(port: int) -> bool:
    """Whether anybody listens there: to ask this costs a thirtieth of an HTTP client."""
    with socket.socket() as knocking:
        return knocking.connect_ex(("127.0.0.1", port)) == 0


class Place:
    """A store and an object store; in a folder, unless the settings say otherwise."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        self.folder = folder
        self.blobs = folder / "blobs"
        given: dict[str, Any] = {
            "keyless": True,
            "app": str(SAMPLE),
            "store": f"sqlite://{folder / 'packhorse.db'}",
            "blobs": f"file://{self.blobs}",
            "scratch": str(folder / "scratch"),
            "port": free_port(),
            "downloads_per_10s": 0,  # tests are quicker than people
            "downloads_per_minute": 0,
            "download_bytes_per_hour": 0,
        }
        self.given = frozenset(given | settings)
        self.settings = Settings(**given | settings)

    def but(self, **settings: Any) -> Place:
        """The same place under other settings."""
        same = {name: getattr(self.settings, name) for name in self.given}
        return Place(self.folder, **same | settings)

    def environment(self) -> dict[str, str]:
        mine = {f"PACKHORSE_{name.upper()}": str(getattr(self.settings, name)) for name in self.given}
        return {**os.environ, **mine, "PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "default"}

    def objects(self) -> set[str]:
        """Every object but the mark of the deployment, and whatever an upload has left: in a folder, every file."""
        if self.settings.blobs.startswith("file:"):
            try:
                found = {str(path.relative_to(self.blobs)) for path in self.blobs.rglob("*") if path.is_file()}
                return found - {MARK}
            except FileNotFoundError:  # a folder was removed while we walked
                return self.objects()
        return asyncio.run(_in_bucket(self.settings)) | _open_uploads(self.settings)

    def jobs(self) -> list[Job]:
        async def read() -> list[Job]:
            store = await open_store(self.settings.store)
            try:
                return await store.find(Filter(), limit=1000)
            finally:
                await store.close()

        return asyncio.run(read())

    def left(self) -> tuple[set[str], set[str]]:
        return self.objects(), {job.id for job in self.jobs()}


async def _in_bucket(settings: Settings) -> set[str]:
    blobs = open_blobs(settings.blobs, settings.s3_access_key, settings.s3_secret_key)
    try:
        return {*await blobs.keys("jobs")}
    finally:
        await blobs.close()


def _open_uploads(settings: Settings) -> set[str]:
    where = address(settings.blobs, {})
    signed = Signed(where, Keys(settings.s3_access_key, settings.s3_secret_key), 1)
    page = signed.ask("GET", None, query={"uploads": "", "prefix": where.prefix}).document()
    signed.close()
    return {f"open: {each.findtext('Key')}" for each in page.iter("Upload")}


class Process:
    def __init__(self, module: str, place: Place, **env: str) -> None:
        self.log = place.folder / f"{module.rpartition('.')[2]}.log"
        with self.log.open("ab") as out:
            self._process = forks.start(module, env=place.environment() | env, stdout=out, stderr=out, cwd=place.folder)
        self.pid = self._process.pid

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None

    def signal(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def ended(self, limit: float = LIMIT) -> int:
        return self._process.wait(limit)

    def memory(self) -> int:
        found: int = psutil.Process(self.pid).memory_info().rss
        return found

    def stop(self) -> None:
        if self.is_alive:
            self.signal(signal.SIGTERM)
            try:
                self.ended()
            except subprocess.TimeoutExpired:
                self.signal(signal.SIGKILL)
                self.ended()


class Server(Process):
    def __init__(self, place: Place, *, crash: str | None = None) -> None:
        """``crash`` is the point at which it dies, and at which pass of it."""
        if crash is None:
            super().__init__("packhorse.web", place)
        else:
            super().__init__("tests.http.server_process", place, JOURNEY_CRASH=crash)
        self.place = place
        self.port = place.settings.port
        self.url = f"http://127.0.0.1:{self.port}"
        self.api = f"{self.url}/api/v1"
        try:
            until(self._answers, STARTING)
        except BaseException:
            self.stop()
            raise

    def _answers(self) -> bool:
        assert self.is_alive, self.log.read_text()
        if not is_taken(self.port):
            return False
        try:
            return httpx2.get(f"{self.url}/healthz").is_success
        except httpx2.TransportError:
            return False

    def connection(self) -> socket.socket:
        found = socket.create_connection(("127.0.0.1", self.port))
        found.settimeout(LIMIT)
        return found


@contextmanager
def served(place: Place) -> Iterator[Server]:
    server = Server(place)
    try:
        yield server
    finally:
        server.stop()


@contextmanager
def working(place: Place) -> Iterator[Process]:
    worker = Process("tests.http.worker", place)
    try:
        yield worker
    finally:
        worker.stop()
