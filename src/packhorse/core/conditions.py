"""Conditions on parameters under which a stage runs: data, which a server evaluates without the app's code."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Literal

import msgspec
from msgspec import Struct

Op = Literal["contains", "equals", "is_set", "not", "all", "any"]


class Condition(Struct, frozen=True, omit_defaults=True):
    """What `contains`, `equals`, `is_set`, `not_`, `all_` and `any_` return."""

    op: Op
    parameter: str = ""
    value: Any = None
    default: Any = None  # of the parameter, if it is not submitted
    parts: tuple[Condition, ...] = ()

    def holds(self, parameters: Mapping[str, Any]) -> bool:
        """Whether it is met by parameters as they are submitted, in JSON."""
        given = parameters.get(self.parameter, self.default)
        match self.op:
            case "all":
                return all(part.holds(parameters) for part in self.parts)
            case "any":
                return any(part.holds(parameters) for part in self.parts)
            case "not":
                return not self.parts[0].holds(parameters)
            case "is_set":
                return given is not None and given not in ("", [], {})
            case "equals":
                return is_same(given, self.value)
            case "contains" if isinstance(given, str):
                return isinstance(self.value, str) and self.value in given
        return isinstance(given, list) and any(is_same(each, self.value) for each in given)

    def atoms(self) -> Iterator[Condition]:
        """The conditions on one parameter each that it is made of."""
        if self.parts:
            for part in self.parts:
                yield from part.atoms()
        else:
            yield self

    def __str__(self) -> str:
        match self.op:
            case "not":
                return f"not ({self.parts[0]})"
            case "all" | "any":
                word = " and " if self.op == "all" else " or "
                return word.join(f"({part})" if part.op in ("all", "any") else str(part) for part in self.parts)
            case "is_set":
                return f"{self.parameter} is set"
        verb = "contains" if self.op == "contains" else "is"
        return f"{self.parameter} {verb} {msgspec.json.encode(self.value).decode()}"


def is_same(one: Any, other: Any) -> bool:
    """In JSON, where true is not 1."""
    return one == other and isinstance(one, bool) is isinstance(other, bool)


def contains(parameter: str, value: object) -> Condition:
    """Whether the list has this value, or the text this part."""
    return Condition("contains", parameter, value)


def equals(parameter: str, value: object) -> Condition:
    """Whether the parameter has this value."""
    return Condition("equals", parameter, value)


def is_set(parameter: str) -> Condition:
    """Whether the parameter has a value that is not null or empty. A file is a value."""
    return Condition("is_set", parameter)


def not_(condition: Condition) -> Condition:
    return Condition("not", parts=(condition,))


def all_(*conditions: Condition) -> Condition:
    return Condition("all", parts=conditions)


def any_(*conditions: Condition) -> Condition:
    return Condition("any", parts=conditions)
