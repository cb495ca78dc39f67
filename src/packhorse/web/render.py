"""Pages made from templates: what is escaped, which headers go with them, and what is said when something is wrong."""

from __future__ import annotations

from datetime import UTC, datetime
from functools import cache, partial
from importlib.resources import files
from typing import Any
from urllib.parse import quote, unquote, urlencode

import msgspec
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from litestar import Request, Response
from litestar.datastructures import Cookie
from litestar.exceptions import HTTPException, ValidationException

from packhorse.auth.access import Caller
from packhorse.auth.authenticate import FAILED_LOGINS, cookie_attributes, cookie_name, cookie_value, session_cookie
from packhorse.errors import InvalidInput, PackhorseError, Unauthorized
from packhorse.http import problems
from packhorse.http.services import HttpServices
from packhorse.plurals import plural
from packhorse.version import VERSION
from packhorse.web.widgets import formatting
from packhorse.web.widgets.brand import brand_of

Page = Request[Any, Any, Any]

HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; "
        "font-src 'self'; media-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
    "Cache-Control": "no-store",
}

SAID = "packhorse_said"  # a cookie: what the last form has come to, told by the next page and forgotten
SAID_FOR = 20  # seconds, in case that page never comes

FILTERS = "duration milliseconds size number percent ago clock is_past second title about between level styled"
"""Functions of `formatting` that templates use."""

SHARED = "shared"  # what it takes to look at what all tenants share
NAVIGATION = (
    ("/", "Overview", SHARED),
    ("/jobs", "Jobs", "read"),
    ("/schedules", "Schedules", "read"),
    ("/failures", "Failures", "read"),
    ("/queues", "Queues", SHARED),
    ("/keys", "Keys", "admin"),
    ("/webhooks", "Webhooks", "admin"),
    ("/limits", "Limits", SHARED),
    ("/audit", "Audit", "admin"),
    ("/health", "Health", SHARED),
)
"""Path, name, and the scope that it needs."""


def services_and_caller(request: Page) -> tuple[HttpServices, Caller]:
    return request.app.state.services, request.scope["state"]["caller"]


@cache
def shapes(icon: str) -> str:
    """The shapes of an icon of Lucide, as SVG; none in a clone that `make setup` has not completed."""
    file = files("packhorse.web").joinpath("static", "vendor", f"icon-{icon}.svg")
    body = file.read_text().partition("<svg")[2].partition(">")[2] if file.is_file() else ""
    return " ".join(body.replace("</svg>", "").split())


