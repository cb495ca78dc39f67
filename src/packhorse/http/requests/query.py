"""Refuses unknown query parameters: a filter that is silently ignored would show the wrong jobs."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import datetime
from functools import cache
from typing import Annotated, Any, get_args

from litestar import Request
from litestar.handlers.base import BaseRouteHandler
from litestar.params import QueryParameter

from packhorse.define.validation import NUL, FieldError, invalid, unknown_fields

LARGEST = 2**53 - 1
"""The largest integer that JSON readers and all stores represent exactly."""

Number = Annotated[int, QueryParameter(ge=0, le=LARGEST)]
"""Of an event or a line."""

QUERY = "query"
"""Route option with the parameter names, for a route that reads its query itself."""

NO_NULL = "Leave it out instead of saying null"
NO_TIME = "It must be a time such as 2026-01-31T12:00:00Z"
NUMBER = re.compile(r"[-+]?[0-9.]+(e[-+]?[0-9]+)?", re.IGNORECASE)


async def check(request: Request[Any, Any, Any]) -> None:
    """Runs before every route, in the loop: what is not a coroutine goes through a thread."""
    if not request.scope["query_string"]:
        return
    given = [name for name, _ in request.query_params.multi_items()]
    known = _known_names(request.route_handler)
    mistakes = unknown_fields((name for name in given if name not in known), known)
    mistakes += [{"field": name, "message": "This is given twice"} for name in {*given} if given.count(name) > 1]
    mistakes += [{"field": name, "message": NUL} for name, value in request.query_params.multi_items() if "\0" in value]
    mistakes += _misread_errors(request)
    if mistakes:
        raise invalid("The query is not valid", mistakes)


def _misread_errors(request: Request[Any, Any, Any]) -> list[FieldError]:
    """Values that would be misread: null as a missing value, 20260101 as seconds since 1970."""
    parameters = request.route_handler.parsed_fn_signature.parameters
    found = []
    for name, value in request.query_params.multi_items():
        kinds = _kinds(parameters[name].annotation) if name in parameters else (str,)
        if value.lower() == "null" and str not in kinds:
            found.append({"field": name, "message": NO_NULL})
        elif datetime in kinds and NUMBER.fullmatch(value):
            found.append({"field": name, "message": NO_TIME})
    return found


def _kinds(hint: Any) -> tuple[Any, ...]:
    return get_args(hint) or (hint,)


@cache
def _known_names(handler: BaseRouteHandler) -> Sequence[str]:
    if QUERY in handler.opt:
        return tuple(handler.opt[QUERY])
    parameters = handler.parsed_fn_signature.parameters.items()
    return [name for name, each in parameters if isinstance(each.kwarg_definition, QueryParameter)]
