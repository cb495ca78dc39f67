"""The HTTP interface: submits, uploads, downloads and watchers, each beside the same server with nothing behind it."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import aclosing
from pathlib import Path
from typing import Self

import httpx2
import psutil

from bench import http_app, http_load
from bench.book import Book, at_least, at_most, percentile
from bench.sizes import Sizes
from packhorse import AsyncClient
from packhorse.host import free_port
from packhorse.settings import PREFIX

SECTION = "http"
ROOT = Path(__file__).parents[1]
WITHIN = 60.0
LOOK = 0.02
MIB = 1024 * 1024

CONSTANT = "of a constant answer"
RAW = "of a raw stream to disk"
STREAM = "of a constant stream"


TAKES = 5
"""Pairs of downloads in a round: one takes half a second, and how it compares with its neighbour is luck."""
GOVERNED = {
    "PACKHORSE_DOWNLOADS_PER_10S": "1000",
    "PACKHORSE_DOWNLOADS_PER_MINUTE": "1000",
    "PACKHORSE_DOWNLOAD_BYTES_PER_HOUR": "1TiB",
    "PACKHORSE_DOWNLOAD_BYTES_PER_DAY": "1TiB",
}
"""Limits that are kept, counted and given back as they always are, and let all of them through."""


class Processes:
    """A server, a worker and the server with nothing behind it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port, self.constant = free_port(), free_port()
        self._env = {name: value for name, value in os.environ.items() if not name.startswith(PREFIX)} | {
            "PACKHORSE_STORE": f"sqlite://{folder / 'packhorse.db'}",
            "PACKHORSE_BLOBS": f"file://{folder / 'blobs'}",
            "PACKHORSE_SCRATCH": str(folder / "scratch"),
            "PACKHORSE_APP": str(Path(http_app.__file__)),
            "PACKHORSE_PORT": str(self.port),
            "PACKHORSE_KEYLESS": "yes",
            **GOVERNED,
        }
        self._started: list[subprocess.Popen[bytes]] = []
        self.server = self._start("packhorse.cli", "serve")
        self._start("packhorse.cli", "worker")
        self._start("bench.http_constant", str(self.constant))

    def _start(self, module: str, *arguments: str) -> psutil.Process:
        with (self.folder / f"{module}-{arguments[0]}.log").open("ab") as log:
            command = [sys.executable, "-m", module, *arguments]
            self._started.append(subprocess.Popen(command, env=self._env, cwd=ROOT, stdout=log, stderr=log))
        return psutil.Process(self._started[-1].pid)

    async def up(self, client: AsyncClient) -> None:
        until = time.monotonic() + WITHIN
        for url in (f"{client.url}/api/v1/pipelines", f"http://127.0.0.1:{self.constant}/stream?size=0"):
            while not await _answers(url):
                assert time.monotonic() < until, f"nothing answers at {url}"
                await asyncio.sleep(LOOK)

    def stop(self) -> None:
        for process in self._started:
            process.terminate()
        for process in self._started:
            process.wait()


