"""Choices that only the worker knows, such as the voices installed on it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cached_property
from types import NoneType
from typing import Annotated, Any, get_args, get_origin

from packhorse.core.json import ANY, values_at
from packhorse.core.plan import Path
from packhorse.define.fields import fields_of, has_fields
from packhorse.define.introspection import alternatives
from packhorse.define.validation import FieldError

Choice = str | int


class Choices:
    """``voice: Annotated[str, Choices(voices)]`` is one of what ``voices()`` returns where the worker runs.

    A worker calls the function when it starts and publishes the choices with the schema; each process that runs stages
    calls it once. Submitting never calls it. Defaults are not checked. Also works in ``... | None``, in ``list[...]``,
    and in the fields of a parameter's type.
    """

    def __init__(self, find: Callable[[], Iterable[Choice]]) -> None:
        self._find = find

    @cached_property
    def values(self) -> list[Choice]:
        """Raises ValueError if there are none, and whatever the function raises."""
        known = list(dict.fromkeys(self._find()))
        if not known or not all(isinstance(choice, str | int) for choice in known):
            raise ValueError(f"choices must be texts or numbers, and at least one, not {known!r}")
        return known


def choices_of(type: type[Any]) -> dict[Path, Choices]:
    """Choices by their path in a parameter type. TypeError if a union makes it unclear which values they are for."""
    return {path: here for field in fields_of(type) for path, here in _find(field.hint, (field.name,), (type,))}


def _find(hint: Any, path: Path, inside: tuple[Any, ...]) -> Iterator[tuple[Path, Choices]]:
    if get_origin(hint) is Annotated:
        base, *notes = get_args(hint)
        noted = next((note for note in notes if isinstance(note, Choices)), None)
        yield from ((path, noted),) if noted is not None else _find(base, path, inside)
    elif has_fields(hint):
        if hint in inside:  # a recursive type
            return
        for field in fields_of(hint):
            yield from _find(field.hint, (*path, field.name), (*inside, hint))
    elif (parts := alternatives(hint)) != (hint,):
        within = [each for part in parts for each in _find(part, path, inside)]
        if within and len([part for part in parts if part is not NoneType]) > 1:
            raise TypeError(
                f"choices cannot be for one alternative of several, as in {hint}; only None may be beside them"
            )
        yield from within
    else:
        for each in get_args(hint):
            yield from _find(each, (*path, ANY), inside)


def add_choices(schema: Mapping[str, Any], path: Path, choices: Choices) -> dict[str, Any]:
    """The schema with the choices added at the path. TypeError if it is not a text or integer there."""
    defs = dict(schema.get("$defs", {}))
    whole = _add(schema, path, choices, defs)
    return {**whole, "$defs": defs} if defs else whole


def _add(schema: Mapping[str, Any], path: Path, choices: Choices, defs: dict[str, Any]) -> dict[str, Any]:
    if "$ref" in schema:
        name = str(schema["$ref"]).rpartition("/")[2]
        defs[name] = _add(defs[name], path, choices, defs)
        return dict(schema)
    if "anyOf" in schema:
        parts = [p if p.get("type") == "null" else _add(p, path, choices, defs) for p in schema["anyOf"]]
        return {**schema, "anyOf": parts}
    if path and path[0] in schema.get("properties", {}):
        inner = _add(schema["properties"][path[0]], path[1:], choices, defs)
        return {**schema, "properties": {**schema["properties"], path[0]: inner}}
    for name in ("items", "additionalProperties") if path else ("items",):  # choices for a list apply to its elements
        if isinstance(schema.get(name), dict):
            return {**schema, name: _add(schema[name], path[1:], choices, defs)}
    if schema.get("type") not in ("string", "integer"):
        raise TypeError("choices are for texts and whole numbers")
    return {**schema, "enum": choices.values}


def choice_errors(path: Path, value: Any, choices: Choices) -> Iterator[FieldError]:
    for given in values_at(value, [path]):
        if any(each is not None and each not in choices.values for each in _single(given)):
            yield one_of(field_name(path), choices.values)
            return


def field_name(path: Path) -> str:
    return ".".join(path).replace(f".{ANY}", "[]")


def _single(value: Any) -> Iterator[Any]:
    if isinstance(value, list):
        for each in value:
            yield from _single(each)
    else:
        yield value


def one_of(field: str, choices: Iterable[object]) -> FieldError:
    return {"field": field, "message": f"It must be one of {', '.join(map(str, choices))}"}
