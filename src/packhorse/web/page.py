"""All pages, as routes."""

from __future__ import annotations

from litestar import Router

from packhorse.web import jobs, many, overview
from packhorse.web.rendering import wrong

PAGES = Router(
    "/", route_handlers=[*overview.ROUTES, *jobs.ROUTES, *many.ROUTES], exception_handlers={Exception: wrong}
)
