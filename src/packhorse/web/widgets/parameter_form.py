"""Parameters that are kept as JSON, edited as the form of their pipeline."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from packhorse.core.redaction import MASK
from packhorse.web.widgets.fields import Field
from packhorse.web.widgets.formatting import pretty

PREFIX = "parameter:"  # of the fields, among the others of a form

Values = Mapping[str, Any]


def parse(text: str) -> dict[str, Any] | None:
    """None if it is not a JSON object."""
    try:
        found = msgspec.json.decode(text.strip() or "{}")
    except (msgspec.DecodeError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def can_show(fields: Sequence[Field], values: Values) -> bool:
    """Whether the form has a place for every value."""
    by_name = {field.name: field for field in fields}
    return all(name in by_name and _fits(by_name[name], value) for name, value in values.items())


def shown_values(fields: Sequence[Field], values: Values) -> dict[str, str]:
    """What the inputs begin with."""
    return {field.name: _shown(field, values[field.name]) if field.name in values else field.value for field in fields}


def read_values(
    fields: Sequence[Field],
    typed: Callable[[str], Sequence[str]],
    before: Values,
    read: Callable[[str, Sequence[str]], Any],
    defaults: Values,
) -> dict[str, Any]:
    """What was typed. A default that nobody has set before is left out, so that it can change with the pipeline."""
    found: dict[str, Any] = {}
    for field in fields:
        texts = field.told(typed(field.name))
        if field.kind == "secret" and not any(texts):
            if field.name in before:
                found[field.name] = before[field.name]
        elif texts or (field.kind == "list" and field.name in before):
            value = read(field.name, texts) if texts else []
            if field.name in before or field.name not in defaults or value != defaults[field.name]:
                found[field.name] = value
    return found


def _fits(field: Field, value: Any) -> bool:
    match field.kind:
        case "text" | "lines":
            return isinstance(value, str)
        case "check":
            return isinstance(value, bool)
        case "number":
            return isinstance(value, int | float | str) and not isinstance(value, bool)
        case "choice":
            return _shown(field, value) in field.choices
        case "list":
            return isinstance(value, list) and not any(isinstance(each, list | dict) or each is None for each in value)
        case "file" | "files":
            return False
        case "secret":
            return isinstance(value, str)
    return True


def _shown(field: Field, value: Any) -> str:
    if field.kind == "secret":
        return ""
    if field.kind == "list" and isinstance(value, list):
        return "\n".join(each if isinstance(each, str) else pretty(each) for each in value)
    if isinstance(value, str) and (field.kind != "json" or not _is_json(value)):
        return value
    return pretty(value)


def _is_json(text: str) -> bool:
    try:
        msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        return False
    return True


def has_secret(field: Field, values: Values) -> bool:
    """Whether a secret is stored. It is never shown."""
    return field.kind == "secret" and values.get(field.name) == MASK
