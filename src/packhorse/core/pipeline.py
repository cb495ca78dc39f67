"""Which plans can run: the rules of the graph, checked before anything is submitted to it."""

from __future__ import annotations

from collections.abc import Mapping

from packhorse.core.model import Plan, StagePlan
from packhorse.errors import DefinitionError


def check(plan: Plan) -> None:
    """Refuse a plan that could not run: doubled or unknown names, a stage before what it needs, a bad pairing."""
    seen: dict[str, StagePlan] = {}
    for stage in plan.stages:
        if stage.name in seen:
            raise DefinitionError(f"Pipeline {plan.pipeline!r} has two stages named {stage.name!r}.")
        for need in stage.needs:
            _check_need(plan.pipeline, stage, need.stage, need.how, seen)
        if sum(need.how == "each" for need in stage.needs) > 1:
            raise DefinitionError(f"Stage {stage.name!r} has two each(...) parameters; a stage runs over one list.")
        seen[stage.name] = stage
    if not plan.stages:
        raise DefinitionError(f"Pipeline {plan.pipeline!r} has no stages.")


def _check_need(pipeline: str, stage: StagePlan, needed: str, how: str, seen: Mapping[str, StagePlan]) -> None:
    if needed not in seen:
        raise DefinitionError(
            f"Stage {stage.name!r} of {pipeline!r} needs {needed!r}, which no earlier stage is named."
        )
    runs_over = seen[needed].over is not None
    if how == "needs" and runs_over:
        raise DefinitionError(
            f"Stage {needed!r} runs once per element, so {stage.name!r} must say gather({needed}) or each({needed})."
        )
    if how == "gather" and not runs_over:
        raise DefinitionError(f"Stage {needed!r} runs once, so {stage.name!r} must say needs({needed}), not gather.")
