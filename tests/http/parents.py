"""Applications of other people with packhorse inside: ``python -m tests.http.parents FRAMEWORK SERVER MOUNT PORT``."""

from __future__ import annotations

import sys
from typing import Any

import packhorse


def starlette(mount: str) -> Any:
    from starlette.applications import Starlette
    from starlette.routing import Mount

    return Starlette(routes=[Mount(mount, packhorse.asgi())])


def fastapi(mount: str) -> Any:
    from fastapi import FastAPI

    api = FastAPI()

    @api.get("/own")
    def own() -> str:
        return "mine"

    api.mount(mount, packhorse.asgi())
    return api


def litestar(mount: str) -> Any:
    from litestar import Litestar, asgi

    return Litestar([asgi(mount, is_mount=True, copy_scope=True)(packhorse.asgi())])


def nested(mount: str) -> Any:
    """Two deep: what one parent says is what the next goes on from."""
    from starlette.applications import Starlette
    from starlette.routing import Mount

    first, _, rest = mount.strip("/").partition("/")
    return Starlette(routes=[Mount(f"/{first}", Starlette(routes=[Mount(f"/{rest}", packhorse.asgi())]))])


def none(_mount: str) -> Any:
    return packhorse.asgi()


PARENTS = {each.__name__: each for each in (starlette, fastapi, litestar, nested, none)}


def uvicorn_served(app: Any, port: int) -> None:
    import uvicorn

    uvicorn.run(app, host="127.0.0.1", port=port, log_level="warning", timeout_graceful_shutdown=1)


def granian_served(app: Any, port: int) -> None:
    import asyncio
    import signal

    from granian.constants import Interfaces
    from granian.server.embed import Server

    async def run() -> None:
        server = Server(app, address="127.0.0.1", port=port, interface=Interfaces.ASGI, log_enabled=False)
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, server.stop)
        await server.serve()

    asyncio.run(run())


SERVERS = {"uvicorn": uvicorn_served, "granian": granian_served}

if __name__ == "__main__":
    framework, server, mount, port = sys.argv[1:]
    SERVERS[server](PARENTS[framework](mount), int(port))
