"""The OpenAPI file: request bodies that routes read themselves, the problems a route may answer with, the server."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import msgspec
from litestar import Request
from litestar.openapi.datastructures import ResponseSpec
from litestar.openapi.plugins import JsonRenderPlugin
from litestar.openapi.spec import OpenAPIMediaType, OpenAPIType, Operation, Parameter, RequestBody, Schema

from packhorse.core import json
from packhorse.errors import Foreign, InvalidInput, Malformed, PackhorseError, StoreUnavailable
from packhorse.http.requests.json_body import JSON
from packhorse.schemas.problems import ProblemDocument

PROBLEM = "application/problem+json"

EVERYWHERE = (Malformed, Foreign, InvalidInput, PackhorseError, StoreUnavailable)
"""Errors that any route may answer with."""


def refusing(*errors: type[PackhorseError]) -> dict[int, ResponseSpec]:
    """The problems a route may answer with, by status."""
    by_status: dict[int, list[type[PackhorseError]]] = {}
    every: tuple[type[PackhorseError], ...] = (*EVERYWHERE, *errors)
    for each in every:
        by_status.setdefault(each.status, []).append(each)
    return {
        status: answering(ProblemDocument, PROBLEM, ", ".join(f"`{each.type()}`" for each in found))
        for status, found in sorted(by_status.items())
    }


def answering(document: Any, media_type: str, description: str) -> ResponseSpec:
    """For what a route makes itself, and its return type therefore does not tell."""
    return ResponseSpec(document, generate_examples=False, media_type=media_type, description=description)


def beside(name: str, where: Literal["query", "header"], description: str | None = None) -> Parameter:
    """A text that a route reads itself."""
    return Parameter(name, where, Schema(type=OpenAPIType.STRING), description)


def taking(
    shape: type[msgspec.Struct], *besides: Parameter, required: bool = False, form: str | None = None
) -> type[Operation]:
    """The operation of a route that takes such a body, as JSON and, if ``form`` says how, as a form with more parts."""
    found = msgspec.json.schema(shape)
    known = found["$defs"][shape.__name__]
    content = {JSON: OpenAPIMediaType(schema=_schema({**known, "additionalProperties": False}))}
    if form is not None:
        parts = {**known, "additionalProperties": True, "description": form}
        content["multipart/form-data"] = OpenAPIMediaType(schema=_schema(parts))

    @dataclass
    class Taking(Operation):
        def __post_init__(self) -> None:
            self.request_body = RequestBody(required=required, content=content)
            self.parameters = [*(self.parameters or ()), *besides] or None

    return Taking


def _schema(found: Mapping[str, Any]) -> Schema:
    """JSON Schema as Litestar writes it down."""
    more = found.get("additionalProperties")
    return Schema(
        type=OpenAPIType(found["type"]) if "type" in found else None,
        description=found.get("description"),
        properties={name: _schema(part) for name, part in found.get("properties", {}).items()} or None,
        additional_properties=_schema(more) if isinstance(more, Mapping) else more,
        any_of=[_schema(part) for part in found["anyOf"]] if "anyOf" in found else None,
        minimum=found.get("minimum"),
        maximum=found.get("maximum"),
        default=found.get("default"),
    )


class OpenApiFile(JsonRenderPlugin):
    """Renders ``/openapi.json`` with the path the app is mounted at as its server: only a request knows that path."""

    def render(self, request: Request[Any, Any, Any], openapi_schema: dict[str, Any]) -> bytes:
        return json.encode({**openapi_schema, "servers": [{"url": request.scope.get("root_path") or "/"}]})
