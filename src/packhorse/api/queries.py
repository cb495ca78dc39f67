"""Refuses query parameters that a route does not know: a filter that is silently ignored shows the wrong jobs."""

from __future__ import annotations

from typing import Any

from litestar import Request

from packhorse.define.mistakes import invalid


def check(request: Request[Any, Any, Any]) -> None:
    """Runs before every route."""
    given = [name for name, _ in request.query_params.multi_items()]
    known = request.route_handler.parsed_fn_signature.parameters.keys() - INJECTED - request.path_params.keys()
    mistakes = [{"field": name, "message": "There is no parameter of this name"} for name in given if name not in known]
    mistakes += [{"field": name, "message": "This is given twice"} for name in {*given} if given.count(name) > 1]
    if mistakes:
        raise invalid("The query is not valid", mistakes)


INJECTED = frozenset({"request", "tools"})
