"""In front of every route: says who asks, or lets nobody in.

Where no key is asked for, only what comes from this machine is served. A page of another site can make a browser send
requests here, or point a name of its own at 127.0.0.1 and be taken for us. The Host and the Origin give both away. So
they do a page that another program serves on another port of this machine.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from ipaddress import ip_address
from typing import Any

from litestar import Request
from litestar.datastructures import State
from litestar.enums import ScopeType
from litestar.types import ASGIApp, Message, Receive, Scope, Send
from msgspec.structs import replace

from packhorse.auth.access import UNMARKED, check_route
from packhorse.auth.caller import LOCAL, NOBODY, Caller
from packhorse.auth.cookies import OURS, SAFE, check_origin
from packhorse.auth.headers import Headers, header_values
from packhorse.errors import Forbidden, Foreign
from packhorse.http.requests import query
from packhorse.http.responses.problems import problem
from packhorse.http.responses.raw_response import Answer
from packhorse.http.services import Tools

HOST = re.compile(r"(?P<host>\[[0-9a-fA-F:.]+\]|[A-Za-z0-9.-]+)(?::[0-9]{1,5})?")
ORIGIN = re.compile(rf"https?://{HOST.pattern}")


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
            _check_peer(scope["client"])
            _check(scope["method"], scope["headers"])
            caller = _local(tools.door.address(scope))
        elif marks.get("scope", UNMARKED) is None:
            check_origin(scope)
            caller = NOBODY
        else:
            caller = await tools.door.caller(scope)
            left = await tools.door.admit(caller)
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


@lru_cache(maxsize=1000)
def _local(address: str) -> Caller:
    return replace(LOCAL, address=address)


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


def _check_peer(peer: tuple[str, int] | None) -> None:
    """Whoever serves us may listen where others can come, and a Host is soon said. A socket file has no address."""
    if peer is not None and _is_elsewhere(peer[0]):
        raise Foreign(name="the address", value=peer[0])


@lru_cache(maxsize=1000)
def _is_elsewhere(text: str) -> bool:
    try:
        return not ip_address(text).is_loopback
    except ValueError:
        return False


def is_local(host: str) -> bool:
    """Whether a host, without its port, can only mean this machine."""
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def _check(method: str, headers: Headers) -> None:
    hosts = header_values(headers, b"host")
    if len(hosts) != 1 or not _is_local_address(HOST, hosts[0]):
        raise Foreign(name="Host", value=", ".join(hosts)[:100])
    if method in SAFE:
        return
    sites = header_values(headers, b"sec-fetch-site")
    if not OURS.issuperset(sites):
        raise Foreign(name="Sec-Fetch-Site", value=", ".join(sites)[:100])
    for origin in header_values(headers, b"origin"):
        # A page of another port of this machine is not ours either, unless the browser itself takes it for us: that
        # is a front end's own server, which passes requests on under our name.
        if not _is_local_address(ORIGIN, origin) or not (sites or _is_at(origin, hosts[0])):
            raise Foreign(name="Origin", value=origin[:100])


@lru_cache(maxsize=1000)
def _is_local_address(pattern: re.Pattern[str], address: str) -> bool:
    found = pattern.fullmatch(address)
    return found is not None and is_local(found["host"].strip("[]"))


def _is_at(origin: str, host: str) -> bool:
    return origin.partition("://")[2].lower() == host.lower()
