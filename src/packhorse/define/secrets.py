"""A parameter that nobody but the stage may read."""

from __future__ import annotations

import hmac
from collections.abc import Iterator, Mapping
from typing import Any

from packhorse.core.json import ANY
from packhorse.core.plan import Path
from packhorse.core.redaction import MASK

SCHEMA = {"type": "string", "format": "password", "writeOnly": True}


class Secret:
    """A text that is encrypted wherever it is kept, and shown as dots wherever it is shown.

    The stage reads it with `reveal`. What it prints, raises, reports or returns of it is dots, too.
    """

    __slots__ = ("_value",)

    def __init__(self, value: str) -> None:
        if not isinstance(value, str):
            raise TypeError("a Secret is a text")  # and not a word of what it was
        self._value = value

    def reveal(self) -> str:
        return self._value

    def __bool__(self) -> bool:
        return bool(self._value)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Secret):
            return NotImplemented
        return hmac.compare_digest(
            self._value.encode(errors="surrogatepass"), other._value.encode(errors="surrogatepass")
        )

    def __hash__(self) -> int:
        return hash(self._value)

    def __str__(self) -> str:
        return MASK

    def __repr__(self) -> str:
        return f"Secret({MASK!r})"

    def __reduce__(self) -> Any:
        raise TypeError("a Secret is not to be pickled: it would be written down in clear")

    @classmethod
    def __get_pydantic_core_schema__(cls, _source: Any, _handler: Any) -> Any:
        """Lets a pydantic model have a Secret. Called by pydantic only, so the import costs nobody else."""
        from pydantic_core import core_schema

        return core_schema.no_info_plain_validator_function(to_secret)

    @classmethod
    def __get_pydantic_json_schema__(cls, _schema: Any, _handler: Any) -> dict[str, Any]:
        return dict(SCHEMA)


def to_secret(value: Any) -> Secret:
    """Raises ValueError that does not say what it was."""
    if isinstance(value, Secret):
        return value
    if not isinstance(value, str):
        raise ValueError("Expected a text")
    return Secret(value)


def is_secret(schema: Mapping[str, Any]) -> bool:
    return all(schema.get(key) == value for key, value in SCHEMA.items())


def secrets_in(schema: Mapping[str, Any]) -> tuple[Path, ...]:
    """Where values of the schema have secrets. Raises TypeError if it may be anywhere, in a type that has itself."""
    return tuple(sorted(set(_paths(schema, schema.get("$defs", {}), (), ()))))


def _paths(schema: Mapping[str, Any], defs: Mapping[str, Any], path: Path, inside: tuple[str, ...]) -> Iterator[Path]:
    if "$ref" in schema:
        name = str(schema["$ref"]).rpartition("/")[2]
        if name in inside:
            if any(_paths_of_one(defs[name], defs, name)):
                raise TypeError(f"{name} contains itself, and a Secret: write the secrets as parameters of their own")
            return
        schema, inside = defs[name], (*inside, name)
    if is_secret(schema):
        yield path
    for name, part in schema.get("properties", {}).items():
        yield from _paths(part, defs, (*path, name), inside)
    for part in (branch for key in ("anyOf", "oneOf", "allOf") for branch in schema.get(key, ())):
        yield from _paths(part, defs, path, inside)
    for part in (*schema.get("prefixItems", ()), schema.get("items"), schema.get("additionalProperties")):
        if isinstance(part, Mapping):
            yield from _paths(part, defs, (*path, ANY), inside)


def _paths_of_one(schema: Mapping[str, Any], defs: Mapping[str, Any], name: str) -> Iterator[bool]:
    """Whether there is a secret in it, looked at once."""
    without = {other: part for other, part in defs.items() if other != name} | {name: {}}
    return (True for _ in _paths(schema, without, (), ()))
