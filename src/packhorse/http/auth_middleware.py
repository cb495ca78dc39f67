"""In front of every route: authenticates the caller and checks that they may use the route."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from litestar import Request
from litestar.datastructures import State
from litestar.enums import ScopeType
from litestar.types import ASGIApp, Message, Receive, Scope, Send

from packhorse.auth.access import NOBODY, UNMARKED, check_route
from packhorse.auth.authenticate import check_origin
from packhorse.errors import Forbidden
from packhorse.http.requests import query
from packhorse.http.responses.problems import problem
from packhorse.http.responses.raw_response import Answer
from packhorse.http.services import Tools


class Gate:
    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != ScopeType.HTTP:
            await self._app(scope, receive, send)
            return
        tools: Tools = scope["litestar_app"].state.tools
        marks = scope["route_handler"].opt
        left: Mapping[str, str] = {}
        if tools.settings.keyless:
            caller = tools.authenticator.local_caller(scope)
        elif marks.get("scope", UNMARKED) is None:
            check_origin(scope)
            caller = NOBODY
        else:
            caller = await tools.authenticator.caller(scope)
            left = await tools.authenticator.admit(caller)
        try:
            check_route(caller, marks, scope["path_params"])  # a guard of Litestar's would be given a copy of the route
        except Forbidden as error:
            error.facts["headers"] = left
            raise
        scope["state"]["caller"] = caller
        answer = _plain if marks.get("plain") else self._app
        await answer(scope, receive, _telling(send, left))


async def _plain(scope: Scope, receive: Receive, send: Send) -> None:
    """For a route that takes the request as it is and has its answer ready: Litestar need not see to either."""
    request: Request[Any, Any, State] = Request(scope, receive)
    try:
        await query.check(request)
        answer: Answer[Any] = await scope["route_handler"].fn(request)
    except Exception as error:  # broad, and here: further out, nobody would tell how much more may be asked
        await problem(request, error).to_asgi_response(None, request)(scope, receive, send)
    else:
        await answer.sent(send)


def _telling(send: Send, headers: Mapping[str, str]) -> Send:
    """Add to the answer how much more may be asked."""
    if not headers:
        return send
    told = [(name.lower().encode(), value.encode()) for name, value in headers.items()]

    async def telling(message: Message) -> None:
        if message["type"] == "http.response.start":
            message["headers"] = [*message["headers"], *told]
        await send(message)

    return telling
