"""Secret parameters: encrypted at rest, masked everywhere, readable by the stage only."""

from __future__ import annotations

import hmac
from collections.abc import Iterator, Mapping
from typing import Any

from packhorse.core.json import ANY
from packhorse.core.plan import Path
from packhorse.core.redaction import MASK

SCHEMA = {"type": "string", "format": "password", "writeOnly": True}


class Secret:
    """A text that is encrypted at rest and shown as dots.

    The stage reads it with `reveal`. It is also masked in what the stage prints, raises, reports or returns.
    """

    __slots__ = ("_value",)

    def __init__(self, value: str) -> None:
        if not isinstance(value, str):
            raise TypeError("a Secret is a text")  # without the value
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
        raise TypeError("a Secret cannot be pickled: that would write it in clear text")

    @classmethod
    def __get_pydantic_core_schema__(cls, _source: Any, _handler: Any) -> Any:
        """Support for Secret in pydantic models. Only pydantic calls it."""
        from pydantic_core import core_schema

        return core_schema.no_info_plain_validator_function(to_secret)

    @classmethod
    def __get_pydantic_json_schema__(cls, _schema: Any, _handler: Any) -> dict[str, Any]:
        return dict(SCHEMA)


def to_secret(value: Any) -> Secret:
    """Raises ValueError that does not quote the value."""
    if isinstance(value, Secret):
        return value
    if not isinstance(value, str):
        raise ValueError("Expected a text")
    return Secret(value)


def secrets_in(schema: Mapping[str, Any]) -> tuple[Path, ...]:
    """Paths of secrets in values of the schema. Raises TypeError for a secret in a recursive type."""
    return tuple(sorted(set(_paths(schema, schema.get("$defs", {}), (), ()))))


def _paths(schema: Mapping[str, Any], defs: Mapping[str, Any], path: Path, inside: tuple[str, ...]) -> Iterator[Path]:
    if "$ref" in schema:
        name = str(schema["$ref"]).rpartition("/")[2]
        if name in inside:
            if any(True for _ in _paths(defs[name], {**defs, name: {}}, (), ())):
                raise TypeError(f"{name} contains itself, and a Secret: write the secrets as parameters of their own")
            return
        schema, inside = defs[name], (*inside, name)
    if schema.items() >= SCHEMA.items():
        yield path
    for name, part in schema.get("properties", {}).items():
        yield from _paths(part, defs, (*path, name), inside)
    for part in (branch for key in ("anyOf", "oneOf", "allOf") for branch in schema.get(key, ())):
        yield from _paths(part, defs, path, inside)
    for part in (*schema.get("prefixItems", ()), schema.get("items"), schema.get("additionalProperties")):
        if isinstance(part, Mapping):
            yield from _paths(part, defs, (*path, ANY), inside)
