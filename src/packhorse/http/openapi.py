"""The OpenAPI file: request bodies that routes read themselves, the problems a route may answer with, the server."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import msgspec
from litestar import Request
from litestar.openapi.datastructures import ResponseSpec
from litestar.openapi.plugins import JsonRenderPlugin
from litestar.openapi.spec import OpenAPIMediaType, OpenAPIType, Operation, Parameter, RequestBody, Schema

from packhorse.core import json
from packhorse.errors import (
    Foreign,
    InvalidInput,
    Malformed,
    PackhorseError,
    StoreUnavailable,
    TooLarge,
    TooSlow,
    UnsupportedMedia,
)
from packhorse.http.problems import PROBLEM, ProblemDocument
from packhorse.http.requests import JSON

EVERYWHERE: tuple[type[PackhorseError], ...] = (Malformed, Foreign, InvalidInput, PackhorseError, StoreUnavailable)
"""Errors that any route may answer with."""
WITH_BODY = (TooLarge, UnsupportedMedia, TooSlow)
"""Errors of any route that reads a body."""
WITHOUT_NUL = r"^[^\u0000]*$"
"""What `check_query` takes for a text."""


def error_responses(*errors: type[PackhorseError]) -> dict[int, ResponseSpec]:
    """The problems a route may answer with, by status."""
    by_status: dict[int, list[type[PackhorseError]]] = {}
    for each in (*EVERYWHERE, *errors):
        by_status.setdefault(each.status, []).append(each)
    return {
        status: response_spec(ProblemDocument, PROBLEM, ", ".join(f"`{each.type()}`" for each in found))
        for status, found in sorted(by_status.items())
    }


def response_spec(document: Any, media_type: str, description: str) -> ResponseSpec:
    """For a response that a route builds itself, so that its return type does not describe it."""
    return ResponseSpec(document, generate_examples=False, media_type=media_type, description=description)


def text_parameter(name: str, where: Literal["query", "header"], description: str | None = None) -> Parameter:
    """A parameter that a route reads itself."""
    pattern = WITHOUT_NUL if where == "query" else None  # no header can have one
    return Parameter(name, where, Schema(type=OpenAPIType.STRING, pattern=pattern), description)


def json_body(
    shape: type[msgspec.Struct],
    *errors: type[PackhorseError],
    required: bool = False,
    form: str | None = None,
    parameters: Sequence[Parameter] = (),
    responses: Mapping[int, ResponseSpec] | None = None,
) -> dict[str, Any]:
    """Options of a route that reads such a body with `read_json`; ``form`` describes the same as multipart/form-data.

    The errors are those besides the ones that any body may lead to.
    """
    defs = msgspec.json.schema(shape)["$defs"]
    known = defs[shape.__name__]
    content = {JSON: OpenAPIMediaType(schema=_schema({**known, "additionalProperties": False}, defs))}
    if form is not None:
        parts = {**known, "additionalProperties": True, "description": form}
        content["multipart/form-data"] = OpenAPIMediaType(schema=_schema(parts, defs))

    @dataclass
    class WithBody(Operation):
        def __post_init__(self) -> None:
            self.request_body = RequestBody(required=required, content=content)
            self.parameters = [*(self.parameters or ()), *parameters] or None

    return {"operation_class": WithBody, "responses": {**error_responses(*WITH_BODY, *errors), **(responses or {})}}


def closed_schema(shape: type[msgspec.Struct]) -> dict[str, Any]:
    """JSON Schema of a struct without references, for a body that takes it among other things."""
    return {**msgspec.json.schema(shape)["$defs"][shape.__name__], "additionalProperties": False}


def _schema(found: Mapping[str, Any], defs: Mapping[str, Any]) -> Schema:
    """JSON Schema as Litestar writes it down. Structs within are closed, as `convert` reads them."""
    if "$ref" in found:
        found = {**defs[found["$ref"].rpartition("/")[2]], "additionalProperties": False}
    more = found.get("additionalProperties")
    return Schema(
        type=OpenAPIType(found["type"]) if "type" in found else None,
        description=found.get("description"),
        required=found.get("required") or None,
        properties={name: _schema(part, defs) for name, part in found.get("properties", {}).items()} or None,
        additional_properties=_schema(more, defs) if isinstance(more, Mapping) else more,
        any_of=[_schema(part, defs) for part in found["anyOf"]] if "anyOf" in found else None,
        items=_schema(found["items"], defs) if found.get("items") else None,
        max_items=found.get("maxItems"),
        minimum=found.get("minimum"),
        maximum=found.get("maximum"),
        default=found.get("default"),
    )


class OpenApiFile(JsonRenderPlugin):
    """Renders ``/openapi.json`` with the path the app is mounted at as its server: only a request knows that path."""

    def render(self, request: Request[Any, Any, Any], openapi_schema: dict[str, Any]) -> bytes:
        return json.encode({**openapi_schema, "servers": [{"url": request.scope.get("root_path") or "/"}]})
