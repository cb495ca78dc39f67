"""Choices that are known only where the work is done, such as the voices that are installed there."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cached_property
from types import NoneType
from typing import Annotated, Any, get_args, get_origin

from packhorse.define.mistakes import Mistake
from packhorse.define.source import alternatives

Choice = str | int


class Choices:
    """``voice: Annotated[str, Choices(voices)]`` is one of what ``voices()`` returns where the worker runs.

    The function is called when a worker starts, which publishes the choices with the schema, and once in each process
    that runs stages. Who submits never calls it. A default is not looked at. Also in ``... | None`` and ``list[...]``.
    """

    def __init__(self, find: Callable[[], Iterable[Choice]]) -> None:
        self._find = find

    @cached_property
    def known(self) -> list[Choice]:
        """Raises ValueError if there is none, and whatever the function raises."""
        found = list(dict.fromkeys(self._find()))
        if not found or not all(isinstance(choice, str | int) for choice in found):
            raise ValueError(f"choices must be texts or numbers, and at least one, not {found!r}")
        return found


def choices_in(hint: Any) -> Choices | None:
    """The choices that a parameter's type is annotated with, at the top, beside None, or for its elements.

    Raises TypeError where they are one of several alternatives: nobody could say which values they are for.
    """
    inside = get_args(hint)
    if get_origin(hint) is Annotated:
        base, *notes = inside
        return next((note for note in notes if isinstance(note, Choices)), None) or choices_in(base)
    found = next((found for each in inside if (found := choices_in(each)) is not None), None)
    if found is not None and len([part for part in alternatives(hint) if part is not NoneType]) > 1:
        raise TypeError(f"choices cannot be for one alternative of several, as in {hint}; only None may be beside them")
    return found


def offered(schema: Mapping[str, Any], choices: Choices) -> dict[str, Any]:
    """The schema of a parameter with its choices in it. TypeError if they have no place there."""
    if "anyOf" in schema:
        return {**schema, "anyOf": [p if p.get("type") == "null" else offered(p, choices) for p in schema["anyOf"]]}
    if isinstance(schema.get("items"), dict):
        return {**schema, "items": offered(schema["items"], choices)}
    if schema.get("type") not in ("string", "integer"):
        raise TypeError("choices are for texts and whole numbers")
    return {**schema, "enum": choices.known}


def not_offered(name: str, value: Any, choices: Choices) -> Iterator[Mistake]:
    if any(each is not None and each not in choices.known for each in _single(value)):
        yield one_of(name, choices.known)


def _single(value: Any) -> Iterator[Any]:
    if isinstance(value, list):
        for each in value:
            yield from _single(each)
    else:
        yield value


def one_of(field: str, choices: Iterable[object]) -> Mistake:
    return {"field": field, "message": f"It must be one of {', '.join(map(str, choices))}"}
