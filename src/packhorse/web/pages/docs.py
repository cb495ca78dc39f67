"""``/docs``: the OpenAPI file as a page to read, written by the server: no script, and nothing from anywhere else."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from jinja2 import Undefined
from litestar import Request, Response, get
from markupsafe import Markup, escape

from packhorse.web.render import HEADERS, environment

Json = Mapping[str, Any]
METHODS = ("get", "head", "post", "put", "patch", "delete")
SOME: Mapping[str, Any] = {"string": "…", "integer": 0, "number": 0, "boolean": False, "object": {}, "array": []}


AT, ROOT = "http://packhorse.invalid", "/packhorse.invalid"
"""In the page that is kept, for the address and the path that only a request knows."""


@get("/docs", scope=None, include_in_schema=False, sync_to_thread=True)
def docs(request: Request[Any, Any, Any]) -> Response[bytes]:
    """In a thread: writing the page takes a while, and anybody may ask for it."""
    kept: str | None = request.app.state.get("docs_page")
    if kept is None:
        kept = request.app.state.docs_page = docs_page(request.app.openapi_schema.to_schema(), AT, ROOT)
    at, root = escape(str(request.base_url).rstrip("/")), escape(quote(request.scope.get("root_path", "")))
    text = kept.replace(AT, at).replace(ROOT, root)
    return Response(text.encode(), media_type="text/html", headers=HEADERS)


def docs_page(api: Json, at: str, root: str = "") -> str:
    """``at`` is where it is served, for the commands to be copied; ``root`` the path before ours."""
    has_keys = bool(api.get("components", {}).get("securitySchemes"))
    operations = [
        {
            "method": method,
            "path": path,
            "anchor": method + path.replace("/", "-").replace("{", "").replace("}", ""),
            "call": item[method],
            "command": curl(at, method, path, item[method], has_keys=has_keys),
        }
        for path, item in sorted(api["paths"].items())
        for method in METHODS
        if method in item
    ]
    page = environment().overlay(undefined=Undefined).get_template("docs.html")  # what a schema leaves out is not said
    return page.render(api=api, root=root, operations=operations, kind=_kind, ticked=_ticked)


def _kind(schema: Json) -> Markup:
    """A schema in a few words."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return Markup('<a href="#shape-{}">{}</a>').format(name, name)
    if choices := schema.get("oneOf") or schema.get("anyOf") or schema.get("allOf"):
        return Markup(" or ").join(dict.fromkeys(_kind(part) for part in choices))
    if "enum" in schema or "const" in schema:
        words = schema.get("enum", (schema.get("const"),))
        return Markup(", ").join(Markup("<code>{}</code>").format(word) for word in words)
    kind = schema.get("type", "anything")
    if kind == "array":
        return Markup("list of {}").format(_kind(schema.get("items", {})))
    if isinstance(kind, list):
        return Markup(" or ").join(kind)
    if kind == "object" and isinstance(schema.get("additionalProperties"), Mapping):
        return Markup("mapping to {}").format(_kind(schema["additionalProperties"]))
    bounds = [f"{word} {schema[key]:g}" for word, key in (("from", "minimum"), ("to", "maximum")) if key in schema]
    return escape(" ".join([schema.get("format", kind), *bounds]))


def _ticked(text: str | Undefined) -> Markup:
    """Escaped, with what stands in backticks as code."""
    parts = escape(" ".join(str(text or "").replace("``", "`").split())).split("`")
    return Markup("").join(Markup("<code>{}</code>").format(part) if i % 2 else part for i, part in enumerate(parts))


def curl(at: str, method: str, path: str, operation: Json, *, has_keys: bool = False) -> str:
    """A call by its description in OpenAPI; what a person has to fill in is a variable of the shell."""
    words = ["curl", *_flags(operation)]
    if method != "get":
        words += ["-X", method.upper()]
    if has_keys:
        words += ["-H", '"Authorization: Bearer $PACKHORSE_KEY"']
    words += _body(operation.get("requestBody", {}))
    filled = re.sub(r"\{(\w+)\}", lambda found: f"${found[1].upper()}", path)
    return " ".join([*words, f'"{at}{filled}"'])


def _flags(operation: Json) -> list[str]:
    kinds = operation["responses"].get("200", {}).get("content", {})
    if "text/event-stream" in kinds:
        return ["-N"]
    return ["-OJ"] if "application/octet-stream" in kinds else []


def _body(body: Json) -> list[str]:
    """As JSON, with what can be said in it; nothing where the body may be left out."""
    content = body.get("content", {})
    if not body.get("required") or "application/json" not in content:
        return []
    members = content["application/json"]["schema"].get("properties", {})
    some = {name: _some(part) for name, part in members.items() if not part.get("default")}
    given = json.dumps({name: value for name, value in some.items() if value not in (None, 0)}, ensure_ascii=False)
    return ["-H", "'Content-Type: application/json'", "-d", shlex.quote(given)]


def _some(part: Json) -> Any:
    kinds = [each.get("type") for each in part.get("anyOf", [part])]
    return next((SOME[kind] for kind in kinds if kind in SOME), None)
