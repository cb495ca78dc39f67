"""The fields of a form, made from a pipeline's JSON Schema, and their values as the API expects them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from msgspec import Struct

from packhorse.define.files import ACCEPT, MAX_BYTES
from packhorse.define.files import SCHEMA as FILE
from packhorse.define.secrets import SCHEMA as SECRET
from packhorse.web.widgets.formatting import pretty

Json = Mapping[str, Any]
Kind = Literal["text", "lines", "number", "check", "choice", "list", "json", "secret", "file", "files"]

SCALARS = frozenset({"string", "integer", "number", "boolean"})
LONG = 200  # characters from which on a text gets more than one line


class Field(Struct, frozen=True):
    name: str
    kind: Kind
    description: str = ""
    is_required: bool = False
    value: str = ""  # the initial text: the default
    choices: tuple[str, ...] = ()
    accept: str = ""
    most: int | None = None  # bytes of a file
    least: float | None = None
    largest: float | None = None
    step: str = "any"
    hint: str = ""

    def told(self, typed: Sequence[str]) -> list[str]:
        """The values for the API: nothing for an empty field, so that the default applies."""
        if self.kind == "check":
            return ["true" if typed else "false"]
        texts = [text.replace("\r\n", "\n") for text in typed]
        if self.kind == "list":
            return [line.strip() for text in texts for line in text.splitlines() if line.strip()]
        is_meant = self.kind in ("text", "lines") and (self.is_required or bool(self.value))
        return [text for text in texts if text or is_meant]


def fields_of(schema: Json) -> list[Field]:
    """In the order in which the pipeline names them."""
    required = schema.get("required", ())
    defs = schema.get("$defs", {})
    return [_field(name, part, defs, name in required) for name, part in schema.get("properties", {}).items()]


def _field(name: str, schema: Json, defs: Json, is_required: bool) -> Field:
    part, may_be_null = _only(schema, defs)
    kind = _kind(part, defs, may_be_null)
    default = part.get("default")
    return Field(
        name,
        kind,
        str(part.get("description", "")),
        is_required,
        "" if kind in ("secret", "file", "files") else _shown(default, kind),
        _choices(part, kind),
        ",".join(_file(part, defs).get(ACCEPT, ())),
        _file(part, defs).get(MAX_BYTES),
        part.get("minimum", part.get("exclusiveMinimum")),
        part.get("maximum", part.get("exclusiveMaximum")),
        "1" if part.get("type") == "integer" else "any",
        _hint(part, kind),
    )


def _only(schema: Json, defs: Json) -> tuple[Json, bool]:
    """The one sort of value it may have besides none, with what is said of it outside; and whether it may be none."""
    part = _resolved(schema, defs)
    branches = part.get("anyOf") or part.get("oneOf") or ()
    others = [each for each in branches if each.get("type") != "null"]
    if len(others) == 1:
        outside = {name: value for name, value in part.items() if name not in ("anyOf", "oneOf")}
        return {**_resolved(others[0], defs), **outside}, True
    return part, len(others) < len(branches)


def _resolved(schema: Json, defs: Json) -> Json:
    outside = {name: value for name, value in schema.items() if name != "$ref"}
    while "$ref" in schema:
        schema = defs[schema["$ref"].rpartition("/")[2]]
    return {**schema, **outside}


def _kind(part: Json, defs: Json, may_be_null: bool) -> Kind:
    sort = part.get("type")
    if "enum" in part or "const" in part or (sort == "boolean" and may_be_null):
        return "choice"
    if _is(part, FILE):
        return "file"
    if _is(part, SECRET):
        return "secret"
    if sort == "boolean":
        return "check"
    if sort in ("integer", "number"):
        return "number"
    if sort == "string":
        is_long = "\n" in str(part.get("default", "")) or part.get("maxLength", 0) >= LONG
        return "lines" if is_long else "text"
    if sort == "array" and isinstance(part.get("items"), Mapping):
        items = _resolved(part["items"], defs)
        return "files" if _is(items, FILE) else "list" if items.get("type") in SCALARS or "enum" in items else "json"
    return "json"


def _is(part: Json, schema: Json) -> bool:
    return all(part.get(name) == value for name, value in schema.items())


def _file(part: Json, defs: Json) -> Json:
    """The schema of the file, or of each of the files."""
    items = part.get("items")
    return _resolved(items, defs) if isinstance(items, Mapping) else part


def _choices(part: Json, kind: Kind) -> tuple[str, ...]:
    if kind != "choice":
        return ()
    found = part.get("enum") or ([part["const"]] if "const" in part else [True, False])
    return tuple(_shown(value, kind) for value in found if value is not None)


def _hint(part: Json, kind: Kind) -> str:
    if kind == "list":
        return "One per line"
    if kind == "json":
        return "JSON"
    return {"date-time": "As 2026-01-31T12:00:00Z", "date": "As 2026-01-31"}.get(part.get("format", ""), "")


def _shown(value: Any, kind: Kind) -> str:
    if value is None:
        return ""
    if isinstance(value, str):
        return value if kind != "json" else pretty(value)
    if kind == "list":
        return "\n".join(_shown(each, "text") for each in value)
    return pretty(value)
