"""``/login`` and ``/logout``: a key is typed once; the browser keeps a cookie that no script can read."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Any
from urllib.parse import parse_qsl, unquote

from litestar import Response, get, post
from litestar.datastructures import Cookie
from litestar.params import QueryParameter

from packhorse.auth.cookies import session_cookie
from packhorse.web.api_calls import Api, Page, Problem
from packhorse.web.forms import form
from packhorse.web.render import moved, rendered

Next = Annotated[str, QueryParameter(description="The page to go to afterwards.")]


@get("/login", scope=None, include_in_schema=False)
async def login(request: Page, next: Next = "") -> Response[bytes]:
    if _is_open(request):
        return moved(request, "/")
    return rendered(request, "login.html", next=next, mistake="")


@post("/login", scope=None, include_in_schema=False, status_code=303)
async def enter(request: Page) -> Response[bytes]:
    given = await form(request, is_small=True)
    next = str(given.get("next", ""))
    try:
        answer = await Api(request, key=str(given.get("key", "")).strip()).ask("POST", "/sessions")
    except Problem as problem:
        if problem.status not in (401, 403, 429):
            raise
        said = problem.told.get("detail", "")
        return rendered(request, "login.html", status=problem.status, next=next, mistake=said)
    path, _, query = _inside(request, next).partition("?")
    response = moved(request, unquote(path), **dict(parse_qsl(query)))
    response.cookies.append(_cookie(request, answer.json))
    return response


@post("/logout", scope="read", include_in_schema=False, status_code=303)
async def leave(request: Page) -> Response[bytes]:
    await Api(request).ask("DELETE", "/sessions/current")
    response = moved(request, "/login", said="You are logged out.")
    response.delete_cookie(session_cookie(request.scope), path=_root(request))
    return response


def _cookie(request: Page, session: Any) -> Cookie:
    """For links from elsewhere it is sent along (lax), so that an address can be shared; writes are checked."""
    lasting = datetime.fromisoformat(session["ends_at"]) - datetime.now(UTC)
    return Cookie(
        key=session_cookie(request.scope),
        value=session["session"],
        path=_root(request),
        max_age=max(1, int(lasting.total_seconds())),
        httponly=True,
        secure=_is_encrypted(request),
        samesite="lax",
    )


def _is_encrypted(request: Page) -> bool:
    """A proxy that is not ours to trust can only make the cookie stricter by claiming it."""
    return request.scope["scheme"] == "https" or request.headers.get("x-forwarded-proto", "") == "https"


def _root(request: Page) -> str:
    return request.scope.get("root_path", "") or "/"


def _inside(request: Page, next: str) -> str:
    """Only to a page of ours: an address of another site, or one that a browser would read as such, is left out."""
    root = request.scope.get("root_path", "")
    path = next.removeprefix(root)
    is_ours = path.startswith("/") and not path.startswith(("//", "/\\")) and path.isprintable()
    return path if is_ours else "/"


def _is_open(request: Page) -> bool:
    """Whether nobody needs a key here: then everybody has been let in as somebody."""
    return bool(request.scope["state"]["caller"].allowed)


ROUTES = [login, enter, leave]
