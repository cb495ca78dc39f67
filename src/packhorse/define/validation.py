"""Turns what the decoders complain about into fields and messages that a form can show."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import Any

import msgspec

from packhorse.define import pydantic
from packhorse.errors import InvalidInput, UnknownPipeline

FieldError = dict[str, str]

_AT = re.compile(r"(?P<message>.*?)(?: - at `(?:key` in `)?\$(?P<path>[^`]*)`)?", re.DOTALL)
_MISSING = re.compile(r"Object missing required field `(?P<name>[^`]*)`")
_UNKNOWN = re.compile(r"Object contains unknown field `(?P<name>[^`]*)`")

UNDECODABLE = (msgspec.DecodeError, ValueError, RecursionError)
"""What decoding bytes from outside can raise: for bad JSON or types, bad UTF-8 or a user's own check, deep nesting."""

MAX_DEPTH = 64
"""Levels of nesting. Past a few hundred, what checks it next falls over; nobody writes down that many."""

MAX_ERRORS = 50
MAX_ERROR_LENGTH = 300
"""Characters. What was sent is part of many messages, and may be megabytes of it."""
MAX_IN_MESSAGE = 5
MAX_NAMES = 10
MAX_QUOTE = 80
"""Characters of what was sent that are said back, where it only has to be recognised."""

NOT_VALID = "The request is not valid"
NO_PARAMETER = "There is no parameter of this name"


def invalid(what: str, mistakes: Iterable[FieldError]) -> InvalidInput:
    """All of them as ``errors``, the first few also in the message. Bounded, however much nonsense was sent."""
    errors = [{key: text[:MAX_ERROR_LENGTH] for key, text in m.items()} for m in islice(mistakes, MAX_ERRORS)]
    said = (f"{m['field']}: {m['message']}" if m["field"] else m["message"] for m in errors[:MAX_IN_MESSAGE])
    return InvalidInput(f"{what}: {'; '.join(said)}", errors=errors)


class ErrorCollector:
    """What is wrong with several things, told at once: ``with gathered:`` around each, at the end ``check``."""

    def __init__(self, *before: InvalidInput) -> None:
        self._errors = [*before]

    def __enter__(self) -> None:
        pass

    def __exit__(self, _: object, error: BaseException | None, __: object) -> bool:
        """What is refused for more than a mistake, such as a size, is not to be waited with."""
        if not isinstance(error, InvalidInput) or error.status != InvalidInput.status or not error.errors:
            return False
        self._errors.append(error)
        return True

    def copy(self) -> ErrorCollector:
        """With what is known so far, for what is tried several times."""
        return ErrorCollector(*self._errors)

    def check(self, what: str) -> None:
        """Raises the only one as it is, or all of them as one."""
        if len(self._errors) == 1:
            raise self._errors[0]
        if self._errors:
            raise invalid(what, (mistake for error in self._errors for mistake in error.errors))


NUL = "It contains a NUL character, which cannot be stored"
"""PostgreSQL's texts have none, and what one store keeps all must."""


def find_nul(value: Any, path: str = "") -> Iterator[FieldError]:
    """Where a JSON value has a NUL character, in a text or in a name."""
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
    """Names that are not among the known ones, told with those that are."""
    message = f"{NO_PARAMETER}; there is {list_some(known)}"
    return [{"field": field, "message": message} for field in fields]


def list_some(names: Iterable[str]) -> str:
    """What could have been meant: the first few."""
    found = list(names)
    more = f" and {len(found) - MAX_NAMES} more" if len(found) > MAX_NAMES else ""
    return f"{', '.join(found[:MAX_NAMES])}{more}" if found else "none"


def unknown_pipeline(name: str, known: Iterable[str]) -> UnknownPipeline:
    return UnknownPipeline(
        f"There is no pipeline named {quote_short(name)}; there is {list_some(sorted(known))}.",
        field="pipeline",
        pipeline=name[:MAX_ERROR_LENGTH],
    )


def quote_short(value: object) -> str:
    """As Python writes it, cut short."""
    text = repr(value[: MAX_QUOTE + 1] if isinstance(value, str) else value)
    return text if len(text) <= MAX_QUOTE else f"{text[:MAX_QUOTE]}…"


def field_errors(error: BaseException) -> list[FieldError]:
    if isinstance(error, RecursionError):
        return [{"field": "", "message": "It is nested too deeply"}]
    found = pydantic.errors_in(error)
    if found is not None:
        return found
    parts = _AT.fullmatch(str(error))
    assert parts is not None  # every part of the pattern may be empty
    message, path = parts["message"], (parts["path"] or "").lstrip(".")
    inner = pydantic.errors_in(error.__cause__)
    if inner is not None:  # a pydantic model inside a struct
        return [{**mistake, "field": _join(path, mistake["field"])} for mistake in inner]
    if missing := _MISSING.fullmatch(message):
        return [{"field": _join(path, missing["name"]), "message": "This is required"}]
    if surplus := _UNKNOWN.fullmatch(message):
        return [{"field": _join(path, surplus["name"]), "message": NO_PARAMETER}]
    return [{"field": path, "message": message}]


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path and name else path or name


def decode_json(data: bytes) -> Any:
    """Raises what `mistakes_in` reads."""
    value = msgspec.json.decode(data)
    if data.count(b"[") + data.count(b"{") <= MAX_DEPTH:  # as nearly always: not even all of them are too deep
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
