"""JSON that somebody sent: read no deeper than anybody means it, and with nothing in it that we would not look at."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec
from litestar import Request

from packhorse.define.validation import NOT_VALID, UNDECODABLE, decode_json, field_errors, invalid, unknown_fields
from packhorse.errors import InvalidInput, Malformed, TooLarge, UnsupportedMedia
from packhorse.http.requests.body import Body
from packhorse.settings import Settings

S = TypeVar("S", bound=msgspec.Struct)

JSON = "application/json"

SMALL = 64 * 1024
"""Bytes of a body that only says how something is to be done."""


def members(data: bytes) -> dict[str, Any]:
    """The body of a request, which must be an object."""
    try:
        given = decode_json(data)
    except UNDECODABLE as error:
        raise Malformed(reason=f"as JSON, {field_errors(error)[0]['message']}") from error
    if not isinstance(given, dict):
        raise InvalidInput("The body must be a JSON object.", field="")
    return given


def converted(given: Mapping[str, Any], shape: type[S]) -> S:
    """Raises InvalidInput that names what is wrong; for a name there is not, with those there are."""
    known = shape.__struct_fields__
    if surplus := [name for name in given if name not in known]:
        raise invalid(NOT_VALID, unknown_fields(surplus, known))
    try:
        return msgspec.convert(given, shape)
    except UNDECODABLE as error:
        raise invalid(NOT_VALID, field_errors(error)) from error


async def asked(request: Request[Any, Any, Any], settings: Settings, shape: type[S]) -> S:
    """What the body of a request says, which may as well be left out."""
    body, content_type = Body(request.receive, settings), request.headers.get("content-type", "")
    try:
        data = await body.whole(SMALL)
    except TooLarge:
        await body.drain()
        raise
    if not data:
        return shape()
    if kind_of(content_type) != JSON:
        raise UnsupportedMedia("The body must be JSON.", content_type=content_type[:100])
    return converted(members(data), shape)


def kind_of(content_type: str) -> str:
    return content_type.partition(";")[0].strip().lower()