@cache
def environment() -> Environment:
    made = Environment(
        loader=FileSystemLoader(str(files("packhorse.web").joinpath("templates"))),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters.update({name: getattr(formatting, name) for name in FILTERS.split()})
    made.filters["plural"] = plural
    made.globals.update(version=VERSION, shapes=shapes)
    return made


def render_page(request: Page, template: str, *, status: int = 200, **told: Any) -> Response[bytes]:
    """The template with its values; ``url`` makes addresses of this site, ``may`` says what the viewer may do."""
    who: Caller | None = request.scope["state"].get("caller")
    allowed = allowed_on(who)
    said_cookie = cookie_name(SAID, request.scope)
    said = cookie_value(request.scope, said_cookie)
    page = environment().get_template(template)
    text = page.render(
        url=partial(_url, request),
        may=allowed.__contains__,
        who=who,
        here=_here(request),
        address=str(request.base_url).rstrip("/"),
        navigation=[each for each in NAVIGATION if each[2] in allowed],
        server_now=datetime.now(UTC).isoformat(),
        said=unquote(said or ""),
        brand=brand_of(request.app.state.services.settings),
        **told,
    )
    answer = Response(text.encode(), status_code=status, media_type="text/html", headers=HEADERS)
    if said is not None:
        forget_cookie(request, answer, said_cookie)
    return answer


def _url(request: Page, path: str, /, **query: Any) -> str:
    return address_of(request.scope.get("root_path", ""), path, **query)


def address_of(root: str, path: str, /, **query: Any) -> str:
    """An address of the site that is mounted there; without what is not said."""
    given = {name: value for name, value in query.items() if value not in (None, "")}
    return quote(f"{root}{path}") + (f"?{urlencode(given)}" if given else "")


def allowed_on(who: Caller | None) -> frozenset[str]:
    """What a page asks ``may`` about."""
    return frozenset() if who is None else who.allowed | {SHARED} if who.is_operator else who.allowed


def _here(request: Page) -> str:
    return str(request.scope["path"]).removeprefix(request.scope.get("root_path", ""))


def redirect(request: Page, path: str, /, said: str = "", **query: Any) -> Response[bytes]:
    """To another page, after a form was sent; it says what came of it."""
    answer = Response(b"", status_code=303, headers={**HEADERS, "Location": _url(request, path, **query)})
    if said:
        name = cookie_name(SAID, request.scope)
        attributes = cookie_attributes(request.scope, name)
        answer.cookies.append(Cookie(value=quote(said), max_age=SAID_FOR, **attributes))
    return answer


def forget_cookie(request: Page, answer: Response[bytes], name: str) -> None:
    answer.cookies.append(Cookie(value="", max_age=0, expires=0, **cookie_attributes(request.scope, name)))


def error_page(request: Page, error: Exception) -> Response[bytes]:
    """An error as a page, or as JSON for a script; redirects to the login page if a login is missing."""
    status, title, detail, headers = _described(request, error)
    if is_script(request):
        answer = as_json(status, {"error": detail})
    elif status == 401:
        asked = request.url.path + (f"?{request.url.query}" if request.url.query else "")
        answer = redirect(request, "/login", next=asked if request.method == "GET" else "")
    else:
        answer = _page(request, status, title, detail)
    answer.headers.update(headers)
    cookie = session_cookie(request.scope)
    if cookie_value(request.scope, cookie) is not None and _lets_nobody_in(request, error):
        forget_cookie(request, answer, cookie)
    return answer


def no_page(request: Page, status: int, detail: str) -> Response[bytes]:
    """For the eyes: an address that is none, or one that only takes what a form sends."""
    if status == 404:
        return _page(request, status, "There is no such page", "Nothing is at this address.")
    said = "It only takes what a form sends to it: it cannot be opened or loaded again by itself. Nothing was done."
    is_opened = request.method in ("GET", "HEAD")
    return _page(request, status, "This address is no page", said if is_opened else detail)


def _page(request: Page, status: int, title: str, detail: str) -> Response[bytes]:
    back = next((each for each in NAVIGATION[1:] if _here(request).startswith(f"{each[0]}/")), NAVIGATION[0])
    return render_page(request, "wrong.html", status=status, title=title, detail=detail, back=back)


def _lets_nobody_in(request: Page, error: Exception) -> bool:
    """Whether the session was refused. Sent again with every page, it would be taken for guessing."""
    is_refused = isinstance(error, Unauthorized) or getattr(error, "facts", {}).get("policy") == FAILED_LOGINS
    return is_refused and "caller" not in request.scope["state"]


def is_script(request: Page) -> bool:
    return request.headers.get("accept", "").startswith("application/json")


def as_json(status: int, told: Any) -> Response[bytes]:
    return Response(msgspec.json.encode(told), status_code=status, media_type="application/json", headers=HEADERS)


def mistakes(error: PackhorseError) -> dict[str, str]:
    """What is wrong with which field."""
    return {each["field"]: each["message"] for each in error.errors} if isinstance(error, InvalidInput) else {}


def sentence(error: PackhorseError) -> str:
    """What is wrong, in one line."""
    return "; ".join(mistakes(error).values()) or error.message


def _described(request: Page, error: Exception) -> tuple[int, str, str, dict[str, str]]:
    """Status, title, detail and headers of an error page."""
    if isinstance(error, HTTPException) and error.status_code < 500 and not isinstance(error, ValidationException):
        return error.status_code, "This cannot be done", error.detail, {}
    known = problems.known_error(request, error)
    problems.log_failure(known, request, error)
    fields = "; ".join(f"{name}: {what}" if name else what for name, what in mistakes(known).items())
    headers = problems.headers(known, error)
    headers.pop("WWW-Authenticate", None)  # a browser would ask for a password
    return known.status, known.title(), fields or known.message, headers
