"""Errors as RFC 9457 problems: the one place that turns them into HTTP responses.

No `from __future__ import annotations` here: it would lose `NotRequired` in a TypedDict.
"""

from collections.abc import Mapping
from enum import Enum
from typing import Any, NotRequired, TypedDict, get_args

from litestar import Request, Response
from litestar.exceptions import HTTPException, ValidationException
from litestar.response.base import ASGIResponse

from packhorse import errors
from packhorse.core import json
from packhorse.define.validation import invalid, one_of
from packhorse.log import log, trace_id

PROBLEM = "application/problem+json"
PROBLEM_TYPE = "packhorse_problem"
"""In the scope of a request: the type of the problem that was answered."""

RETRY_AFTER = "2"
"""Seconds. About what a store or an object store needs to be restarted."""

LASTING = (errors.CorruptRecord, errors.SchemaTooNew)
"""Errors that a retry does not change."""
RENAMED = {
    "status": "job_status",
    "type": "error_type",
    "title": "error_title",
    "detail": "error_detail",
    "hint": "error_hint",
}
"""Details whose names have another meaning in a problem."""
OF_ITEMS = {"Idempotency-Key": "idempotency_key"}
"""What a request has as a header, and an item of many as a field."""


class MistakeDocument(TypedDict):
    """What is wrong with one field; ``field`` is empty if it concerns the whole body."""

    field: str
    message: str


class ProblemDocument(TypedDict):
    """A problem of RFC 9457. Details of the error, such as ``active_job_id``, are additional members."""

    type: str
    title: str
    status: int
    detail: str
    hint: NotRequired[str]
    trace_id: NotRequired[str]
    errors: NotRequired[list[MistakeDocument]]


def error_to_json(error: errors.PackhorseError) -> ProblemDocument:
    facts: dict[str, Any] = {RENAMED.get(name, name): value for name, value in error.facts.items() if _is_plain(value)}
    document: ProblemDocument = {
        "type": f"urn:packhorse:{error.type()}",
        "title": error.title(),
        "status": error.status,
        "detail": error.message,
    }
    if error.hint:
        document["hint"] = error.hint
    if isinstance(error, errors.InvalidInput):
        document["errors"] = [{"field": each["field"], "message": each["message"]} for each in error.errors]
    document.update(facts)  # type: ignore[typeddict-item]  # members beside those that every problem has
    return document


def _is_plain(value: Any) -> bool:
    return value is None or isinstance(value, str | int | float | bool)


def problem(request: Request[Any, Any, Any], error: Exception) -> Response[bytes]:
    known = known_error(request, error)
    request.scope[PROBLEM_TYPE] = known.type()  # type: ignore[literal-required]
    log_failure(known, request, error)
    document = error_to_json(known)
    document["trace_id"] = trace_id()
    return Response(json.encode(document), status_code=known.status, media_type=PROBLEM, headers=headers(known, error))


def item_problem(
    request: Request[Any, Any, Any], error: Exception, place: str, *, is_logged: bool = True
) -> ProblemDocument:
    """The problem of one item of a request; its fields are named with the item's place in front."""
    known = known_error(request, error)
    if is_logged:
        log_failure(known, request, error)
    document = error_to_json(known)
    document["trace_id"] = trace_id()
    if "errors" in document:
        document["errors"] = [{**each, "field": _place_in(place, each["field"])} for each in document["errors"]]
    more: dict[str, Any] = {}
    if isinstance(field := known.facts.get("field"), str):
        more["field"] = _place_in(place, field)
    if _passes(known):
        more["retry_after"] = int(RETRY_AFTER)
    document.update(more)  # type: ignore[typeddict-item]  # members beside those that every problem has
    return document


def _place_in(place: str, field: str) -> str:
    field = OF_ITEMS.get(field, field)
    return f"{place}.{field}" if field else place


def log_failure(
    known: errors.PackhorseError, request: Request[Any, Any, Any], error: Exception, path: str | None = None
) -> None:
    """Log what is our fault, with what the answer leaves out; under this path if the real one is a secret.

    The address is read only here: a request that was refused for its Host header may have none that can be read.
    """
    if known.status < 500:
        return
    path = request.url.path if path is None else path
    if isinstance(known, errors.StoreError | errors.BlobError):
        log.request_unserved(request.method, path, error)
    else:
        log.request_failed(request.method, path, error)


def refusal(error: errors.PackhorseError) -> ASGIResponse:
    """The same, where no application is open yet that could answer."""
    known = _without_internals(error) if isinstance(error, errors.StoreError | errors.BlobError) else error
    return ASGIResponse(
        body=json.encode(error_to_json(known)),
        status_code=known.status,
        media_type=PROBLEM,
        headers=headers(known, error),
    )


def known_error(request: Request[Any, Any, Any], error: Exception) -> errors.PackhorseError:
    if isinstance(error, errors.StoreError | errors.BlobError) and error.status >= 500:
        return _without_internals(error)
    if isinstance(error, errors.PackhorseError):
        return error
    if isinstance(error, ValidationException):
        return invalid("The query is not valid", _mistakes(request, error))
    if isinstance(error, HTTPException) and error.status_code < 500:
        return _http(request, error)
    return errors.PackhorseError()


def _without_internals(error: errors.StoreError | errors.BlobError) -> errors.PackhorseError:
    """The driver's message is only for the log."""
    if isinstance(error, LASTING):
        return type(error)(**{**error.facts, "reason": "the server's log says why"})
    return type(error)(reason="it was asked and failed")


def _http(request: Request[Any, Any, Any], error: HTTPException) -> errors.PackhorseError:
    match error.status_code:
        case 404:
            return errors.NotFound(path=request.scope["path"])
        case 405:
            return errors.WrongMethod(method=request.method)
    return errors.Refused(error.detail)


def _mistakes(request: Request[Any, Any, Any], error: ValidationException) -> list[dict[str, str]]:
    extra = error.extra if isinstance(error.extra, list) else []
    found = [(str(each.get("key", "")), str(each.get("message", ""))) for each in extra if isinstance(each, Mapping)]
    return [{"field": field, "message": _choices(request, field) or message} for field, message in found] or [
        {"field": "", "message": error.detail}
    ]


def _choices(request: Request[Any, Any, Any], field: str) -> str | None:
    """The allowed values, if the parameter is an enum."""
    parameter = request.route_handler.parsed_fn_signature.parameters.get(field)
    kinds = () if parameter is None else (parameter.annotation, *get_args(parameter.annotation))
    words = [each.value for kind in kinds if isinstance(kind, type) and issubclass(kind, Enum) for each in kind]
    return one_of(field, words)["message"] if words else None


def headers(known: errors.PackhorseError, error: Exception) -> dict[str, str]:
    found = {"Cache-Control": "no-store"}
    if _passes(known):
        found["Retry-After"] = RETRY_AFTER
    if isinstance(known, errors.RangeNotSatisfiable):
        found["Content-Range"] = f"bytes */{known.facts['size']}"
    if isinstance(known, errors.TooMany | errors.Forbidden):
        found |= known.facts.get("headers", {})  # Retry-After and the limits, as they stood when it was refused
    if isinstance(known, errors.Unauthorized):
        found["WWW-Authenticate"] = "Bearer"
    if isinstance(error, HTTPException) and error.headers:
        found |= error.headers  # such as Allow
    return found


def _passes(error: errors.PackhorseError) -> bool:
    """Whether the same request may succeed in a while."""
    if isinstance(error, errors.StoreError | errors.BlobError):
        return error.status >= 500 and not isinstance(error, LASTING)
    return isinstance(error, errors.SlotTaken | errors.Conflict)
