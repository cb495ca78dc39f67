"""Why a job waits, and how much longer it will run: what `jobs/` finds out, and its JSON."""

from collections.abc import Mapping
from typing import NotRequired, TypedDict

from msgspec import Struct

from packhorse.schemas.progress import iso


class Reason(Struct, frozen=True):
    code: str
    message: str
    ahead: int | None = None
    """How many tasks are ahead of it, if that was counted."""


class StageEstimate(Struct, frozen=True):
    """Of one stage, in seconds; None where there is no data."""

    usual: float | None
    """The median of its earlier runs."""
    seconds: float | None
    """How much longer it will run."""
    runs: int


class Estimate(Struct, frozen=True):
    seconds: float | None
    runs: int
    """How many earlier runs it is based on, at least; 0 if only on the job's own progress."""
    stages: Mapping[str, StageEstimate]


class ReasonDocument(TypedDict):
    """``ahead`` is how many tasks are ahead of it, up to 1000, if it only waits for its turn."""

    code: str
    message: str
    ahead: NotRequired[int]


class ExplainDocument(TypedDict):
    """Why a job is not running now."""

    reasons: list[ReasonDocument]


class StageEstimateDocument(TypedDict):
    """How much longer a stage will run, and the median of its earlier runs, in seconds."""

    seconds: float | None
    usual_seconds: float | None


class EstimateDocument(TypedDict):
    """How much longer a job will run, in seconds, null if unknown.

    The time that stages wait for a worker is not included. It is based on at least ``runs`` runs of the last three
    days; 0 means only on the progress that the job reports.
    """

    seconds: float | None
    ends_at: str | None
    runs: int
    stages: dict[str, StageEstimateDocument]


def reason_to_json(reason: Reason) -> ReasonDocument:
    document: ReasonDocument = {"code": reason.code, "message": reason.message}
    return document if reason.ahead is None else {**document, "ahead": reason.ahead}


def estimate_to_json(estimate: Estimate, now: float) -> EstimateDocument:
    return {
        "seconds": _round(estimate.seconds),
        "ends_at": None if estimate.seconds is None else iso(now + estimate.seconds),
        "runs": estimate.runs,
        "stages": {
            name: {"seconds": _round(stage.seconds), "usual_seconds": _round(stage.usual)}
            for name, stage in estimate.stages.items()
        },
    }


def _round(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 2)
