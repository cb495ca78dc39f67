"""The whole application: the API, the pages on top of it and their files; to be served, or mounted in another."""

from __future__ import annotations

from functools import cache
from hashlib import sha256
from importlib.resources import files
from typing import Annotated, Any

from litestar import Litestar, Request, Response, Router, get
from litestar.params import FromPath, HeaderParameter

from packhorse.errors import NotFound, WrongMethod
from packhorse.factory import check
from packhorse.http import app, problems, server
from packhorse.http.mount import Mounted
from packhorse.http.services import FromServices
from packhorse.settings import Settings, load
from packhorse.web.pages import (
    docs,
    failures,
    job,
    job_parts,
    jobs,
    keys,
    login,
    new_job,
    operations,
    public_job,
    schedule_form,
    schedules,
    webhooks,
)
from packhorse.web.render import HEADERS, error_page, no_page
from packhorse.web.widgets.brand import read_logo, stylesheet

KINDS = {
    ".js": "text/javascript",
    ".css": "text/css",
    ".svg": "image/svg+xml",
    ".png": "image/png",
    ".woff2": "font/woff2",
}
"""Files of the pages: scripts, styles and icons of ours, and what was fetched from npm at set-up. No others."""

Known = Annotated[str | None, HeaderParameter(name="If-None-Match")]

MODULES = (
    *(operations, jobs, new_job, job, job_parts, public_job, schedules, schedule_form),
    *(failures, keys, webhooks, login),
)

PAGES = Router(
    "/", route_handlers=[route for each in MODULES for route in each.ROUTES], exception_handlers={Exception: error_page}
)


def build(settings: Settings) -> Litestar:
    """The application; it opens store and files when it is started."""
    return app.build(settings, [docs.docs, *FILES, PAGES], problem_or_page)


def serve(settings: Settings) -> None:
    """Serve until SIGTERM or SIGINT. Raises SettingError for an address that cannot be served."""
    server.serve(settings, build(settings))


def asgi(settings: Settings | None = None, **given: Any) -> Mounted:
    """The HTTP API and the web UI as an ASGI application, to serve, or to mount in another application::

        api = FastAPI()
        api.mount("/carrier", packhorse.asgi())

    Pass settings by name (``store="sqlite:////srv/jobs.db"``) or as one object. The others have their usual sources:
    the environment, `.env` and pyproject.toml. It runs no worker. It checks every request that the parent application
    passes on: without keys, it serves only requests to this machine's own addresses. Raises SettingError for settings
    that cannot work.
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
    page = no_page(request, known.status, known.message)
    page.headers.update(problems.headers(known, error))
    return page


def _is_for_eyes(request: Request[Any, Any, Any]) -> bool:
    """Browsers get a page, API clients get a problem document."""
    path = request.scope["path"].removeprefix(request.scope.get("root_path", ""))
    return not f"{path}/".startswith("/api/") and "text/html" in request.headers.get("accept", "")


@cache
def _names() -> frozenset[str]:
    """All static files: listed once, so that no path leads out of the folder."""
    folder = files("packhorse.web").joinpath("static")
    own = [each.name for each in folder.iterdir() if each.is_file()]
    vendor = folder.joinpath("vendor")
    fetched = [f"vendor/{each.name}" for each in vendor.iterdir()] if vendor.is_dir() else []
    return frozenset(name for name in (*own, *fetched) if _kind(name))


def _kind(name: str) -> str | None:
    return next((kind for end, kind in KINDS.items() if name.endswith(end)), None)


@get("/favicon.ico", scope=None, include_in_schema=False, sync_to_thread=False)
def icon(known: Known = None) -> Response[bytes | None]:
    """Where browsers look for it on pages that do not say, such as an answer in JSON. They go by its type."""
    return _kept("icon.svg", known)


@get("/static/{name:path}", scope=None, include_in_schema=False, sync_to_thread=False)
def static(name: FromPath[str], known: Known = None) -> Response[bytes | None]:
    name = name.lstrip("/")
    if name not in _names():
        raise NotFound(path=f"/static/{name}")
    return _kept(name, known)


def _kept(name: str, known: str | None) -> Response[bytes | None]:
    body = files("packhorse.web").joinpath("static", name).read_bytes()
    tag = f'"{sha256(body).hexdigest()[:16]}"'
    headers = {**HEADERS, "Cache-Control": "no-cache", "ETag": tag}
    if known == tag:
        return Response(None, status_code=304, headers=headers)
    return Response(body, media_type=_kind(name), headers=headers)


@get("/static/brand.css", scope=None, include_in_schema=False, sync_to_thread=False)
def brand_colors(services: FromServices) -> Response[bytes]:
    chosen = services.settings.brand_color
    return Response(stylesheet(chosen).encode() if chosen else b"", media_type="text/css", headers=HEADERS)


@get("/static/brand-logo", scope=None, include_in_schema=False, sync_to_thread=True)
def brand_logo(services: FromServices) -> Response[bytes]:
    """An SVG as an image runs no script, and opened by itself the policy stops it."""
    body = read_logo(services.settings)
    if body is None:
        raise NotFound(path="/static/brand-logo")
    return Response(body, media_type=_kind(services.settings.brand_logo), headers=HEADERS)


FILES = [static, icon, brand_colors, brand_logo]
