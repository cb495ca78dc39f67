"""All pages, as routes."""

from __future__ import annotations

from litestar import Router

from packhorse.web import failures, overview, schedules, scheduling, settling, timetable
from packhorse.web.rendering import wrong

PAGES = Router(
    "/",
    route_handlers=[
        *overview.ROUTES,
        *schedules.ROUTES,
        *scheduling.ROUTES,
        *timetable.ROUTES,
        *failures.ROUTES,
        *settling.ROUTES,
    ],
    exception_handlers={Exception: wrong},
)
