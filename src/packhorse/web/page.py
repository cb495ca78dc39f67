"""All pages, as routes."""

from __future__ import annotations

from litestar import Router

from packhorse.web import health, jobs, keys, login, many, newjob, overview, queues
from packhorse.web.rendering import wrong

MODULES = (
    overview,
    jobs,
    many,
    newjob,
    queues,
    keys,
    health,
    login,
)

PAGES = Router(
    "/", route_handlers=[route for each in MODULES for route in each.ROUTES], exception_handlers={Exception: wrong}
)
