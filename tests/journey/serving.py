"""A server process beside the workers of a journey."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx2

from tests.journey.site import Site, until
from tests.servers import forks
from tests.servers.ports import free_port


@asynccontextmanager
async def served(site: Site) -> AsyncIterator[httpx2.AsyncClient]:
    port = free_port()
    server = forks.start(
        "packhorse.web",
        env=site.env | {"PACKHORSE_PORT": str(port), "PACKHORSE_KEYLESS": "yes"},
        cwd=site.folder,
        stdout=site.log,
        stderr=site.log,
    )
    try:
        async with httpx2.AsyncClient(base_url=f"http://127.0.0.1:{port}/api/v1/") as http:

            async def look() -> bool | None:
                assert server.poll() is None, site.log_text()
                try:
                    return (await http.get(f"http://127.0.0.1:{port}/healthz")).is_success or None
                except httpx2.TransportError:
                    return None

            await until(look, 40, site.log_text)
            yield http
    finally:
        server.kill()
        server.wait()
