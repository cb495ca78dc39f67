"""The whole application: the API, and the pages on top of it; to be served, or mounted in another application."""

from __future__ import annotations

from typing import Any

from litestar import Litestar, Request, Response, Router

from packhorse.errors import NotFound, WrongMethod
from packhorse.factory import check
from packhorse.http import app, problems, server
from packhorse.http.mount import Mounted
from packhorse.settings import Settings, load
from packhorse.web import assets
from packhorse.web.pages import (
    bulk,
    docs,
    failure_actions,
    failures,
    job,
    job_actions,
    jobs,
    keys,
    login,
    new_job,
    operations,
    public_job,
    schedule_actions,
    schedule_form,
    schedules,
    share,
)
from packhorse.web.render import nowhere, wrong

MODULES = (
    operations,
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
    keys,
    login,
)

PAGES = Router(
    "/", route_handlers=[route for each in MODULES for route in each.ROUTES], exception_handlers={Exception: wrong}
)


def build(settings: Settings) -> Litestar:
    """The application; it opens store and files when it is started."""
    return app.build(settings, [docs.docs, *assets.ROUTES, PAGES], problem_or_page)


def serve(settings: Settings) -> None:
    """Serve until SIGTERM or SIGINT. Raises SettingError for an address that cannot be served."""
    server.serve(settings, build(settings))


def asgi(settings: Settings | None = None, **given: Any) -> Mounted:
    """The HTTP interface as an ASGI application, to be served or to be mounted in another::

        api = FastAPI()
        api.mount("/carrier", packhorse.asgi())

    Settings are given by name (``store="sqlite:////srv/jobs.db"``) or all at once; what is not given comes from where
    settings always come from. It runs no worker. What the parent lets through is still checked: without keys, only
    requests to this machine's own addresses are served. Raises SettingError for settings that cannot work.
    """
    chosen = settings or load(given).settings
    check(chosen)
    return Mounted(chosen, build)


def problem_or_page(request: Request[Any, Any, Any], error: Exception) -> Response[bytes]:
    """A browser that opens an address which is no page gets a page that says so; everybody else gets a problem."""
    known = problems.known_error(request, error)
    if not isinstance(known, NotFound | WrongMethod) or not _is_for_eyes(request):
        return problems.problem(request, error)
    request.scope[problems.PROBLEM_TYPE] = known.type()  # type: ignore[literal-required]
    page = nowhere(request, known.status, known.message)
    page.headers.update(problems.headers(known, error))
    return page


def _is_for_eyes(request: Request[Any, Any, Any]) -> bool:
    """A browser that opens an address shows what it gets; whoever asks the API reads problems."""
    path = request.scope["path"].removeprefix(request.scope.get("root_path", ""))
    return not f"{path}/".startswith("/api/") and "text/html" in request.headers.get("accept", "")
