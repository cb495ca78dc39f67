"""JSON Schema of user types, and unknown names in values."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from packhorse.define import pydantic
from packhorse.define.files import SCHEMA, File
from packhorse.define.secrets import SCHEMA as SECRET
from packhorse.define.secrets import Secret

Json = Mapping[str, Any]


def schema_of(hint: Any) -> dict[str, Any]:
    """Of any type packhorse can carry, TypeError for others. Objects admit no names but their own."""
    defs: dict[str, Any] = {}
    if pydantic.is_model(hint):
        root = pydantic.schema_of(hint, defs)
    else:
        root = msgspec.json.schema(hint, schema_hook=lambda custom: _custom(custom, defs))
        for name, found in root.pop("$defs", {}).items():
            if defs.setdefault(name, found) != found:
                raise TypeError(f"Two types named {name} are used together")
    if "$ref" in root:  # the type's own fields are easier to find at the top
        root = dict(defs[_target(root)])
    for part in (root, *defs.values()):
        _close(part)
    used = _reachable(root, defs)
    return {**root, "$defs": {name: defs[name] for name in defs if name in used}} if used else root


def unknown_names(value: Any, schema: Json) -> dict[str, Sequence[str]]:
    """Where ``value`` has names that the schema's objects do not, such as ``turns[0].speeker``, and those they have."""
    return dict(_unknown(value, schema, schema.get("$defs", {}), ""))


def _custom(hint: Any, defs: dict[str, Any]) -> dict[str, Any]:
    if hint is File:
        return dict(SCHEMA)
    if hint is Secret:
        return dict(SECRET)
    if hint is object:
        return {"description": "Any value"}  # an empty one would be taken for none
    if pydantic.is_model(hint):
        return pydantic.schema_of(hint, defs)
    advice = "; use File" if isinstance(hint, type) and issubclass(hint, os.PathLike) else ""
    raise TypeError(f"{getattr(hint, '__qualname__', hint)} is not a type that JSON can carry{advice}")


def _close(schema: dict[str, Any]) -> None:
    if "properties" in schema and "patternProperties" not in schema:
        schema.setdefault("additionalProperties", False)
    for part in _parts(schema):
        _close(part)


def _parts(schema: Json) -> Iterator[dict[str, Any]]:
    """The schemas inside a schema; not its defaults and examples, which are values and may look like one."""
    named = (*schema.get("properties", {}).values(), *schema.get("patternProperties", {}).values())
    listed = (part for key in ("anyOf", "oneOf", "allOf", "prefixItems") for part in schema.get(key, ()))
    for part in (*named, *listed, schema.get("items"), schema.get("additionalProperties")):
        if isinstance(part, dict):
            yield part


def _reachable(schema: Json, defs: Json) -> set[str]:
    seen: set[str] = set()
    waiting = [schema]
    while waiting:
        part = waiting.pop()
        waiting += _parts(part)
        if "$ref" in part and _target(part) not in seen:
            seen.add(_target(part))
            waiting.append(defs[_target(part)])
    return seen


def _target(schema: Json) -> str:
    return str(schema["$ref"]).rpartition("/")[2]


def _unknown(value: Any, schema: Json, defs: Json, path: str) -> Iterator[tuple[str, Sequence[str]]]:
    while "$ref" in schema:
        schema = defs[_target(schema)]
    branches = [part for part in schema.get("anyOf") or schema.get("oneOf") or () if _fits(value, part, defs)]
    if branches:
        yield from min((list(_unknown(value, part, defs, path)) for part in branches), key=len)
    elif isinstance(value, dict):
        known, rest = schema.get("properties", {}), schema.get("additionalProperties")
        for name, inner in value.items():
            at = f"{path}.{name}" if path else name
            if name in known or isinstance(rest, dict):
                yield from _unknown(inner, known.get(name, rest), defs, at)
            elif rest is False:
                yield at, list(known)
    elif isinstance(value, list):
        first, rest = schema.get("prefixItems", ()), schema.get("items")
        for i, inner in enumerate(value):
            part = first[i] if i < len(first) else rest
            if isinstance(part, dict):
                yield from _unknown(inner, part, defs, f"{path}[{i}]")


def _fits(value: Any, schema: Json, defs: Json) -> bool:
    """Whether a branch of a union can be the one meant: by its type, and by the tag if it has one."""
    while "$ref" in schema:
        schema = defs[_target(schema)]
    if isinstance(value, dict):
        tags = ((value.get(name), part) for name, part in schema.get("properties", {}).items() if name in value)
        return schema.get("type") == "object" and all(_is_tag(found, part) for found, part in tags)
    return isinstance(value, list) and schema.get("type") == "array"


def _is_tag(value: Any, schema: Json) -> bool:
    return value in schema.get("enum", (value,)) and value == schema.get("const", value)
