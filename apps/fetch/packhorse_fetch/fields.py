"""Selected fields of a document: ``items[0].title`` is one, ``items[*].title`` is a list of them."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from packhorse import Permanent

NAME = r"[^.\[\]]+"
PATH = rf"^({NAME}|\[([0-9]+|\*)\])(\.{NAME}|\[([0-9]+|\*)\])*$"
STEP = re.compile(rf"\[([0-9]+|\*)\]|({NAME})")

MISSING = object()


def selected(document: Any, paths: Mapping[str, str]) -> tuple[dict[str, Any], list[str]]:
    """What stands where the paths lead, by name, and the names of those that lead nowhere.

    Without any path it is what stands at the top and is neither a list nor an object.
    """
    if not paths:
        top = document if isinstance(document, dict) else {}
        return {name: value for name, value in top.items() if not isinstance(value, dict | list)}, []
    found = {name: _at(document, [step.groups() for step in STEP.finditer(path)]) for name, path in paths.items()}
    missing = [name for name, value in found.items() if value is MISSING]
    return {name: value for name, value in found.items() if value is not MISSING}, missing


def is_empty(value: Any) -> bool:
    """Whether a document says nothing there: a feed or a page has all fields, with null for what is not in it."""
    return value is None or (isinstance(value, list) and bool(value) and all(each is None for each in value))


def json_document(text: str) -> Any:
    try:
        return json.loads(text, parse_constant=_refused)
    except (ValueError, RecursionError) as error:
        raise Permanent(f"It cannot be read as JSON: {error}", code="BAD_JSON") from error


def _refused(word: str) -> Any:
    raise ValueError(f"{word} is no number of JSON")


def _at(value: Any, steps: list[tuple[str | Any, ...]]) -> Any:
    for i, (index, name) in enumerate(steps):
        if index == "*":
            if not isinstance(value, list):
                return MISSING
            inside = (_at(element, steps[i + 1 :]) for element in value)
            return [element for element in inside if element is not MISSING]
        value = _step(value, index, name)
        if value is MISSING:
            return MISSING
    return value


def _step(value: Any, index: str | None, name: str | None) -> Any:
    if index is not None:
        return value[int(index)] if isinstance(value, list) and int(index) < len(value) else MISSING
    return value.get(name, MISSING) if isinstance(value, dict) else MISSING
