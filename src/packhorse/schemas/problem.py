"""What is answered when something is wrong."""

from typing import NotRequired, TypedDict


class MistakeDocument(TypedDict):
    """What is wrong with one field; the name is empty if it is the whole."""

    field: str
    message: str


class ProblemDocument(TypedDict):
    """A problem of RFC 9457. Facts of the error, such as ``active_job_id``, stand beside these members."""

    type: str
    title: str
    status: int
    detail: str
    hint: NotRequired[str]
    trace_id: NotRequired[str]
    errors: NotRequired[list[MistakeDocument]]
