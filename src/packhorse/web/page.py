"""All pages, as routes."""

from __future__ import annotations

from litestar import Router

from packhorse.web import health, keys, login, overview, queues
from packhorse.web.rendering import wrong

MODULES = (
    overview,
    queues,
    keys,
    health,
    login,
)

PAGES = Router(
    "/", route_handlers=[route for each in MODULES for route in each.ROUTES], exception_handlers={Exception: wrong}
)
