"""What misbehaves when the lab says so: disks, clocks, and the way to S3."""

from __future__ import annotations

import asyncio
from pathlib import Path

from tests.servers.flaky import PIECE, FlakyHttp

from lab.real import tools

HOST = "127.0.0.1"


class Disk:
    """A disk whose syncs stall and which is full when the lab says so: see disk.c."""

    def __init__(self, folder: Path, name: str) -> None:
        self._control = folder / f"{name}.control"
        self._control.write_text("00")
        self._control.chmod(0o644)

    def env(self, root: str) -> dict[str, str]:
        return {"LAB_DISK_CONTROL": str(self._control), "LAB_DISK_ROOT": root, "LD_PRELOAD": str(tools.disk())}

    def set(self, *, stalls: bool = False, full: bool = False) -> None:
        with self._control.open("r+") as file:  # in place: those who map it see it at once
            file.write(f"{stalls:d}{full:d}")


class Clock:
    """A clock that is wrong by so many seconds when the lab says so: see libfaketime."""

    def __init__(self, folder: Path, name: str) -> None:
        self._path = folder / f"{name}.clock"
        self.set(0)

    def env(self) -> dict[str, str]:
        return {
            "FAKETIME_TIMESTAMP_FILE": str(self._path),
            "FAKETIME_NO_CACHE": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
            "FAKETIME_DISABLE_SHM": "1",
            "LD_PRELOAD": str(tools.faketime()),
        }

    def set(self, seconds: float) -> None:
        half = self._path.with_suffix(".half")
        half.write_text(f"{seconds:+.0f}s\n")
        half.chmod(0o644)
        half.rename(self._path)


class ProcessClock:
    """The clock of one of packhorse's processes: see disk.c."""

    def __init__(self, folder: Path, name: str) -> None:
        self._path = folder / f"{name}.clock"
        self._path.write_bytes(bytes(8))

    def env(self) -> dict[str, str]:
        return {"LAB_CLOCK": str(self._path)}

    def set(self, seconds: int) -> None:
        with self._path.open("r+b") as file:
            file.write(seconds.to_bytes(8, "little", signed=True))


def join_env(*envs: dict[str, str]) -> dict[str, str]:
    """Join the variables of several, with everything that they preload."""
    preloads = [env["LD_PRELOAD"] for env in envs if "LD_PRELOAD" in env]
    found = {name: value for env in envs for name, value in env.items()}
    return found | ({"LD_PRELOAD": " ".join(preloads)} if preloads else {})


class Bucket(FlakyHttp):
    """The way to S3: answers late, 503, nothing, or the same request twice."""

    def __init__(self, port: int) -> None:
        super().__init__(port)
        self.late = 0.0
        """Seconds until an answer comes."""
        self.twice = 0.0
        """The share of requests that arrive twice."""

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if not self.late and not self.twice:
            await super()._serve(reader, writer)
            return
        head = await reader.readuntil(b"\r\n\r\n")
        line, *fields = head.decode("latin-1").split("\r\n")
        size = next((int(field.split(":")[1]) for field in fields if field.lower().startswith("content-length:")), 0)
        body = await reader.readexactly(size)
        kept = [field for field in fields if field and not field.lower().startswith("connection:")]
        request = "\r\n".join([line, *kept, "Connection: close", "", ""]).encode("latin-1") + body
        times = 2 if self.chance.random() < self.twice else 1
        self.struck += times > 1 or self.late > 0
        answers = [await self._answer(request) for _ in range(times)]
        await asyncio.sleep(self.late)
        writer.write(answers[0])  # of the first: the second nobody asked for
        await writer.drain()

    async def _answer(self, request: bytes) -> bytes:
        server, to_server = await asyncio.open_connection(HOST, self._to)
        try:
            to_server.write(request)
            await to_server.drain()
            parts = []
            while part := await server.read(PIECE):
                parts.append(part)
            return b"".join(parts)
        finally:
            to_server.transport.abort()
