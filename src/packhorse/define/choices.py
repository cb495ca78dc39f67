"""Choices that are known only where the work is done, such as the voices that are installed there."""

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

    The function is called when a worker starts, which publishes the choices with the schema, and once in each process
    that runs stages. Who submits never calls it. A default is not looked at. Also in ``... | None``, in
    ``list[...]``, and in the fields of a type that a parameter has.
    """

    def __init__(self, find: Callable[[], Iterable[Choice]]) -> None:
        self._find = find

    @cached_property
    def values(self) -> list[Choice]:
        """Raises ValueError if there is none, and whatever the function raises."""
        known = list(dict.fromkeys(self._find()))
        if not known or not all(isinstance(choice, str | int) for choice in known):
            raise ValueError(f"choices must be texts or numbers, and at least one, not {known!r}")
        return known


def choices_of(type: type[Any]) -> dict[Path, Choices]:
    """Where values of a parameter type have choices. TypeError where nobody could say which values they are for."""
    return {path: here for field in fields_of(type) for path, here in _find(field.hint, (field.name,), (type,))}


def _find(hint: Any, path: Path, inside: tuple[Any, ...]) -> Iterator[tuple[Path, Choices]]:
    if get_origin(hint) is Annotated:
        base, *notes = get_args(hint)
        noted = next((note for note in notes if isinstance(note, Choices)), None)
        yield from ((path, noted),) if noted is not None else _find(base, path, inside)
    elif has_fields(hint):
        if hint in inside:  # it has none, or their places would have been found without end
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
    """The schema with the choices in it, at the end of the path. TypeError if they have no place there."""
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
    for name in ("items", "additionalProperties") if path else ("items",):  # of a list as a whole: of its elements
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
