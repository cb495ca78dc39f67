"""An answer that is ready: a document as bytes, and its headers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Generic, TypeVar

from litestar import Response
from litestar.types import HTTPResponseStartEvent, Send

from packhorse.core import json
from packhorse.http.requests.json_body import JSON

T = TypeVar("T")

KIND = (b"content-type", JSON.encode())


class Answer(Response[T], Generic[T]):
    """What Litestar would make of a document, for a route that is marked as plain.

    That way is shorter by a fifth of what the loop has to do for a submit: `Gate` asks the route and sends this.
    """

    def __init__(self, document: T, status: int, headers: Mapping[str, str]) -> None:
        self.status_code = status
        self._body = json.encode(document)
        self._headers = [(name.lower().encode(), value.encode("latin-1")) for name, value in headers.items()]

    async def sent(self, send: Send) -> None:
        start: HTTPResponseStartEvent = {
            "type": "http.response.start",
            "status": self.status_code or 200,
            "headers": [*self._headers, KIND, (b"content-length", str(len(self._body)).encode())],
        }
        await send(start)
        await send({"type": "http.response.body", "body": self._body, "more_body": False})
