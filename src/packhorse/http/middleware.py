"""What runs around every route: traces, metrics and the log; then authentication and the check of the route's scope."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any, Generic, NamedTuple, TypeVar

from litestar import Request, Response
from litestar.enums import ScopeType
from litestar.types import ASGIApp, HTTPResponseStartEvent, HTTPScope, Message, Receive, Scope, Send
from msgspec.structs import replace

from packhorse import metrics
from packhorse.auth.access import NOBODY, UNMARKED, Caller, check_route
from packhorse.auth.authenticate import check_origin, first_header, is_encrypted
from packhorse.auth.keys import PREFIX
from packhorse.core import json
from packhorse.errors import Forbidden, NotFound
from packhorse.http.problems import PROBLEM_TYPE, problem, refusal
from packhorse.http.requests import JSON, HttpRequest, check_head, check_query
from packhorse.http.services import HttpServices
from packhorse.log import log, new_span, new_trace, traced

T = TypeVar("T")

METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
"""Any other method is counted as `other`."""
NOWHERE = "none"
"""The route label of a request that matched no route."""
SUBMIT = ("POST", "/api/v1/jobs")
SHOWN_KEY = re.compile(rf"({PREFIX}[0-9a-f]{{20}})[0-9a-z]+")
"""A token in a path. Its id may be logged, its secret may not."""
TRACEPARENT = re.compile(rb"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
CONTENT_TYPE = (b"content-type", JSON.encode())
SAFE = ((b"x-content-type-options", b"nosniff"), (b"cache-control", b"no-store"))
HSTS = (b"strict-transport-security", b"max-age=31536000")
"""For this host only: we do not know whose the others of its domain are."""


@lru_cache(maxsize=2048)
def _series(of: T, *labels: str | int) -> T:
    """Cached: the lookup costs more than the increment."""
    return of.labels(*labels)  # type: ignore[attr-defined, no-any-return]


class TelemetryMiddleware:
    """Wraps the whole application: a request without a route reaches no Litestar middleware."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != ScopeType.HTTP:
            await self._app(scope, receive, send)
            return
        request = _Observed(scope, receive, send)
        refused = check_head(scope)
        with traced(request.trace.id):
            try:
                if refused is None:
                    await self._app(scope, request.receive, request.send)
                else:
                    scope[PROBLEM_TYPE] = refused.type()  # type: ignore[literal-required]
                    await refusal(refused)(scope, request.receive, request.send)
            finally:
                request.finish()


