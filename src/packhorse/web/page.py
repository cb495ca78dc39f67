"""All pages, as routes."""

from __future__ import annotations

from litestar import Router

from packhorse.web import (
    acting,
    failures,
    health,
    job,
    jobs,
    keys,
    login,
    many,
    newjob,
    overview,
    queues,
    schedules,
    scheduling,
    settling,
    sharing,
    timetable,
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
