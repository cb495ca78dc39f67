"""Errors as RFC 9457 problems: the one place where HTTP hears of them."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Any, get_args

from litestar import Request, Response
from litestar.exceptions import HTTPException, ValidationException
from litestar.response.base import ASGIResponse

from packhorse.core import json
from packhorse.define.validation import invalid, one_of
from packhorse.errors import (
    BlobError,
    Conflict,
    CorruptRecord,
    Forbidden,
    NotFound,
    PackhorseError,
    RangeNotSatisfiable,
    Refused,
    SchemaTooNew,
    SlotTaken,
    StoreError,
    TooMany,
    Unauthorized,
    WrongMethod,
)
from packhorse.http.middleware import PROBLEM as PROBLEM_TYPE
from packhorse.http.openapi import PROBLEM
from packhorse.log import log, trace_id
from packhorse.schemas.problems import error_to_json

RETRY_AFTER = "2"
"""Seconds. About what a store or an object store needs to be restarted."""

LASTING = (CorruptRecord, SchemaTooNew)
"""What will be the same when it is asked for again."""


def problem(request: Request[Any, Any, Any], error: Exception) -> Response[bytes]:
    known = known_error(request, error)
    request.scope[PROBLEM_TYPE] = known.type()  # type: ignore[literal-required]
    log_failure(known, request, error)
    document = error_to_json(known)
    document["trace_id"] = trace_id()
    return Response(json.encode(document), status_code=known.status, media_type=PROBLEM, headers=headers(known, error))


def log_failure(
    known: PackhorseError, request: Request[Any, Any, Any], error: Exception, path: str | None = None
) -> None:
    """Log what is our fault, with what the answer leaves out; under this path if the real one is a secret.

    The address is read only here: a request that was refused for its Host header may have none that can be read.
    """
    if known.status < 500:
        return
    path = request.url.path if path is None else path
    if isinstance(known, StoreError | BlobError):
        log.request_unserved(request.method, path, error)
    else:
        log.request_failed(request.method, path, error)


def refusal(error: PackhorseError) -> ASGIResponse:
    """The same, where there is no application yet that could answer."""
    known = _without_internals(error) if isinstance(error, StoreError | BlobError) else error
    return ASGIResponse(
        body=json.encode(error_to_json(known)),
        status_code=known.status,
        media_type=PROBLEM,
        headers=headers(known, error),
    )


def known_error(request: Request[Any, Any, Any], error: Exception) -> PackhorseError:
    if isinstance(error, StoreError | BlobError) and error.status >= 500:
        return _without_internals(error)
    if isinstance(error, PackhorseError):
        return error
    if isinstance(error, ValidationException):
        return invalid("The query is not valid", _mistakes(request, error))
    if isinstance(error, HTTPException) and error.status_code < 500:
        return _http(request, error)
    return PackhorseError()


def _without_internals(error: StoreError | BlobError) -> PackhorseError:
    """What the driver said is for the log."""
    if isinstance(error, LASTING):
        return type(error)(**{**error.facts, "reason": "the server's log says why"})
    return type(error)(reason="it was asked and failed")


def _http(request: Request[Any, Any, Any], error: HTTPException) -> PackhorseError:
    match error.status_code:
        case 404:
            return NotFound(path=request.scope["path"])
        case 405:
            return WrongMethod(method=request.method)
    return Refused(error.detail)


def _mistakes(request: Request[Any, Any, Any], error: ValidationException) -> list[dict[str, str]]:
    extra = error.extra if isinstance(error.extra, list) else []
    found = [(str(each.get("key", "")), str(each.get("message", ""))) for each in extra if isinstance(each, Mapping)]
    return [{"field": field, "message": _choices(request, field) or message} for field, message in found] or [
        {"field": "", "message": error.detail}
    ]


def _choices(request: Request[Any, Any, Any], field: str) -> str | None:
    """What may stand there, if the route takes one of a few words."""
    parameter = request.route_handler.parsed_fn_signature.parameters.get(field)
    kinds = () if parameter is None else (parameter.annotation, *get_args(parameter.annotation))
    words = [each.value for kind in kinds if isinstance(kind, type) and issubclass(kind, Enum) for each in kind]
    return one_of(field, words)["message"] if words else None


def headers(known: PackhorseError, error: Exception) -> dict[str, str]:
    found = {"Cache-Control": "no-store"}
    if _passes(known):
        found["Retry-After"] = RETRY_AFTER
    if isinstance(known, RangeNotSatisfiable):
        found["Content-Range"] = f"bytes */{known.facts['size']}"
    if isinstance(known, TooMany | Forbidden):
        found |= known.facts.get("headers", {})  # Retry-After and the limits, as they stood when it was refused
    if isinstance(known, Unauthorized):
        found["WWW-Authenticate"] = "Bearer"
    if isinstance(error, HTTPException) and error.headers:
        found |= error.headers  # such as Allow
    return found


def _passes(error: PackhorseError) -> bool:
    """Whether the same request may be answered better in a while, though nobody changes it."""
    if isinstance(error, StoreError | BlobError):
        return error.status >= 500 and not isinstance(error, LASTING)
    return isinstance(error, SlotTaken | Conflict)
