"""Errors as RFC 9457 problems."""

from typing import Any, NotRequired, TypedDict

from packhorse.errors import InvalidInput, PackhorseError

RENAMED = {
    "status": "job_status",
    "type": "error_type",
    "title": "error_title",
    "detail": "error_detail",
    "hint": "error_hint",
}
"""Details whose names have another meaning in a problem."""


class MistakeDocument(TypedDict):
    """What is wrong with one field; ``field`` is empty if it concerns the whole body."""

    field: str
    message: str


class ProblemDocument(TypedDict):
    """A problem of RFC 9457. Details of the error, such as ``active_job_id``, are additional members."""

    type: str
    title: str
    status: int
    detail: str
    hint: NotRequired[str]
    trace_id: NotRequired[str]
    errors: NotRequired[list[MistakeDocument]]


def error_to_json(error: PackhorseError) -> ProblemDocument:
    facts: dict[str, Any] = {RENAMED.get(name, name): value for name, value in error.facts.items() if _is_plain(value)}
    document: ProblemDocument = {
        "type": f"urn:packhorse:{error.type()}",
        "title": error.title(),
        "status": error.status,
        "detail": error.message,
    }
    if error.hint:
        document["hint"] = error.hint
    if isinstance(error, InvalidInput):
        document["errors"] = [{"field": each["field"], "message": each["message"]} for each in error.errors]
    document.update(facts)  # type: ignore[typeddict-item]  # members beside those that every problem has
    return document


def _is_plain(value: Any) -> bool:
    return value is None or isinstance(value, str | int | float | bool)
