"""How a page asks the API: as any client does, only without a socket. What a page shows or does, a client could too.

Whoever is let in to the page is let in there, once: the caller that was found for the page's own request is handed on.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol
from urllib.parse import quote, urlencode

import msgspec
from litestar import Request
from litestar.types import ASGIApp, Message, Receive, Scope, Send

BASE = "/api/v1"

CALLER = "packhorse_caller"
"""In the scope of a request that a page makes: who it is made for. No server puts that there, so nobody can send it."""

KEYED = "packhorse_keyed"
"""In the scope of a request that a page makes for whoever holds a key: it counts even where nobody needs one."""

KEPT = frozenset({"type", "asgi", "http_version", "scheme", "server", "client", "root_path"})
PASSED_ON = frozenset({b"host", b"x-forwarded-for", b"x-forwarded-proto", b"user-agent", b"traceparent"})
"""Headers that say where a request came from."""

Json = Any
Page = Request[Any, Any, Any]


class Viewer(Protocol):
    """Who looks, as far as pages care: what they may do, so that nothing is offered which would be refused."""

    @property
    def allowed(self) -> frozenset[str]: ...
    @property
    def tenant(self) -> str: ...
    @property
    def user(self) -> str | None: ...
    @property
    def default_user(self) -> str | None: ...
    @property
    def key_id(self) -> str: ...
    @property
    def is_operator(self) -> bool: ...


class Problem(Exception):
    """What the API answered instead of what was asked for."""

    def __init__(self, status: int, told: Mapping[str, Any], headers: Mapping[str, str]) -> None:
        super().__init__(told.get("detail", ""))
        self.status = status
        self.told = told
        self.headers = headers

    @property
    def mistakes(self) -> dict[str, str]:
        """What is wrong with which field."""
        return {each["field"]: each["message"] for each in self.told.get("errors", ())}


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Json:
        return msgspec.json.decode(self.body) if self.body else None


def viewer(request: Page) -> Viewer:
    found: Viewer = request.scope["state"]["caller"]
    return found


class Api:
    """The API on behalf of whoever asked for the page, or of whoever holds ``key``."""

    def __init__(self, request: Page, *, key: str | None = None) -> None:
        self._request = request
        self._key = key

    async def get(self, path: str, **query: Any) -> Json:
        """What is None is not asked for."""
        return (await self.ask("GET", path, query=query)).json

    async def post(self, path: str, body: Json = None, **query: Any) -> Json:
        return (await self.ask("POST", path, query=query, body=body)).json

    async def ask(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, Any] | None = None,
        body: Json = None,
        headers: Mapping[str, str] | None = None,
    ) -> Answer:
        """Raises Problem for everything from 400 on. A path is given as it is meant, not as it is quoted."""
        content = b"" if body is None else msgspec.json.encode(body)
        given = [(b"accept", b"application/json"), *_lowered(headers or {})]
        if content:
            given += [(b"content-type", b"application/json"), (b"content-length", str(len(content)).encode())]
        hearing = _Hearing(content)
        return await self._answer(self._scope(method, path, query or {}, given), hearing.receive, hearing)

    async def relay(
        self, path: str, receive: Receive, content_type: str, query: Mapping[str, Any], headers: Mapping[str, str]
    ) -> Json:
        """A POST whose body is told on while it comes in, however long it is."""
        given = [(b"accept", b"application/json"), *_lowered({"content-type": content_type, **headers})]
        return (await self._answer(self._scope("POST", path, query, given), receive, _Hearing(b""))).json

    async def _answer(self, scope: dict[str, Any], receive: Receive, hearing: _Hearing) -> Answer:
        await inside(self._request)(scope, receive, hearing.send)  # type: ignore[arg-type]
        answer = hearing.answer()
        if answer.status >= 400:
            raise Problem(answer.status, _told(answer), answer.headers)
        return answer

    def forwarded(self, path: str, **query: Any) -> Forwarded:
        """The API's own answer to the request, streamed as it streams: for files, and for events."""
        passed = [
            each for each in self._request.scope["headers"] if each[0] in (b"range", b"if-range", b"last-event-id")
        ]
        return Forwarded(inside(self._request), self._scope(self._request.method, path, query, passed))

    def _scope(
        self, method: str, path: str, query: Mapping[str, Any], headers: list[tuple[bytes, bytes]]
    ) -> dict[str, Any]:
        outer = self._request.scope
        whole = f"{outer.get('root_path', '')}{BASE}{path}"
        headers = [each for each in outer["headers"] if each[0] in PASSED_ON] + headers
        if self._key is not None:
            headers.append((b"authorization", f"Bearer {self._key}".encode("latin-1", "replace")))
        scope = {name: value for name, value in outer.items() if name in KEPT} | {
            "method": method,
            "path": whole,
            "raw_path": quote(whole).encode(),
            "query_string": urlencode(
                {name: _text(value) for name, value in query.items() if value is not None}
            ).encode(),
            "headers": headers,
            "state": {},
            "app": outer["litestar_app"],
            "litestar_app": outer["litestar_app"],
        }
        if self._key is None:
            scope[CALLER] = outer["state"]["caller"]
        else:
            scope[KEYED] = True
        return scope


class Forwarded:
    def __init__(self, app: ASGIApp, scope: dict[str, Any]) -> None:
        self._app = app
        self._scope = scope

    async def __call__(self, _: Scope, receive: Receive, send: Send) -> None:
        await self._app(self._scope, receive, send)  # type: ignore[arg-type]


class _Hearing:
    """The other end of a request: says the body, and keeps what is answered."""

    def __init__(self, body: bytes) -> None:
        self._body = body
        self._start: Any = None
        self._pieces: list[bytes] = []

    async def receive(self) -> Any:
        body, self._body = self._body, b""
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._start = message
        elif message["type"] == "http.response.body":
            self._pieces.append(message.get("body", b""))

    def answer(self) -> Answer:
        headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in self._start["headers"]}
        return Answer(self._start["status"], headers, b"".join(self._pieces))


def inside(request: Page) -> ASGIApp:
    """The routes, without what counts and logs requests from outside: the page's own is counted and logged."""
    found: ASGIApp = request.app.state.inside
    return found


def _told(answer: Answer) -> Mapping[str, Any]:
    found = answer.json if answer.headers.get("content-type", "").endswith("json") else {}
    return found if isinstance(found, dict) else {}


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _lowered(headers: Mapping[str, str]) -> list[tuple[bytes, bytes]]:
    return [(name.lower().encode(), value.encode()) for name, value in headers.items()]
