"""Users of a stack: each uploads a file, watches its job, downloads the result and compares it. Then the next file."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import suppress
from hashlib import sha256
from pathlib import Path

import httpx2
from msgspec import Struct

from bench.mission.stacks import Running
from bench.peers.side.mission_work import TABLE

PIECE = 256 * 1024
ENDS = ("completed", "failed", "cancelled")
PAUSE = 0.1  # seconds between tries to reach a server that is being started


class File(Struct, frozen=True):
    path: Path
    size: int
    result: str
    """The digest of what three stages make of it."""


def write_file(path: Path, size: int) -> File:
    content = bytes(range(251)) * (size // 251 + 1)
    path.write_bytes(content[:size])
    made = content[:size].translate(TABLE).translate(TABLE).translate(TABLE)
    return File(path, size, sha256(made).hexdigest())


class User:
    """One of those who work at the same time."""

    def __init__(self, stack: Running, client: httpx2.AsyncClient, name: str) -> None:
        self._stack = stack
        self._client = client
        self._name = name

    async def job(self, file: File) -> float:
        """Seconds from the first byte of the upload to the last of the result."""
        began = time.monotonic()
        job_id = await self.submit(file)
        status = await self.watch(job_id)
        assert status == "completed", f"{self._stack.stack.name}: {status}\n{self._stack.log()}"
        assert await self.download(job_id) == file.result, f"{self._stack.stack.name}: another result"
        return time.monotonic() - began

    async def submit(self, file: File, seconds: float = 0.0) -> str:
        ours = self._stack.stack.is_ours
        query = {"pipeline": "mission", "user_id": self._name} if ours else {}
        with file.path.open("rb") as opened:
            answer = await self._client.post(
                f"{self._stack.base}/jobs", params=query, data={"seconds": str(seconds)}, files={"file": opened}
            )
        assert answer.status_code == 202, f"{self._stack.stack.name}: {answer.text}\n{self._stack.log()}"
        return str(answer.json()["job_id"])

    async def watch(self, job_id: str, until: str = "") -> str:
        """The status with which it ends, or as soon as it is ``until``. Connects again, as a browser does."""
        while True:
            with suppress(httpx2.TransportError):
                async for name in self._events(job_id):
                    if name in (*ENDS, until):
                        return name
            await asyncio.sleep(PAUSE)

    async def _events(self, job_id: str) -> AsyncIterator[str]:
        url = f"{self._stack.base}/jobs/{job_id}/events"
        async with self._client.stream("GET", url, headers={"Accept": "text/event-stream"}) as answer:
            name = ""
            async for line in answer.aiter_lines():
                if line.startswith("event:"):
                    name = line.partition(":")[2].strip()
                    yield name
                elif line.startswith("data:") and name == "snapshot":
                    yield json.loads(line.partition(":")[2])["status"]

    async def download(self, job_id: str) -> str:
        digest = sha256()
        async with self._client.stream("GET", f"{self._stack.base}/jobs/{job_id}/result") as answer:
            assert answer.status_code == 200, f"{self._stack.stack.name}: {answer.status_code}\n{self._stack.log()}"
            async for piece in answer.aiter_bytes(PIECE):
                digest.update(piece)
        return digest.hexdigest()


async def until_up(stack: Running, client: httpx2.AsyncClient, file: File, within: float) -> None:
    """Until a first job has gone through: also the workers are warm then."""
    until = time.monotonic() + within
    while True:
        try:
            async with asyncio.timeout_at(asyncio.get_running_loop().time() + until - time.monotonic()):
                await User(stack, client, "warm").job(file)
            return
        except (httpx2.TransportError, AssertionError) as error:
            if time.monotonic() > until:
                raise AssertionError(f"{stack.stack.name} does not come up: {error}") from error
        except TimeoutError as error:
            raise AssertionError(f"{stack.stack.name}: the first job does not end\n{stack.log()}") from error
        await asyncio.sleep(PAUSE)
