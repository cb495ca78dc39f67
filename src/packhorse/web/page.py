"""All pages, as routes."""

from __future__ import annotations

from litestar import Router

from packhorse.web import failures, health, keys, login, overview, queues, schedules, scheduling, settling, timetable
from packhorse.web.rendering import wrong

MODULES = (
    overview,
    schedules,
    scheduling,
    timetable,
    failures,
    settling,
    queues,
    keys,
    health,
    login,
)

PAGES = Router(
    "/", route_handlers=[route for each in MODULES for route in each.ROUTES], exception_handlers={Exception: wrong}
)
