"""``/login`` and ``/logout``: a key is typed once; the browser keeps a cookie that no script can read."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated
from urllib.parse import parse_qsl, unquote, urlencode

from litestar import Response, get, post
from litestar.datastructures import Cookie
from litestar.params import QueryParameter

from packhorse.auth.access import check_route
from packhorse.auth.authenticate import session_cookie
from packhorse.errors import Forbidden, TooMany, Unauthorized
from packhorse.http.services import HttpServices
from packhorse.jobs import keys
from packhorse.schemas.keys import SessionDocument
from packhorse.web.forms import form
from packhorse.web.render import Page, redirect, render_page, services_and_caller

Next = Annotated[str, QueryParameter(description="The page to go to afterwards.")]


@get("/login", scope=None, include_in_schema=False)
async def login(request: Page, next: Next = "") -> Response[bytes]:
    if request.scope["state"]["caller"].allowed:  # nobody needs a key here: everybody has been let in as somebody
        return redirect(request, "/")
    return render_page(request, "login.html", next=next, mistake="")


@post("/login", scope=None, include_in_schema=False, status_code=303)
async def enter(request: Page) -> Response[bytes]:
    given = await form(request, is_small=True)
    next = str(given.get("next", ""))
    try:
        session = await _log_in(request, str(given.get("key", "")).strip())
    except (Unauthorized, Forbidden, TooMany) as error:
        return render_page(request, "login.html", status=error.status, next=next, mistake=error.message)
    path, query = _page_of_ours(request, next)
    response = redirect(request, path)
    if query:
        response.headers["Location"] += f"?{query}"
    response.cookies.append(_cookie(request, session))
    return response


@post("/logout", scope="read", include_in_schema=False, status_code=303)
async def leave(request: Page) -> Response[bytes]:
    await keys.end_session(*services_and_caller(request))
    response = redirect(request, "/login", said="You are logged out.")
    response.delete_cookie(session_cookie(request.scope), path=_root(request))
    return response


async def _log_in(request: Page, key: str) -> SessionDocument:
    """Counted and refused as a request with this key would be, also on a server that asks for none."""
    services: HttpServices = request.app.state.services
    caller = await services.authenticator.holder(request.scope, key)
    await services.authenticator.admit(caller)
    check_route(caller, {"scope": "read"}, {})
    return await keys.start_session(services, caller)


def _cookie(request: Page, session: SessionDocument) -> Cookie:
    """For links from elsewhere it is sent along (lax), so that an address can be shared; writes are checked."""
    lasting = datetime.fromisoformat(session["ends_at"] or "") - datetime.now(UTC)
    # A proxy that is not ours to trust can only make the cookie stricter by claiming https.
    is_encrypted = "https" in (request.scope["scheme"], request.headers.get("x-forwarded-proto"))
    return Cookie(
        key=session_cookie(request.scope),
        value=session["session"],
        path=_root(request),
        max_age=max(1, int(lasting.total_seconds())),
        httponly=True,
        secure=is_encrypted,
        samesite="lax",
    )


def _root(request: Page) -> str:
    return request.scope.get("root_path", "") or "/"


def _page_of_ours(request: Page, next: str) -> tuple[str, str]:
    """The path below our root, decoded, and the query. An address that a browser may take for another site's: ``/``.

    The decoded path is checked, because that is what the redirect encodes again.
    """
    given, _, query = next.partition("?")
    path = unquote(given).removeprefix(request.scope.get("root_path", ""))
    if not path.startswith("/") or path.startswith(("//", "/\\")) or not path.isprintable():
        return "/", ""
    return path, urlencode(parse_qsl(query))


ROUTES = [login, enter, leave]
