"""Places inside a JSON value, and what stands there."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

ANY = "*"
"""A step into every element of a list, or every value of a mapping."""

Path = tuple[str, ...]
"""The names that lead there."""


def changed(value: Any, paths: Sequence[Path], change: Callable[[Any], Any]) -> Any:
    """The value with ``change`` made of whatever stands where the paths lead; None, as nothing, is left alone."""
    for path in paths:
        value = _changed(value, path, change)
    return value


def found(value: Any, paths: Sequence[Path]) -> list[Any]:
    """What stands where the paths lead."""
    seen: list[Any] = []
    changed(value, paths, seen.append)
    return seen


def _changed(value: Any, path: Path, change: Callable[[Any], Any]) -> Any:
    if not path:
        return value if value is None else change(value)
    step, rest = path[0], path[1:]
    if isinstance(value, Mapping):
        return {name: _changed(inner, rest, change) if step in (ANY, name) else inner for name, inner in value.items()}
    if isinstance(value, list) and step == ANY:
        return [_changed(inner, rest, change) for inner in value]
    return value
