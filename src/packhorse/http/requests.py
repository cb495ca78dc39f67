"""Reading requests: the query, the body with limits on its size and speed, and JSON."""

from __future__ import annotations

import asyncio
import re
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import cache
from typing import Annotated, Any, TypeVar, get_args
from urllib.parse import parse_qsl

import msgspec
from litestar import Request
from litestar.datastructures import State
from litestar.handlers.base import BaseRouteHandler
from litestar.params import FromPath, QueryParameter
from litestar.types import HTTPScope, Receive
from litestar.utils.scope.state import ScopeState

from packhorse.define.validation import (
    NOT_VALID,
    NUL,
    UNDECODABLE,
    FieldError,
    decode_json,
    field_errors,
    invalid,
    unknown_fields,
)
from packhorse.errors import (
    AddressTooLong,
    HeadersTooLarge,
    InvalidInput,
    Malformed,
    PackhorseError,
    Refused,
    TooLarge,
    TooSlow,
    UnsupportedMedia,
)
from packhorse.settings import Settings

S = TypeVar("S", bound=msgspec.Struct)
HttpRequest = Request[Any, Any, State]

JSON = "application/json"
LARGEST = 2**53 - 1
"""The largest integer that JSON readers and all stores represent exactly."""
Id = FromPath[str]
"""An id or a name in the path."""
PageSize = Annotated[int, QueryParameter(ge=1, le=200)]
"""Items per page."""
Number = Annotated[int, QueryParameter(ge=0, le=LARGEST)]
"""Of an event or a line."""
MaybeNumber = Annotated[int | None, QueryParameter(ge=0, le=LARGEST)]
QUERY = "query"
"""Route option with the parameter names, for a route that reads its query itself."""

NO_NULL = "Leave it out instead of saying null"
NO_TIME = "It must be a time such as 2026-01-31T12:00:00Z"
NUMBER = re.compile(r"[-+]?[0-9.]+(e[-+]?[0-9]+)?", re.IGNORECASE)

SMALL = 64 * 1024
"""Bytes of a body that only has options."""
DRAINED = 4 * 1024 * 1024
"""Bytes of a refused body that are still read: a client that has sent everything is sure to see the answer."""
DRAINING = 1.0


LONGEST_PATH = 4096
"""Characters of a path, which may end with the name of a file in folders."""
LONGEST_QUERY = 8 * 1024
"""Bytes of a query."""
MOST_PARAMETERS = 100
"""Parameters of a query."""
LARGEST_HEADERS = 32 * 1024
"""Bytes of all headers of a request, names and values."""


def check_head(scope: HTTPScope) -> Refused | None:
    """Why a request is refused before anything of it is parsed: anybody may send it, with a key or without."""
    if sum(len(name) + len(value) for name, value in scope["headers"]) > LARGEST_HEADERS:
        return HeadersTooLarge(limit=LARGEST_HEADERS)
    query = scope["query_string"]
    if len(scope["path"]) > LONGEST_PATH or len(query) > LONGEST_QUERY or query.count(b"&") >= MOST_PARAMETERS:
        return AddressTooLong(path=LONGEST_PATH, query=LONGEST_QUERY, parameters=MOST_PARAMETERS)
    return None


class Nothing(msgspec.Struct):
    """A body without fields: the path says everything."""


async def check_query(request: HttpRequest) -> None:
    """Refuse unknown parameters: a filter that is silently ignored would show the wrong jobs.

    It runs before every route, in the loop: Litestar calls what is not a coroutine in a thread.
    """
    if not request.scope["query_string"]:
        return
    _parse_query(request.scope)
    given = Counter(name for name, _ in request.query_params.multi_items())
    known = _known_names(request.route_handler)
    mistakes = unknown_fields((name for name in given if name not in known), known)
    mistakes += [{"field": name, "message": "This is given twice"} for name, count in given.items() if count > 1]
    mistakes += [{"field": name, "message": NUL} for name, value in request.query_params.multi_items() if "\0" in value]
    mistakes += _misread_errors(request)
    if mistakes:
        raise invalid("The query is not valid", mistakes)


def _parse_query(scope: HTTPScope) -> None:
    """In place of Litestar, which keeps the last 1024 queries of any client in memory."""
    text = scope["query_string"].decode("latin-1")
    ScopeState.from_scope(scope).parsed_query = tuple(parse_qsl(text, keep_blank_values=True))


def _misread_errors(request: HttpRequest) -> list[FieldError]:
    """Values that would be misread: null as a missing value, 20260101 as seconds since 1970."""
    parameters = request.route_handler.parsed_fn_signature.parameters
    found = []
    for name, value in request.query_params.multi_items():
        hint = parameters[name].annotation if name in parameters else str
        kinds = get_args(hint) or (hint,)
        if value.lower() == "null" and str not in kinds:
            found.append({"field": name, "message": NO_NULL})
        elif datetime in kinds and NUMBER.fullmatch(value):
            found.append({"field": name, "message": NO_TIME})
    return found