class _Observed:
    """A request whose bytes, time and outcome are counted."""

    def __init__(self, scope: Any, receive: Receive, send: Send) -> None:
        self._scope = scope
        self._receive = receive
        self._send = send
        self.trace = trace_of(scope["headers"])
        self._path = scope["path"]
        self._began = time.monotonic()
        self._status = 0
        """0: no response was sent, because the client left or the server stopped."""
        self._received = self._sent = 0
        self._open: set[str] = set()
        self._is_upload = (first_header(scope["headers"], b"content-type") or "").lower().startswith("multipart/")

    @property
    def _route(self) -> str:
        """The path template. Known once the router has seen the request."""
        found: str = self._scope.get("path_template", NOWHERE)
        return found

    async def receive(self) -> Any:
        if self._is_upload:
            self._enter("upload")
        message: Any = await self._receive()
        if body := message.get("body"):
            self._received += len(body)
            _series(metrics.received, self._route).inc(len(body))
        return message

    async def send(self, message: Any) -> None:
        if message["type"] == "http.response.start":
            message = self._start(message)
        elif body := message.get("body"):
            self._sent += len(body)
            _series(metrics.sent, self._route).inc(len(body))
        await self._send(message)

    def finish(self) -> None:
        for kind in self._open:
            metrics.open_now.labels(kind).dec()
        took = time.monotonic() - self._began
        method, route = self._scope["method"], self._route
        if method not in METHODS:
            method = "other"
        problem_type: str | None = self._scope.get(PROBLEM_TYPE)
        _series(metrics.requests, method, route, self._status).inc()
        _series(metrics.request_seconds, method, route).observe(took)
        if log.tells_requests:
            facts = {"route": route, "received": self._received, "sent": self._sent, "problem": problem_type}
            log.request_answered(method, SHOWN_KEY.sub(r"\1…", self._path), self._status, took, facts)
        if (method, route) != SUBMIT:
            return
        if 200 <= self._status < 300:
            metrics.submitted.inc()
        elif problem_type is not None:
            metrics.refused.labels(problem_type).inc()

    def _start(self, message: Any) -> Any:
        self._status = message["status"]
        headers = message["headers"]
        if (first_header(headers, b"content-type") or "").startswith("text/event-stream"):
            self._enter("stream")
        elif first_header(headers, b"content-disposition") is not None:
            self._enter("download")
        return {**message, "headers": [*headers, *self.trace.headers(), *self._safe_headers(headers)]}

    def _safe_headers(self, headers: Sequence[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
        """What every response has: no guessed media type, no copy in a cache unless the route says so, https only."""
        given = {name.lower() for name, _ in headers}
        found = [each for each in SAFE if each[0] not in given]
        return [*found, HSTS] if is_encrypted(self._scope) else found

    def _enter(self, kind: str) -> None:
        if kind not in self._open:
            self._open.add(kind)
            metrics.open_now.labels(kind).inc()


class Trace(NamedTuple):
    id: str
    flags: str

    def headers(self) -> list[tuple[bytes, bytes]]:
        response = f"00-{self.id}-{new_span()}-{self.flags}"
        return [(b"traceresponse", response.encode()), (b"x-trace-id", self.id.encode())]


def trace_of(headers: Iterable[tuple[bytes, bytes]]) -> Trace:
    """The caller's trace, if its ``traceparent`` header (W3C Trace Context) is valid, else a new one."""
    given = [value.strip() for name, value in headers if name.lower() == b"traceparent"]
    found = TRACEPARENT.fullmatch(given[0]) if len(given) == 1 else None
    if found is None or not _is_valid(found):
        return Trace(new_trace(), "00")
    return Trace(found[2].decode(), found[4].decode())


def _is_valid(found: re.Match[bytes]) -> bool:
    """Later versions may append fields, version 00 may not; no id may be all zeros."""
    is_known = found[1] != b"ff" and not (found[1] == b"00" and found[5])
    return is_known and b"" not in (found[2].strip(b"0"), found[3].strip(b"0"))


APP = "packhorse_app"
"""The key of a scope under which the name of the app is, for a request to the API of one app."""
OF_APP = re.compile(r"/apps/(?P<app>[^/]+)(?=/(?:api/v1|openapi\.json)(?:/|$))")
SCOPED = ("jobs", "pipelines", "schedules", "job_config", "failures", "me", "destinations")
"""What of the API exists for one app. The rest is about the whole deployment or tenant, as the orders of failures are:
one may be about several apps."""


class AppMiddleware:
    """``/apps/{app}/api/v1/…`` is the API as if that app were alone: as if it were mounted there, for its pipelines."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        root = scope.get("root_path", "").rstrip("/")
        if scope["type"] == ScopeType.HTTP and (found := OF_APP.match(scope["path"].removeprefix(root))):
            scope["root_path"] = root + found[0]
            scope["path"] = root + scope["path"].removeprefix(root)
            scope[APP] = found["app"]  # type: ignore[literal-required]
        await self._app(scope, receive, send)


async def scoped_caller(services: HttpServices, caller: Caller, scope: HTTPScope) -> Caller:
    """The caller, who sees only the app that the request is for. Raises NotFound."""
    app = str(scope.get(APP, ""))
    if not app or scope["route_handler"].opt.get("scope", UNMARKED) is None:  # OpenAPI is the same for all
        return caller
    pipelines = frozenset(each.plan.pipeline for each in await services.catalog.all(app))
    if not pipelines:
        raise NotFound(f"There is no app {app[:100]!r}.", path=scope["path"])
    parts = scope["path_template"].removeprefix("/api/v1/").split("/")
    if parts[0] not in SCOPED or parts[:2] == ["failures", "orders"]:
        raise NotFound(f"One app has no {scope['path']}: use the address without /apps/{app}.", path=scope["path"])
    return replace(caller, app=app, pipelines=pipelines)


class AuthMiddleware:
    """In front of every route and page: authenticates the caller and checks that they may use the route."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != ScopeType.HTTP:
            await self._app(scope, receive, send)
            return
        services: HttpServices = scope["litestar_app"].state.services
        marks = scope["route_handler"].opt
        limits: Mapping[str, str] = {}
        if services.settings.keyless:
            caller = services.authenticator.local_caller(scope)
        elif marks.get("scope", UNMARKED) is None:
            if not marks.get("signed"):  # other systems send no Origin, and no cookie counts there
                check_origin(scope)
            caller = NOBODY
        else:
            caller = await services.authenticator.caller(scope)
            limits = await services.authenticator.admit(caller)
        try:
            check_route(caller, marks, scope["path_params"])  # a guard of Litestar's would be given a copy of the route
        except Forbidden as error:
            error.facts["headers"] = limits
            services.audit.tell("api.forbidden", caller, route=scope["path_template"], scope=error.facts.get("scope"))
            raise
        caller = await scoped_caller(services, caller, scope)
        scope["state"]["caller"] = caller
        if limits:
            send = _add_headers(send, limits)
        if marks.get("plain"):
            await _call_plain(services, caller, scope, receive, send)
        else:
            await self._app(scope, receive, send)


def _add_headers(send: Send, headers: Mapping[str, str]) -> Send:
    added = [(name.lower().encode(), value.encode()) for name, value in headers.items()]

    async def send_with_headers(message: Message) -> None:
        if message["type"] == "http.response.start":
            message["headers"] = [*message["headers"], *added]
        await send(message)

    return send_with_headers


class PlainResponse(Response[T], Generic[T]):
    """A JSON document as bytes, for a route that is marked as ``plain``.

    `AuthMiddleware` calls such a route and sends its answer without Litestar, which saves a fifth of the work that a
    submit costs the event loop.
    """

    def __init__(self, document: T, status: int, headers: Mapping[str, str]) -> None:
        self.status_code = status
        self._body = json.encode(document)
        self._headers = [(name.lower().encode(), value.encode("latin-1")) for name, value in headers.items()]

    async def send_to(self, send: Send) -> None:
        headers = [*self._headers, CONTENT_TYPE, (b"content-length", str(len(self._body)).encode())]
        start: HTTPResponseStartEvent = {
            "type": "http.response.start",
            "status": self.status_code or 200,
            "headers": headers,
        }
        await send(start)
        await send({"type": "http.response.body", "body": self._body, "more_body": False})


async def _call_plain(services: HttpServices, caller: Caller, scope: HTTPScope, receive: Receive, send: Send) -> None:
    request: HttpRequest = Request(scope, receive)
    try:
        await check_query(request)
        response: PlainResponse[Any] = await scope["route_handler"].fn(request, services, caller)
    except Exception as error:  # as Litestar's handler: every error becomes a problem, with the rate limit headers
        await problem(request, error).to_asgi_response(None, request)(scope, receive, send)
    else:
        await response.send_to(send)
