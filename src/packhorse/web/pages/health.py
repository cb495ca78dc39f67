"""``/health``: what ``packhorse doctor`` says, and whether this server is ready."""

from __future__ import annotations

from litestar import Response, get

from packhorse.web.api_calls import Api, Page
from packhorse.web.render import rendered


@get("/health", scope="operate", shared=True, include_in_schema=False)
async def health(request: Page) -> Response[bytes]:
    found = await Api(request).get("/health")
    parts: dict[str, list[object]] = {}
    for each in found["findings"]:
        parts.setdefault(each["part"], []).append(each)
    return rendered(request, "health.html", is_well=found["status"] == "ok", found=parts)


ROUTES = [health]
