"""``/queues``: what waits where, and who works on it."""

from __future__ import annotations

import asyncio

from litestar import Response, get, post
from litestar.params import FromPath

from packhorse.web.api_calls import Api, Page
from packhorse.web.forms import form
from packhorse.web.render import moved, rendered


@get("/queues", scope="operate", shared=True, include_in_schema=False)
async def queues(request: Page) -> Response[bytes]:
    api = Api(request)
    found, workers = await asyncio.gather(api.get("/queues"), api.get("/workers"))
    return rendered(request, "queues.html", queues=found["items"], workers=workers["items"])


@post("/queues/{queue:str}/pause", scope="operate", shared=True, include_in_schema=False, status_code=303)
async def pause(request: Page, queue: FromPath[str]) -> Response[bytes]:
    given = await form(request)
    await Api(request).post(f"/queues/{queue}/pause", {"reason": str(given.get("reason", ""))})
    return moved(request, "/queues", said=f"Nothing more is started from {queue}.")


@post("/queues/{queue:str}/resume", scope="operate", shared=True, include_in_schema=False, status_code=303)
async def resume(request: Page, queue: FromPath[str]) -> Response[bytes]:
    await Api(request).post(f"/queues/{queue}/resume")
    return moved(request, "/queues", said=f"{queue} goes on.")


ROUTES = [queues, pause, resume]
