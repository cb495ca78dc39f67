"""Converts decoder errors into fields and messages that a form can show."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import Any

import msgspec

from packhorse.define.schemas import model_errors
from packhorse.errors import InvalidInput, UnknownPipeline

FieldError = dict[str, str]

_AT = re.compile(r"(?P<message>.*?)(?: - at `(?:key` in `)?\$(?P<path>[^`]*)`)?", re.DOTALL)
_MISSING = re.compile(r"Object missing required field `(?P<name>[^`]*)`")
_UNKNOWN = re.compile(r"Object contains unknown field `(?P<name>[^`]*)`")

UNDECODABLE = (msgspec.DecodeError, ValueError, RecursionError)
"""What decoding untrusted bytes can raise: bad JSON or types, bad UTF-8 or a user's check, deep nesting."""

MAX_DEPTH = 64  # Maximum nesting. A few hundred levels would crash later checks.

MAX_ERRORS = 50
MAX_ERROR_LENGTH = 300  # Characters. Messages quote the input, which may be megabytes.
MAX_IN_MESSAGE = 5
MAX_NAMES = 10
MAX_QUOTE = 80  # characters of the input that are quoted

NOT_VALID = "The request is not valid"
A_TIME = "Expected a time with a time zone, such as 2026-01-31T12:00:00+01:00"
NO_PARAMETER = "Unknown parameter"


def invalid(what: str, mistakes: Iterable[FieldError]) -> InvalidInput:
    """InvalidInput with all errors, the first few also in the message. Bounded in number and length."""
    errors = [{key: text[:MAX_ERROR_LENGTH] for key, text in m.items()} for m in islice(mistakes, MAX_ERRORS)]
    said = (f"{m['field']}: {m['message']}" if m["field"] else m["message"] for m in errors[:MAX_IN_MESSAGE])
    return InvalidInput(f"{what}: {'; '.join(said)}", errors=errors)


class ErrorCollector:
    """Collects InvalidInput errors of several checks: ``with collector:`` around each, and ``check`` at the end."""

    def __init__(self, *before: InvalidInput) -> None:
        self._errors = [*before]

    def __enter__(self) -> None:
        pass

    def __exit__(self, _: object, error: BaseException | None, __: object) -> bool:
        """Only plain field errors are collected. Others, such as TooLarge, are raised at once."""
        if not isinstance(error, InvalidInput) or error.status != InvalidInput.status or not error.errors:
            return False
        self._errors.append(error)
        return True

    def copy(self) -> ErrorCollector:
        """A copy with the errors so far, for checks that are tried several times."""
        return ErrorCollector(*self._errors)

    def check(self, what: str) -> None:
        """Raise the only error as it is, or all errors as one."""
        if len(self._errors) == 1:
            raise self._errors[0]
        if self._errors:
            raise invalid(what, (mistake for error in self._errors for mistake in error.errors))


NUL = "It contains a NUL character, which cannot be stored"
"""PostgreSQL cannot store it, and all stores accept the same values."""


def find_nul(value: Any, path: str = "") -> Iterator[FieldError]:
    """Errors for NUL characters in the texts and keys of a JSON value."""
    if isinstance(value, str) and "\0" in value:
        yield {"field": path, "message": NUL}
    elif isinstance(value, Mapping):
        for name, inner in value.items():
            at = _join(path, str(name).replace("\0", "\\0"))
            yield from find_nul(str(name), at)
            yield from find_nul(inner, at)
    elif isinstance(value, list | tuple):
        for i, inner in enumerate(value):
            yield from find_nul(inner, f"{path}[{i}]")


def unknown_fields(fields: Iterable[str], known: Iterable[str]) -> list[FieldError]:
    """Errors for unknown fields, each with the known names."""
    message = f"{NO_PARAMETER}. Parameters: {list_some(known)}"
    return [{"field": field, "message": message} for field in fields]


def one_of(field: str, choices: Iterable[object]) -> FieldError:
    return {"field": field, "message": f"It must be one of {', '.join(map(str, choices))}"}


def list_some(names: Iterable[str]) -> str:
    found = list(names)
    more = f" and {len(found) - MAX_NAMES} more" if len(found) > MAX_NAMES else ""
    return f"{', '.join(found[:MAX_NAMES])}{more}" if found else "none"


def unknown_pipeline(name: str, known: Iterable[str]) -> UnknownPipeline:
    return UnknownPipeline(
        f"There is no pipeline named {quote_short(name)}. Pipelines: {list_some(sorted(known))}.",
        field="pipeline",
        pipeline=name[:MAX_ERROR_LENGTH],
    )


def quote_short(value: object) -> str:
    text = repr(value[: MAX_QUOTE + 1] if isinstance(value, str) else value)
    return text if len(text) <= MAX_QUOTE else f"{text[:MAX_QUOTE]}…"


def field_errors(error: BaseException) -> list[FieldError]:
    if isinstance(error, RecursionError):
        return [{"field": "", "message": "It is nested too deeply"}]
    found = model_errors(error)
    if found is not None:
        return found
    parts = _AT.fullmatch(str(error))
    assert parts is not None  # every part of the pattern may be empty
    message, path = parts["message"], (parts["path"] or "").lstrip(".")
    inner = model_errors(error.__cause__)
    if inner is not None:  # a pydantic model inside a struct
        return [{**mistake, "field": _join(path, mistake["field"])} for mistake in inner]
    if missing := _MISSING.fullmatch(message):
        return [{"field": _join(path, missing["name"]), "message": "This is required"}]
    if surplus := _UNKNOWN.fullmatch(message):
        return [{"field": _join(path, surplus["name"]), "message": NO_PARAMETER}]
    return [{"field": path, "message": A_TIME if "RFC3339" in message else message}]


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path and name else path or name


def decode_json(data: bytes) -> Any:
    """Raises what `field_errors` reads."""
    value = msgspec.json.decode(data)
    if data.count(b"[") + data.count(b"{") <= MAX_DEPTH:  # the common case: too few brackets to be too deep
        return value
    level = [value]
    for _ in range(MAX_DEPTH):
        if not level:
            return value
        level = [inner for each in level for inner in _inside(each)]
    if level:
        raise ValueError("It is nested too deeply")
    return value


def _inside(value: Any) -> Any:
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list) else ()
