"""`name=value` words as parameters: each value as what the pipeline's JSON Schema says it is."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
from cyclopts import CycloptsError

from packhorse.core import json
from packhorse.errors import InvalidInput

Schema = Mapping[str, Any]


MOST = 16 * 1024 * 1024
"""Largest file, in bytes, that is sent as text: a guard against naming a large file by mistake."""


def parameters_from(
    given: Mapping[str, list[str]], schema: Schema
) -> tuple[dict[str, Any], dict[str, Path | list[Path]]]:
    """Values, and files. A value that does not fit its type stays text: the server then reports the error."""
    values: dict[str, Any] = {}
    files: dict[str, Path | list[Path]] = {}
    for name, texts in given.items():
        kinds = list(_kinds(schema.get("properties", {}).get(name, {}), schema.get("$defs", {})))
        items = [item for kind in kinds if kind.get("type") == "array" for item in _items(kind, schema)]
        if any(map(_is_file, [*items, *kinds])) and all(map(_is_artifact, texts)):
            values[name] = texts if any(map(_is_file, items)) else _only(name, texts)
        elif any(map(_is_file, items)):
            files[name] = [_path(text) for text in texts]
        elif any(map(_is_file, kinds)):
            files[name] = _path(_only(name, texts))
        else:
            said = [_text(name, text) for text in texts]
            is_elements = items and not (len(said) == 1 and _is_array(said[0]))
            values[name] = [_value(text, items) for text in said] if is_elements else _value(_only(name, said), kinds)
    return values, files


def group_words(words: Sequence[str], *command: str) -> dict[str, list[str]]:
    """The values of each name, from NAME=VALUE words."""
    found: defaultdict[str, list[str]] = defaultdict(list)
    for word in words:
        name, equals, value = word.partition("=")
        if not name or not equals:
            raise CycloptsError(msg=f"{word!r} is not NAME=VALUE or NAME=@PATH.", command_chain=[*command])
        found[name].append(value)
    return found


def _only(name: str, given: list[str]) -> str:
    if len(given) > 1:
        raise InvalidInput(f"{name} was given {len(given)} times, and takes one value.", field=name)
    return given[0]


def _path(text: str) -> Path:
    return Path(text.removeprefix("@")).expanduser()


def _text(name: str, text: str) -> str:
    """The text itself; after ``@``, the content of that file. ``@@`` stands for a leading ``@``."""
    if not text.startswith("@"):
        return text
    if text.startswith("@@"):
        return text[1:]
    path = _path(text)
    try:
        if path.stat().st_size > MOST:
            raise InvalidInput(f"{path} is too large to be sent as a text.", field=name)
        return path.read_text("utf-8")
    except FileNotFoundError:
        literal = f"{name}=@{text}"
        raise InvalidInput(f"There is no file {path}. If the text itself is meant: {literal}", field=name) from None
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInput(f"{path} cannot be read as a text: {error}.", field=name) from error


def _value(text: str, kinds: Sequence[Schema]) -> Any:
    """Text if it may be text; else JSON."""
    if not kinds or any(_is_text(kind) for kind in kinds):
        return text
    try:
        return json.decode(text.lower() if text.lower() in ("true", "false") else text)
    except msgspec.DecodeError:
        return text


def _is_array(text: str) -> bool:
    try:
        return isinstance(json.decode(text), list)
    except msgspec.DecodeError:
        return False


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


def _is_artifact(text: str) -> bool:
    """Whether it names an artifact of an earlier job. Write a path that looks like one with ``@``."""
    return text.startswith("job:") and "/artifacts/" in text


def _is_text(kind: Schema) -> bool:
    types = kind.get("type")
    listed = (*kind.get("enum", ()), kind.get("const"))
    return "string" in (types if isinstance(types, list) else [types]) or any(isinstance(v, str) for v in listed)
