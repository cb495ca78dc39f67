"""Fields of parameter types, and which of them are files."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from types import NoneType
from typing import Annotated, Any, Literal, NamedTuple, get_args, get_origin, get_type_hints

import msgspec

from packhorse.define import pydantic
from packhorse.define.files import File
from packhorse.define.introspection import alternatives

Many = Literal["one", "many"]


class Field(NamedTuple):
    name: str
    """The name in JSON."""
    hint: Any
    default: Any


def fields_of(type: type[Any]) -> Iterator[Field]:
    """Fields in JSON order. Raises TypeError for a type without fields."""
    if pydantic.is_model(type):
        yield from (Field(*field) for field in pydantic.fields_of(type))
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
        pydantic.is_model(hint) or isinstance(hint, msgspec.StructMeta) or dataclasses.is_dataclass(hint)
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
        if pydantic.is_model(hint):
            inside += [inner for _, inner, _ in pydantic.fields_of(hint)]
        elif getattr(hint, "__annotations__", None):
            inside += get_type_hints(hint, include_extras=True).values()
    return any(_mentions(inner, seen) for inner in inside)