class HttpSection:
    def __init__(self, folder: Path, sizes: Sizes) -> None:
        self._folder = folder
        self._sizes = sizes
        self._count = 0

    async def round(self, book: Book) -> None:
        self._count += 1
        folder = self._folder / str(self._count)
        folder.mkdir()
        processes = Processes(folder)
        try:
            async with AsyncClient(f"http://127.0.0.1:{processes.port}") as client:
                await processes.up(client)
                await self._submits(book, processes)
                job_id = await self._upload(book, processes)
                assert (await client.wait(job_id, WITHIN))["status"] == "completed"
                await self._download(book, processes, job_id)
                await self._watchers(book, processes, client)
        finally:
            processes.stop()

    async def close(self) -> None:
        pass

    async def _submits(self, book: Book, at: Processes) -> None:
        """Delayed, so that no worker takes part."""
        callers, seconds = self._sizes.callers, self._sizes.seconds
        asked = json.dumps({"pipeline": "add", "parameters": {"a": 1}, "delay": "1h"}).encode()
        kind = "Content-Type: application/json\r\n"
        constant = http_load.request("POST", "/constant", asked, headers=kind)
        submit = http_load.request("POST", "/api/v1/jobs", asked, headers=kind)
        await http_load.rate(at.constant, constant, callers, seconds / 4)
        await http_load.rate(at.port, submit, callers, seconds / 4)
        most = await http_load.rate(at.constant, constant, callers, seconds)
        found = await http_load.rate(at.port, submit, callers, seconds)
        book.note(SECTION, f"constant answers, {callers} connections", most, "/s")
        book.note(
            SECTION, f"submits, {callers} connections", found, "/s",
            ratio=found / most, to=CONSTANT, bound=at_least(0.4, of_ratio=True),
        )  # fmt: skip

    async def _upload(self, book: Book, at: Processes) -> str:
        size = self._sizes.http_file
        head = b'--%b\r\nContent-Disposition: form-data; name="data"; filename="data.bin"\r\n\r\n' % BOUNDARY
        whole = len(head) + size + len(END)
        kind = f"Content-Type: multipart/form-data; boundary={BOUNDARY.decode()}\r\n"
        raw, _ = await http_load.send(at.constant, f"/raw?folder={at.folder}", _pieces(head, size), whole, kind)
        with _Memory(at.server) as memory:
            took, answer = await http_load.send(at.port, "/api/v1/jobs?pipeline=keep", _pieces(head, size), whole, kind)
        name = f"upload of {size // MIB} MiB"
        book.note(SECTION, f"raw stream to disk of {size // MIB} MiB", size / MIB / raw, "MiB/s")
        book.note(
            SECTION, name, size / MIB / took, "MiB/s", ratio=raw / took, to=RAW, bound=at_least(0.6, of_ratio=True)
        )
        book.note(SECTION, f"{name}, memory it added", memory.added / MIB, "MiB", bound=at_most(64))
        job_id: str = json.loads(answer)["job_id"]
        return job_id

    async def _download(self, book: Book, at: Processes, job_id: str) -> None:
        size = self._sizes.http_file
        for _ in range(TAKES):
            constant, _ = await http_load.take(at.constant, f"/stream?size={size}")
            took, length = await http_load.take(at.port, f"/api/v1/jobs/{job_id}/result")
            assert length == size
            book.note(SECTION, f"constant stream of {size // MIB} MiB", size / MIB / constant, "MiB/s")
            book.note(
                SECTION, f"download of {size // MIB} MiB", size / MIB / took, "MiB/s",
                ratio=constant / took, to=STREAM, bound=at_least(0.6, of_ratio=True),
            )  # fmt: skip

    async def _watchers(self, book: Book, at: Processes, client: AsyncClient) -> None:
        """All of them hear that one job was cancelled: how long after it was asked for."""
        count = self._sizes.watchers
        job = await client.submit("add", {"a": 1}, delay="1h")
        path = f"/api/v1/jobs/{job['job_id']}/events?log=false"  # else the end waits for the last lines of the log
        waiting: set[int] = set()

        async def watch(n: int) -> float:
            async with aclosing(http_load.watch(at.port, path)) as lines:
                async for when, line in lines:
                    if line == b"event: submitted\n":
                        waiting.add(n)
                    elif line == b"event: cancelled\n":
                        return when
            raise AssertionError("the stream ended before the job did")

        watchers = [asyncio.create_task(watch(n)) for n in range(count)]
        until = time.monotonic() + WITHIN
        while len(waiting) < count:
            assert time.monotonic() < until, f"{len(waiting)} of {count} watch"
            await asyncio.sleep(LOOK)
        began = time.monotonic()
        await client.cancel(job["job_id"])
        heard = [(when - began) * 1000 for when in await asyncio.gather(*watchers)]
        book.note(SECTION, f"an event to {count} watchers, p50", percentile(heard, 0.5), "ms")
        book.note(SECTION, f"an event to {count} watchers, p99", percentile(heard, 0.99), "ms")


BOUNDARY = b"5d1f6e0ba4b94c6a8e0c3a7f2b1d9e60"
"""As long as clients make them: whoever looks for a shorter one in random bytes finds its beginning all the time."""
END = b"\r\n--%b--\r\n" % BOUNDARY


def _pieces(head: bytes, size: int) -> Iterator[bytes]:
    yield head
    piece = os.urandom(http_load.PIECE)
    for _ in range(size // len(piece)):
        yield piece
    yield END


class _Memory:
    """How much more of it a process has had at any moment than at first."""

    def __init__(self, process: psutil.Process) -> None:
        self._process = process
        self._before = process.memory_info().rss
        self.added = 0

    def __enter__(self) -> Self:
        self._watching = asyncio.create_task(self._watch())
        return self

    def __exit__(self, *_: object) -> None:
        self._watching.cancel()

    async def _watch(self) -> None:
        while True:
            self.added = max(self.added, self._process.memory_info().rss - self._before)
            await asyncio.sleep(LOOK)


async def _answers(url: str) -> bool:
    try:
        async with httpx2.AsyncClient() as http:
            answer = await http.get(url)
    except httpx2.TransportError:
        return False
    return answer.is_success and (not url.endswith("pipelines") or len(answer.json()["items"]) == 2)
