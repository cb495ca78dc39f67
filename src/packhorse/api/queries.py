"""Refuses query parameters that a route does not know: a filter that is silently ignored shows the wrong jobs."""

from __future__ import annotations

from typing import Annotated, Any, get_args

from litestar import Request
from litestar.params import QueryParameter

from packhorse.define.mistakes import NUL, invalid, unknown

Number = Annotated[int, QueryParameter(ge=0)]
"""Of an event or a line."""

NO_NULL = "Leave it out instead of saying null"


def check(request: Request[Any, Any, Any]) -> None:
    """Runs before every route."""
    given = [name for name, _ in request.query_params.multi_items()]
    known = _known(request)
    mistakes = unknown((name for name in given if name not in known), known)
    mistakes += [{"field": name, "message": "This is given twice"} for name in {*given} if given.count(name) > 1]
    mistakes += [{"field": name, "message": NUL} for name, value in request.query_params.multi_items() if "\0" in value]
    mistakes += [{"field": name, "message": NO_NULL} for name in _nulls(request)]
    if mistakes:
        raise invalid("The query is not valid", mistakes)


def _nulls(request: Request[Any, Any, Any]) -> list[str]:
    """What is not a text and is given as ``null`` would be read as if it had not been given at all."""
    parameters = request.route_handler.parsed_fn_signature.parameters
    return [
        name
        for name, value in request.query_params.multi_items()
        if value.lower() == "null" and name in parameters and str not in _kinds(parameters[name].annotation)
    ]


def _kinds(hint: Any) -> tuple[Any, ...]:
    return get_args(hint) or (hint,)


def _known(request: Request[Any, Any, Any]) -> list[str]:
    parameters = request.route_handler.parsed_fn_signature.parameters.items()
    return [name for name, each in parameters if isinstance(each.kwarg_definition, QueryParameter)]