@cache
def _known_names(handler: BaseRouteHandler) -> Sequence[str]:
    if QUERY in handler.opt:
        return tuple(handler.opt[QUERY])
    parameters = handler.parsed_fn_signature.parameters.items()
    return [name for name, each in parameters if isinstance(each.kwarg_definition, QueryParameter)]


class Body:
    """A body as it arrives. A client that is silent for too long, or slow overall, is cut off: otherwise a few could
    hold every connection.
    """

    def __init__(self, receive: Receive, settings: Settings) -> None:
        self._receive = receive
        self._silence = settings.body_silence
        self._rate = settings.body_rate
        self._size = 0
        self._began = time.monotonic()
        self._is_over = False
        self.is_begun = False
        self._timer: asyncio.TimerHandle | None = None
        self._waiting: asyncio.Task[Any] | None = None
        self._waits_since = 0.0
        self._is_silent = False

    async def read(self) -> bytes | None:
        """The next piece, None after the last."""
        while not self._is_over:
            piece = await self._next()
            if piece:
                return piece
        return None

    async def whole(self, limit: int) -> bytes:
        pieces = []
        while piece := await self.read():
            if self._size > limit:
                raise TooLarge(field="body", limit=limit)
            pieces.append(piece)
        return b"".join(pieces)

    async def drain(self) -> None:
        """Read on for a while without keeping anything."""
        until = self._size + DRAINED
        try:
            async with asyncio.timeout(DRAINING):
                while self._size < until and await self.read():
                    pass
        except (TimeoutError, PackhorseError):  # whatever is wrong with the rest, the request is already refused
            pass

    async def _next(self) -> bytes:
        self.is_begun = True
        message = await self._message()
        if message["type"] != "http.request":
            self._end()
            raise Malformed(reason="the connection ended before the body did")
        piece: bytes = message.get("body", b"")
        if not message.get("more_body", False):
            self._end()
        self._size += len(piece)
        took = time.monotonic() - self._began
        if took > self._silence and self._size < self._rate * (took - self._silence):
            raise TooSlow(seconds=took)
        return piece

    async def _message(self) -> Any:
        task = asyncio.current_task()
        assert task is not None
        before = task.cancelling()
        self._waiting, self._waits_since, self._is_silent = task, time.monotonic(), False
        if self._timer is None:
            self._set_timer(self._silence)
        try:
            return await self._receive()
        except asyncio.CancelledError:
            if not self._is_silent or task.uncancel() > before:  # somebody else cancelled the task
                raise
            self._end()
            raise TooSlow(seconds=self._silence) from None
        finally:
            if self._waiting is task:  # otherwise another task already reads on
                self._waiting = None

    def _set_timer(self, seconds: float) -> None:
        """One timer for the whole body, moved on as it arrives: a timer per piece costs as much as the piece."""
        self._timer = asyncio.get_running_loop().call_later(seconds, self._check_silence)

    def _check_silence(self) -> None:
        self._timer = None
        if self._waiting is None:  # the next read sets the timer again
            return
        left = self._silence - (time.monotonic() - self._waits_since)
        if left > 0:
            self._set_timer(left)
            return
        self._is_silent = True
        self._waiting.cancel()

    def _end(self) -> None:
        self._is_over = True
        if self._timer is not None:
            self._timer.cancel()


async def read_json(request: HttpRequest, shape: type[S]) -> S:
    """The body of a request, which may be left out if every field has a default."""
    body, content_type = Body(request.receive, request.app.state.settings), request.headers.get("content-type", "")
    try:
        data = await body.whole(SMALL)
    except TooLarge:
        await body.drain()
        raise
    if not data:
        return convert({}, shape)
    if media_type(content_type) != JSON:
        raise UnsupportedMedia("The body must be JSON.", content_type=content_type[:100])
    return convert(decode_object(data), shape)


def decode_object(data: bytes) -> dict[str, Any]:
    """The members of a JSON object, which may not be nested too deeply."""
    try:
        given = decode_json(data)
    except UNDECODABLE as error:
        raise Malformed(reason=f"as JSON, {field_errors(error)[0]['message']}") from error
    if not isinstance(given, dict):
        raise InvalidInput("The body must be a JSON object.", field="")
    return given


def convert(given: Mapping[str, Any], shape: type[S]) -> S:
    """Raises InvalidInput that names what is wrong; for an unknown field, with the known ones."""
    known = shape.__struct_fields__
    if surplus := [name for name in given if name not in known]:
        raise invalid(NOT_VALID, unknown_fields(surplus, known))
    try:
        return msgspec.convert(given, shape)
    except UNDECODABLE as error:
        raise invalid(NOT_VALID, field_errors(error)) from error


def media_type(content_type: str) -> str:
    return content_type.partition(";")[0].strip().lower()
