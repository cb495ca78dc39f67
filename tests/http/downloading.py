"""Finished jobs with files of any sort, servers that hand them out, and what was counted and written down of it."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any, TypeVar

import httpx2

from packhorse.auth.access import LOCAL
from packhorse.auth.audit_log import Auditor
from packhorse.blobs.base import Blobs
from packhorse.core import json
from packhorse.core.models import Artifact, Input, Job, Result, Spec, Stored
from packhorse.core.plan import Plan
from packhorse.factory import open_both
from packhorse.http.download import Downloads
from packhorse.store.base import Claim, Store
from packhorse.store.collections import audit
from packhorse.store.collections.audit import Entry
from tests.contract import builders
from tests.http.processes import LIMIT, Place, Server, until
from tests.servers.ports import free_port

T = TypeVar("T")

OFF = dict.fromkeys(
    (
        "downloads_at_once",
        "downloads_per_10s",
        "downloads_per_minute",
        "download_bytes_per_hour",
        "download_bytes_per_day",
    ),
    0,
)
BUFFERS = 16 * 2**20
"""What the server and the kernel may hold of a download that nobody takes: socket buffers grow to 6 MiB at each end."""


def pattern(size: int) -> bytes:
    """So many bytes of which no two near each other are alike."""
    return b"".join(n.to_bytes(4, "big") for n in range(size // 4 + 1))[:size]


class House:
    """A store and its objects with finished jobs in it, and any number of servers."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        self.place = Place(folder, **OFF | settings)
        self.servers: list[Server] = []
        self._readers: list[Reader] = []
        self._runner = asyncio.Runner()
        self._both: tuple[Store, Blobs] | None = None

    def serve(self) -> Server:
        """One more server on the same store, at a port of its own."""
        if self.servers:
            self.place.settings = self._elsewhere()
        server = Server(self.place)
        self.servers.append(server)
        return server

    def reader(self, server: Server, job_id: str) -> Reader:
        """Somebody who has asked for the result, and heard whether there will be one."""
        reader = Reader(server, f"/jobs/{job_id}/result")
        self._readers.append(reader)
        try:
            reader.ask()
        except (AssertionError, OSError) as error:
            state = "runs" if server.is_alive else f"has ended with {server.ended()}"
            raise AssertionError(f"{error!r}; the server {state}: {server.log.read_text()[-8000:]}") from error
        return reader

    def close(self) -> None:
        for reader in self._readers:
            reader.vanish()
        for server in self.servers:
            server.stop()
        for each in self._both or ():
            self._runner.run(each.close())
        self._runner.close()

    def job(
        self,
        files: Mapping[str, bytes],
        *,
        source: str | None = "model.onnx",
        value: bytes = b'"done"',
        plan: Plan = builders.ONE,
    ) -> str:
        return self.with_both(lambda store, blobs: finished(store, blobs, files, source, value, plan)).id

    def used(self) -> dict[str, int]:
        """What is counted now, by the name of each limit."""

        async def look(store: Store, _: Blobs) -> dict[str, int]:
            limits = Downloads(self.place.settings, store, Auditor(store, keep=1)).limits_of(LOCAL, None, "ann")
            spent = await store.spend([each.charge(whose, 0) for each, whose in limits])
            return {each.name: each.most - left for (each, _), left in zip(limits, spent.left, strict=True)}

        return self.with_both(look)

    def told(self) -> list[Entry]:
        """The audit, oldest first."""

        async def read(store: Store, _: Blobs) -> list[Entry]:
            return (await audit.tail(store, limit=1000))[::-1]

        return self.with_both(read)

    def words(self) -> list[str]:
        return [entry.event.removeprefix("download.") for entry in self.told()]

    def with_both(self, work: Callable[[Store, Blobs], Coroutine[Any, Any, T]]) -> T:
        """Opened once: a house is looked into many times a second."""
        if self._both is None:
            self._both = self._runner.run(open_both(self.place.settings))
        return self._runner.run(work(*self._both))

    def _elsewhere(self) -> Any:
        return replace(self.place.settings, port=free_port())


async def finished(
    store: Store,
    blobs: Blobs,
    files: Mapping[str, bytes],
    source: str | None,
    value: bytes = b'"done"',
    plan: Plan = builders.ONE,
    user: str = "ann",
) -> Job:
    """A completed job whose only stage returned these files."""
    inputs = () if source is None else (Input("model", 0, Stored("jobs/x/input/model.0", source, 1, "00" * 32)),)
    parameters = json.encode({} if source is None else {"model": {"$file": 0}})
    claim = await builders.started(store, plan, spec=Spec(parameters, inputs), user=user)
    return await builders.finish(store, claim, await made(blobs, claim, files, value))


async def made(blobs: Blobs, claim: Claim, files: Mapping[str, bytes], value: bytes = b'"done"') -> Result:
    """What the only stage of a job returns, its files in their place."""
    found = []
    for n, (name, content) in enumerate(files.items()):
        key = f"jobs/{claim.job.id}/output/only/{claim.token}/{n}"
        summed = await blobs.put(key, _pieces(content))
        found.append(Artifact(f"only/{name}", Stored(key, name, summed.size, summed.sha256)))
    return Result(json.encode([{"$file": n} for n in range(len(found))]) if found else value, tuple(found))


async def _pieces(content: bytes) -> Any:
    for at in range(0, len(content), 2**20):
        yield content[at : at + 2**20]


class Reader:
    """Somebody who downloads as they please: bytes are taken when they are asked for, and not before."""

    def __init__(self, server: Server, path: str) -> None:
        self._server, self._path = server, path
        self._socket = socket.socket()
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 * 1024)
        self._socket.settimeout(LIMIT)
        self.status = 0
        self.taken = bytearray()

    def ask(self) -> None:
        """Until the head of the answer is there."""
        self._socket.connect(("127.0.0.1", self._server.port))
        self._socket.sendall(f"GET /api/v1{self._path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        while b"\r\n\r\n" not in self.taken:
            piece = self._socket.recv(4096)
            assert piece, "it was cut before it began"
            self.taken += piece
        head, _, self.taken = self.taken.partition(b"\r\n\r\n")
        self.status = int(head.split(b" ", 2)[1])

    def take(self, count: int) -> int:
        """Take bytes until there are so many of the body, or no more come; how many there are."""
        while len(self.taken) < count:
            try:
                piece = self._socket.recv(min(65536, count - len(self.taken)))
            except ConnectionError:
                piece = b""
            if not piece:
                break
            self.taken += piece
        return len(self.taken)

    def vanish(self) -> None:
        self._socket.close()


@contextmanager
def housed(folder: Path, **settings: Any) -> Iterator[House]:
    house = House(folder, **settings)
    try:
        yield house
    finally:
        house.close()


def fetched(server: Server, job_id: str, what: str = "result", **headers: str) -> httpx2.Response:
    return httpx2.get(f"{server.api}/jobs/{job_id}/{what}", headers=headers, timeout=60)


def until_quiet(house: House) -> None:
    """Until nothing is under way any more."""
    until(lambda: house.used()["downloads"] == 0)


def summed(content: bytes) -> str:
    return sha256(content).hexdigest()
