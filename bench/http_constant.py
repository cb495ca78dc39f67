"""What the server is measured against: the same framework on the same server, and nothing behind it.

``python -m bench.http_constant PORT FOLDER``
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import uvloop
from granian.constants import HTTPModes, Interfaces
from granian.server.embed import Server
from litestar import Litestar, Request, get, post
from litestar.datastructures import State
from litestar.params import FromQuery
from litestar.response import Stream

PIECE = bytes(512 * 1024)
"""As large as those in which files are read for who takes them at once."""
ANSWER = {"job_id": "019b76da-a800-7c2e-9c0f-6b1f0a4c2d11", "status": "pending", "stages": {}, "parameters": {"a": 1}}


@post("/constant", status_code=202)
async def constant(request: Request[Any, Any, State]) -> dict[str, Any]:
    """The same work for the framework: a JSON body in, a JSON body out."""
    await request.json()
    return ANSWER


@post("/raw", request_max_body_size=None)
async def raw(request: Request[Any, Any, State], folder: FromQuery[str]) -> None:
    """A stream to disk, synced, as an upload has to be."""
    path = Path(folder) / "raw"
    with path.open("wb", buffering=0) as file:
        async for piece in request.stream():
            file.write(piece)
        await asyncio.to_thread(os.fsync, file.fileno())
    path.unlink()


@get("/stream")
async def stream(size: FromQuery[int]) -> Stream:
    async def pieces() -> AsyncGenerator[bytes]:
        for _ in range(size // len(PIECE)):
            yield PIECE

    return Stream(pieces(), headers={"Content-Length": str(size // len(PIECE) * len(PIECE))})


async def serve(port: int) -> None:
    app = Litestar([constant, raw, stream], openapi_config=None, logging_config=None)
    server = Server(
        app,
        address="127.0.0.1",
        port=port,
        interface=Interfaces.ASGI,
        http=HTTPModes.http1,
        websockets=False,
        backlog=1024,
        backpressure=10_000,
        log_enabled=False,
    )
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, server.stop)
    await server.serve()


if __name__ == "__main__":
    uvloop.run(serve(int(sys.argv[1])))
