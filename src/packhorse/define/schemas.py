"""User types: their fields, their JSON Schema, unknown names in values, and support for pydantic models.

Pydantic is never imported here; it is used only if the user's code has imported it.
"""

from __future__ import annotations

import dataclasses
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import NoneType
from typing import Annotated, Any, Literal, NamedTuple, get_args, get_origin, get_type_hints

import msgspec

from packhorse.define.files import SCHEMA, File
from packhorse.define.introspection import alternatives
from packhorse.define.secrets import SCHEMA as SECRET
from packhorse.define.secrets import Secret

Many = Literal["one", "many"]


class Field(NamedTuple):
    name: str
    """The name in JSON."""
    hint: Any
    default: Any


def fields_of(type: type[Any]) -> Iterator[Field]:
    """Fields in JSON order. Raises TypeError for a type without fields."""
    if is_model(type):
        yield from (Field(*field) for field in model_fields(type))
    elif isinstance(type, msgspec.StructMeta):
        for field in msgspec.structs.fields(type):
            yield Field(field.encode_name, field.type, field.default)
    elif dataclasses.is_dataclass(type):
        hints = get_type_hints(type, include_extras=True)
        for each in dataclasses.fields(type):
            yield Field(each.name, hints[each.name], each.default)
    else:
        raise TypeError("it must be a Params class, a dataclass or a pydantic model")


def has_fields(hint: Any) -> bool:
    return isinstance(hint, type) and (
        is_model(hint) or isinstance(hint, msgspec.StructMeta) or dataclasses.is_dataclass(hint)
    )


def files_in(hint: Any) -> Many | None:
    """Whether a parameter is one file, several, or none. Raises TypeError for files nested deeper."""
    found = [_bare(part) for part in alternatives(_bare(hint)) if part is not NoneType]
    if found == [File]:
        return "one"
    if len(found) == 1 and _is_many(found[0]):
        return "many"
    if _mentions(hint, set()):
        allowed = "File, File | None, list[File] or tuple[File, ...]"
        raise TypeError(f"files must be parameters of their own ({allowed}), not inside {hint}")
    return None


def _is_many(hint: Any) -> bool:
    origin, inside = get_origin(hint), get_args(hint)
    bare = tuple(_bare(each) for each in inside)
    return (origin in (list, Sequence) and bare == (File,)) or (origin is tuple and bare == (File, ...))


def _bare(hint: Any) -> Any:
    while get_origin(hint) is Annotated:
        hint = get_args(hint)[0]
    return hint


def _mentions(hint: Any, seen: set[int]) -> bool:
    if hint is File:
        return True
    if id(hint) in seen:
        return False
    seen.add(id(hint))
    inside = [*get_args(hint), getattr(hint, "__supertype__", None)]
    if isinstance(hint, type) and get_origin(hint) is None:
        if is_model(hint):
            inside += [inner for _, inner, _ in model_fields(hint)]
        elif getattr(hint, "__annotations__", None):
            inside += get_type_hints(hint, include_extras=True).values()
    return any(_mentions(inner, seen) for inner in inside)


Json = Mapping[str, Any]


def schema_of(hint: Any) -> dict[str, Any]:
    """Of any type packhorse can carry, TypeError for others. Objects admit no names but their own."""
    defs: dict[str, Any] = {}
    if is_model(hint):
        root = _move_defs(hint.model_json_schema(), defs)
    else:
        root = _move_defs(msgspec.json.schema(hint, schema_hook=lambda custom: _custom(custom, defs)), defs)
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
    if is_model(hint):
        return _move_defs(hint.model_json_schema(), defs)
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


def is_model(hint: Any) -> bool:
    pydantic = sys.modules.get("pydantic")
    return pydantic is not None and isinstance(hint, type) and issubclass(hint, pydantic.BaseModel)


def is_hidden(hint: Any) -> bool:
    """Whether the type is or may be pydantic's SecretStr."""
    pydantic = sys.modules.get("pydantic")
    return pydantic is not None and pydantic.SecretStr in alternatives(hint)


def _move_defs(schema: dict[str, Any], defs: dict[str, Any]) -> dict[str, Any]:
    """The schema without the types it refers to, which are added to ``defs``."""
    for name, found in schema.pop("$defs", {}).items():
        if defs.setdefault(name, found) != found:
            raise TypeError(f"Two types named {name} are used together")
    return schema


def model_fields(model: Any) -> Iterator[tuple[str, Any, Any]]:
    """Name in JSON, type and default of each field."""
    for name, field in model.model_fields.items():
        # What pydantic does not understand of an annotation, it keeps aside.
        hint = Annotated[(field.annotation, *field.metadata)] if field.metadata else field.annotation
        yield field.serialization_alias or name, hint, field.default


def model_to_json(value: Any, unknown: Callable[[Any], Any]) -> Any:
    """The model as JSON values. ``unknown`` converts what pydantic cannot, such as a File."""
    # round_trip leaves out what is computed from other fields and would be refused as unknown on the way back.
    return value.model_dump(mode="json", by_alias=True, round_trip=True, warnings=False, fallback=unknown)


def parse_model(model: Any, data: bytes, files: Sequence[File] = ()) -> Any:
    """Parse a client's JSON, as strict as the model is."""
    return model.model_validate_json(data, context={"files": files})


def revive_model(model: Any, value: Any, files: Sequence[File]) -> Any:
    """Restore a value that `model_to_json` encoded. Lax, because JSON has no dates."""
    return model.model_validate(value, strict=False, context={"files": files})


def model_errors(error: BaseException | None) -> list[dict[str, str]] | None:
    """Field and message of each mistake, None if the error is not pydantic's."""
    pydantic = sys.modules.get("pydantic")
    if pydantic is None or not isinstance(error, pydantic.ValidationError):
        return None
    return [{"field": _path(mistake["loc"]), "message": mistake["msg"]} for mistake in error.errors(include_url=False)]


def _path(location: Sequence[str | int]) -> str:
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in location).lstrip(".")
