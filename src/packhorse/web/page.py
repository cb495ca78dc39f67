"""All pages, as routes."""

from __future__ import annotations

from litestar import Router

from packhorse.web import acting, job, overview, sharing, waiting
from packhorse.web.rendering import wrong

ROUTES = [*overview.ROUTES, *job.ROUTES, *acting.ROUTES, *sharing.ROUTES, *waiting.ROUTES]

PAGES = Router("/", route_handlers=ROUTES, exception_handlers={Exception: wrong})
