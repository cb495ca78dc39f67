"""Refuses query parameters that a route does not know: a filter that is silently ignored shows the wrong jobs."""

from __future__ import annotations

from typing import Annotated, Any

from litestar import Request
from litestar.params import QueryParameter

from packhorse.define.mistakes import NUL, invalid, unknown

Number = Annotated[int, QueryParameter(ge=0)]
"""Of an event or a line."""


def check(request: Request[Any, Any, Any]) -> None:
    """Runs before every route."""
    given = [name for name, _ in request.query_params.multi_items()]
    known = _known(request)
    mistakes = unknown((name for name in given if name not in known), known)
    mistakes += [{"field": name, "message": "This is given twice"} for name in {*given} if given.count(name) > 1]
    mistakes += [{"field": name, "message": NUL} for name, value in request.query_params.multi_items() if "\0" in value]
    if mistakes:
        raise invalid("The query is not valid", mistakes)


def _known(request: Request[Any, Any, Any]) -> list[str]:
    parameters = request.route_handler.parsed_fn_signature.parameters.items()
    return [name for name, each in parameters if isinstance(each.kwarg_definition, QueryParameter)]
