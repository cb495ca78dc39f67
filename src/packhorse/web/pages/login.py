"""``/login``, ``/logout``, ``/sessions``: a key is typed once; the browser keeps a cookie that no script can read."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated
from urllib.parse import parse_qsl, unquote, urlencode

from litestar import Response, get, post
from litestar.datastructures import Cookie
from litestar.params import FromPath, FromQuery, QueryParameter

from packhorse.auth.access import check_route
from packhorse.auth.authenticate import cookie_attributes, session_cookie
from packhorse.errors import Forbidden, TooMany, Unauthorized
from packhorse.http.services import HttpServices
from packhorse.jobs import keys
from packhorse.schemas.keys import SessionDocument
from packhorse.web.forms import form
from packhorse.web.render import Page, forget_cookie, redirect, render_page, services_and_caller

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
    forget_cookie(request, response, session_cookie(request.scope))
    return response


@get("/sessions", scope="read", include_in_schema=False)
async def sessions(request: Page, cursor: FromQuery[str | None] = None) -> Response[bytes]:
    found = await keys.list_sessions(*services_and_caller(request), cursor=cursor)
    return render_page(request, "sessions.html", sessions=found["items"], next=found["next"], query={"cursor": cursor})


@post("/sessions/{session_id:str}/end", scope="read", include_in_schema=False, status_code=303)
async def end_session(request: Page, session_id: FromPath[str]) -> Response[bytes]:
    services, caller = services_and_caller(request)
    await keys.end_session(services, caller, session_id)
    response = redirect(request, "/sessions", said=f"Session {session_id} has ended.")
    if session_id == caller.session:
        forget_cookie(request, response, session_cookie(request.scope))
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
    return Cookie(
        value=session["session"],
        max_age=max(1, int(lasting.total_seconds())),
        **cookie_attributes(request.scope, session_cookie(request.scope)),
    )


def _page_of_ours(request: Page, next: str) -> tuple[str, str]:
    """The path below our root, decoded, and the query. An address that a browser may take for another site's: ``/``.

    The decoded path is checked, because that is what the redirect encodes again.
    """
    given, _, query = next.partition("?")
    path = unquote(given).removeprefix(request.scope.get("root_path", ""))
    if not path.startswith("/") or path.startswith(("//", "/\\")) or not path.isprintable():
        return "/", ""
    return path, urlencode(parse_qsl(query))


ROUTES = [login, enter, leave, sessions, end_session]
