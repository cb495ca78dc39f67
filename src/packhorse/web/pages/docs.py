"""``/docs``: the OpenAPI file as a page to read, written by the server: no script, and nothing from anywhere else."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from html import escape
from typing import Any
from urllib.parse import quote

from litestar import Request, Response, get

from packhorse.web.render import HEADERS
from packhorse.web.widgets.curl import curl

Json = Mapping[str, Any]
METHODS = ("get", "head", "post", "put", "patch", "delete")


@get("/docs", scope=None, include_in_schema=False, sync_to_thread=False)
def docs(request: Request[Any, Any, Any]) -> Response[bytes]:
    here = request.scope.get("root_path", "")
    told = request.app.openapi_schema.to_schema()
    page = Page(told, str(request.base_url).rstrip("/"), quote(here))
    return Response("".join(page.written()).encode(), media_type="text/html", headers=HEADERS)


class Page:
    """``at`` is where it is served, for the commands to be copied; ``root`` the path before ours."""

    def __init__(self, told: Json, at: str, root: str = "") -> None:
        self._told = told
        self._at = at
        self._root = root
        self._has_keys = bool(told.get("components", {}).get("securitySchemes"))

    def written(self) -> Iterator[str]:
        yield from self._head(escape(self._told["info"]["title"]), escape(self._told["info"]["version"]))
        yield "<main>\n"
        yield f'<p>The file behind this page is <a href="{self._root}/openapi.json">openapi.json</a>.</p>\n'
        yield '<nav aria-label="Calls"><ul>\n'
        for method, path, each in self._operations():
            yield f'<li><a href="#{_anchor(method, path)}"><code>{method.upper()} {escape(path)}</code></a> '
            yield f"{escape(each.get('summary', ''))}</li>\n"
        yield "</ul></nav>\n"
        for method, path, each in self._operations():
            yield from self._operation(method, path, each)
        yield '<h2 id="shapes">Shapes</h2>\n'
        for name, schema in sorted(self._told.get("components", {}).get("schemas", {}).items()):
            yield f'<section id="shape-{escape(name)}"><h3>{escape(name)}</h3>\n{_said(schema)}'
            yield from _members(schema)
            yield "</section>\n"
        yield "</main>\n</body>\n</html>\n"

    def _head(self, title: str, version: str) -> Iterator[str]:
        yield '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        yield '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        yield f"<title>{title} HTTP interface</title>\n"
        for name in ("page.css", "docs.css"):
            yield f'<link rel="stylesheet" href="{self._root}/static/{name}">\n'
        yield "</head>\n<body>\n"
        yield f'<header><h1><a href="{self._root}/">{title}</a></h1><p>{version}</p></header>\n'

    def _operations(self) -> Iterator[tuple[str, str, Json]]:
        for path, item in sorted(self._told["paths"].items()):
            for method in METHODS:
                if method in item:
                    yield method, path, item[method]

    def _operation(self, method: str, path: str, each: Json) -> Iterator[str]:
        anchor = _anchor(method, path)
        yield f'<section id="{anchor}"><h3><span class="method">{method.upper()}</span> {escape(path)}</h3>\n'
        yield _said(each)
        if parameters := each.get("parameters"):
            yield "<h4>Parameters</h4>\n"
            yield _table("Parameters", ("name", "in", "type", "default", "what"), map(_parameter, parameters))
        for kind, content in each.get("requestBody", {}).get("content", {}).items():
            required = "" if each["requestBody"].get("required") else ", may be left out"
            yield f"<h4>Body <code>{escape(kind)}</code>{required}</h4>\n{_said(content['schema'])}"
            yield from _members(content["schema"])
        answers = {status: one for status, one in each["responses"].items() if int(status) < 400}
        problems = {status: one for status, one in each["responses"].items() if int(status) >= 400}
        yield "<h4>Answers</h4>\n"
        rows = (row for one in answers.items() for row in _answers(*one))
        yield _table("Answers", ("status", "type", "shape", "what"), rows)
        yield "<h4>Problems</h4>\n"
        yield _table(
            "Problems", ("status", "which"), ((escape(status), _text(one)) for status, one in problems.items())
        )
        yield f"<h4>With curl</h4>\n<pre>{escape(curl(self._at, method, path, each, has_keys=self._has_keys))}</pre>\n"
        yield "</section>\n"


def _parameter(each: Json) -> tuple[str, ...]:
    schema = each.get("schema", {})
    default = f"<code>{escape(str(schema['default']))}</code>" if schema.get("default") is not None else ""
    name = f"<code>{escape(each['name'])}</code>{' (required)' if each.get('required') else ''}"
    return name, escape(each["in"]), _kind(schema), default, _text(each)


def _answers(status: str, answer: Json) -> Iterator[tuple[str, ...]]:
    contents: Json = answer.get("content") or {"": {}}
    for kind, content in contents.items():
        yield escape(status), f"<code>{escape(kind)}</code>", _kind(content.get("schema", {})), _text(answer)


def _members(schema: Json) -> Iterator[str]:
    needed = schema.get("required", ())
    rows = [
        (f"<code>{escape(name)}</code>", _kind(part), "yes" if name in needed else "", _text(part))
        for name, part in schema.get("properties", {}).items()
    ]
    if rows:
        yield _table("Members", ("member", "type", "always", "what"), rows)
    elif "enum" in schema:
        yield f"<p>{_kind(schema)}</p>\n"


def _kind(schema: Json) -> str:
    """A schema in a few words."""
    if "$ref" in schema:
        name = escape(schema["$ref"].rpartition("/")[2])
        return f'<a href="#shape-{name}">{name}</a>'
    if choices := schema.get("oneOf") or schema.get("anyOf") or schema.get("allOf"):
        return " or ".join(dict.fromkeys(_kind(part) for part in choices))
    if "enum" in schema:
        return ", ".join(f"<code>{escape(str(word))}</code>" for word in schema["enum"])
    if "const" in schema:
        return f"<code>{escape(str(schema['const']))}</code>"
    kind = schema.get("type", "anything")
    if kind == "array":
        return f"list of {_kind(schema.get('items', {}))}"
    if isinstance(kind, list):
        return " or ".join(map(escape, kind))
    if kind == "object" and isinstance(schema.get("additionalProperties"), Mapping):
        return f"mapping to {_kind(schema['additionalProperties'])}"
    bounds = [f"{word} {schema[key]:g}" for word, key in (("from", "minimum"), ("to", "maximum")) if key in schema]
    return escape(" ".join([schema.get("format", kind), *bounds]))


def _said(thing: Json) -> str:
    text = thing.get("description") or thing.get("summary") or ""
    return "".join(f"<p>{_ticked(part)}</p>\n" for part in text.split("\n\n") if part.strip())


def _text(thing: Json) -> str:
    return _ticked(thing.get("description") or "")


def _ticked(text: str) -> str:
    """Escaped, with what stands in backticks as code."""
    parts = escape(" ".join(text.replace("``", "`").split())).split("`")
    return "".join(f"<code>{part}</code>" if i % 2 else part for i, part in enumerate(parts))


def _table(name: str, head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    heads = "".join(f'<th scope="col">{each}</th>' for each in head)
    lines = "".join("<tr>" + "".join(f"<td>{cell}</td>" for cell in row) + "</tr>\n" for row in rows)
    table = f"<table><thead><tr>{heads}</tr></thead>\n<tbody>\n{lines}</tbody></table>"
    return f'<div class="scroll" tabindex="0" role="region" aria-label="{name}">{table}</div>\n'


def _anchor(method: str, path: str) -> str:
    return escape(method + path.replace("/", "-").replace("{", "").replace("}", ""))
