"""Results of stages as JSON and back. A File anywhere in them becomes ``{"$file": n}``.

The same key in a user's mapping is escaped: ``$file`` is written as ``$$file``, ``$$file`` as ``$$$file``, and so on.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import msgspec

from packhorse.define.files import File, file_at
from packhorse.define.schemas import is_model, model_to_json, revive_model, schema_of
from packhorse.define.secrets import Secret
from packhorse.define.validation import UNDECODABLE, field_errors, invalid
from packhorse.errors import InvalidInput

REFERENCE = "$file"

F = TypeVar("F")

_LIKE_ONE = re.compile(r"\$+file")
_ESCAPED = re.compile(r"\$\$+file")


def check_type(hint: Any) -> None:
    """Raise TypeError if values of this type cannot be stored and read back."""
    msgspec.json.Decoder(hint)
    schema_of(hint)


def encode_result(value: object, who: str = "The stage") -> tuple[bytes, list[File]]:
    """JSON, and the File for each number in it. NaN and infinity become null."""
    files: list[File] = []
    # Between the two steps, a random key keeps references apart from user data.
    mark = os.urandom(8).hex()

    def plain(inner: Any) -> Any:
        if isinstance(inner, File):
            files.append(inner)
            return {mark: len(files) - 1}
        if is_model(type(inner)):
            return model_to_json(inner, plain)
        raise TypeError(_advice(inner))

    try:
        found = msgspec.to_builtins(value, enc_hook=plain, str_keys=True)
        data = msgspec.json.encode(_rename_keys(found, lambda key: REFERENCE if key == mark else _escape(key)))
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidInput(f"{who} returned a value of type {_name(value)} that cannot be stored: {error}.") from error
    for file in files:
        if not file.path.is_file():
            raise InvalidInput(f"{who} returned a File that does not exist: {file.path}.")
    return data, files


def decode_result(data: bytes, type: Any, files: Sequence[Any], what: str = "The result") -> Any:
    """The value as ``type``, with ``files[n]`` in place of the numbers. For `Any`, the files may be anything."""

    def revive(hint: Any, inner: Any) -> Any:
        return revive_model(hint, inner, files) if is_model(hint) else inner

    try:
        value = _replace_files(msgspec.json.decode(data), lambda found: file_at(found, files), _unescape)
        if type is Any:
            return value
        return msgspec.convert(value, type, dec_hook=revive, str_keys=True)
    except UNDECODABLE as error:
        raise invalid(f"{what} does not match its type", field_errors(error)) from error


def element(data: bytes, files: Sequence[F], index: int) -> tuple[bytes, list[F]]:
    """One element of a list result as a separate result, with only its own files."""
    kept: list[F] = []

    def renumber(found: Any) -> Any:
        kept.append(file_at(found, files))
        return {REFERENCE: len(kept) - 1}

    return msgspec.json.encode(_replace_files(msgspec.json.decode(data)[index], renumber)), kept


def _rename_keys(value: Any, rename: Callable[[str], str]) -> Any:
    if isinstance(value, dict):
        return {rename(key): _rename_keys(inner, rename) for key, inner in value.items()}
    return [_rename_keys(inner, rename) for inner in value] if isinstance(value, list | tuple) else value


def _escape(key: str) -> str:
    return f"${key}" if _LIKE_ONE.fullmatch(key) else key


def _unescape(key: str) -> str:
    return key[1:] if _ESCAPED.fullmatch(key) else key


def _replace_files(value: Any, replace: Callable[[Any], Any], rename: Callable[[str], str] = str) -> Any:
    """The value with each reference to a file replaced, and every other key renamed."""
    if isinstance(value, list):
        return [_replace_files(inner, replace, rename) for inner in value]
    if not isinstance(value, dict):
        return value
    if REFERENCE in value:
        return replace(value)
    return {rename(key): _replace_files(inner, replace, rename) for key, inner in value.items()}


def _advice(value: object) -> str:
    if isinstance(value, Secret):
        return "a Secret cannot be returned: the next stage has it among its parameters"
    if isinstance(value, os.PathLike):
        return "a path means nothing on another machine; return File(path)"
    return f"{_name(value)} is neither JSON nor a File; return a mapping, list, dataclass or Struct of such"


def _name(value: object) -> str:
    kind = type(value)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
