"""`name=value` words as parameters: each value as what the pipeline's JSON Schema says it is."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
from cyclopts import CycloptsError

from packhorse.core import wire
from packhorse.errors import InvalidInput

Schema = Mapping[str, Any]


def parameters_from(words: Sequence[str], schema: Schema) -> tuple[dict[str, Any], dict[str, Path | list[Path]]]:
    """Values, and files. A value that does not fit is left as it is: the server says best what is wrong with it."""
    values: dict[str, Any] = {}
    files: dict[str, Path | list[Path]] = {}
    for name, given in _grouped(words).items():
        kinds = list(_kinds(schema.get("properties", {}).get(name, {}), schema.get("$defs", {})))
        items = [item for kind in kinds if kind.get("type") == "array" for item in _items(kind, schema)]
        if any(map(_is_file, items)):
            files[name] = [_path(text) for text in given]
        elif any(map(_is_file, kinds)) or (not kinds and given[0].startswith("@")):
            files[name] = _path(_only(name, given))
        elif items and not (len(given) == 1 and given[0].startswith("[")):
            values[name] = [_value(text, items) for text in given]
        else:
            values[name] = _value(_only(name, given), kinds)
    return values, files


def _grouped(words: Sequence[str]) -> dict[str, list[str]]:
    found: defaultdict[str, list[str]] = defaultdict(list)
    for word in words:
        name, equals, value = word.partition("=")
        if not name or not equals:
            raise CycloptsError(msg=f"{word!r} is not NAME=VALUE or NAME=@FILE.", command_chain=["submit"])
        found[name].append(value)
    return found


def _only(name: str, given: list[str]) -> str:
    if len(given) > 1:
        raise InvalidInput(f"{name} was given {len(given)} times, and takes one value.", field=name)
    return given[0]


def _path(text: str) -> Path:
    return Path(text.removeprefix("@")).expanduser()


def _value(text: str, kinds: Sequence[Schema]) -> Any:
    """Text if it may be text; else JSON."""
    if not kinds or any(_is_text(kind) for kind in kinds):
        return text
    try:
        return wire.decode(text.lower() if text.lower() in ("true", "false") else text)
    except msgspec.DecodeError:
        return text


def _kinds(schema: Schema, defs: Schema) -> Iterator[Schema]:
    """What a value may be: the branches of unions, with references followed."""
    while "$ref" in schema:
        schema = defs[schema["$ref"].rpartition("/")[2]]
    branches = [branch for key in ("anyOf", "oneOf", "allOf") for branch in schema.get(key, ())]
    for branch in branches:
        yield from _kinds(branch, defs)
    if not branches and schema:
        yield schema


def _items(kind: Schema, schema: Schema) -> list[Schema]:
    return list(_kinds(kind.get("items") or {"type": "any"}, schema.get("$defs", {})))


def _is_file(kind: Schema) -> bool:
    return kind.get("format") == "binary"


def _is_text(kind: Schema) -> bool:
    types = kind.get("type")
    listed = (*kind.get("enum", ()), kind.get("const"))
    return "string" in (types if isinstance(types, list) else [types]) or any(isinstance(v, str) for v in listed)
