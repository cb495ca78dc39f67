"""All pages, as routes."""

from __future__ import annotations

from litestar import Router

from packhorse.web.pages import (
    bulk,
    failure_actions,
    failures,
    health,
    job,
    job_actions,
    jobs,
    keys,
    login,
    new_job,
    overview,
    public_job,
    queues,
    schedule_actions,
    schedule_form,
    schedules,
    share,
)
from packhorse.web.render import wrong

MODULES = (
    overview,
    jobs,
    bulk,
    new_job,
    job,
    job_actions,
    share,
    public_job,
    schedules,
    schedule_form,
    schedule_actions,
    failures,
    failure_actions,
    queues,
    keys,
    health,
    login,
)

PAGES = Router(
    "/", route_handlers=[route for each in MODULES for route in each.ROUTES], exception_handlers={Exception: wrong}
)
