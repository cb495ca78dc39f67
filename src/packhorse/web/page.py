"""All pages, as routes."""

from __future__ import annotations

from litestar import Router

from packhorse.web import (
    acting,
    health,
    job,
    jobs,
    keys,
    login,
    many,
    newjob,
    overview,
    queues,
    sharing,
    waiting,
)
from packhorse.web.rendering import wrong

MODULES = (
    overview,
    jobs,
    many,
    newjob,
    job,
    acting,
    sharing,
    waiting,
    queues,
    keys,
    health,
    login,
)

PAGES = Router(
    "/", route_handlers=[route for each in MODULES for route in each.ROUTES], exception_handlers={Exception: wrong}
)
