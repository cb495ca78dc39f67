"""Pipelines: what can be submitted."""

from typing import Any, Literal, TypedDict

from packhorse.core import json
from packhorse.core.plan import Definition
from packhorse.schemas.timestamps import iso


class NeedDocument(TypedDict):
    stage: str
    how: Literal["needs", "each", "gather"]


class PlannedDocument(TypedDict):
    name: str
    queue: str
    needs: list[NeedDocument]
    retries: int
    timeout: float


class PipelineDocument(TypedDict):
    """A pipeline; ``schema`` is the JSON Schema of its parameters. ``statuses`` and ``outputs`` are the app's own
    names, see ``alias`` of a job.
    """

    name: str
    app: str
    description: str
    schema: dict[str, Any]
    one_per_user: bool
    statuses: dict[str, str]
    outputs: dict[str, str]
    stages: list[PlannedDocument]
    published_at: str | None


class PipelinesPage(TypedDict):
    items: list[PipelineDocument]
    next: None


def pipeline_to_json(published: Definition) -> PipelineDocument:
    plan = json.plan_from(published.plan)
    return {
        "name": published.pipeline,
        "app": published.app,
        "description": published.description,
        "schema": json.decode(published.schema),
        "one_per_user": plan.slot is not None,
        "statuses": {status.value: called for status, called in plan.statuses.items()},
        "outputs": dict(plan.outputs),
        "stages": [
            {
                "name": stage.name,
                "queue": stage.queue,
                "needs": [{"stage": need.stage, "how": need.how} for need in stage.needs],
                "retries": stage.retries,
                "timeout": stage.timeout,
            }
            for stage in plan.stages
        ],
        "published_at": iso(published.published_at),
    }
