"""Plans: which of them can run, and what a deployment adds to them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec.structs import replace

from packhorse.core import json, retention
from packhorse.core.plan import Defaults, Plan, StagePlan
from packhorse.errors import DefinitionError

OPEN = ("deadline", "pending", "revive")
"""What a pipeline may leave to the deployment, besides how long its jobs are kept."""
FILLED = "filled"


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
    for name, called in plan.outputs.items():
        if called not in seen:
            raise DefinitionError(
                f"Pipeline {plan.pipeline!r} has outputs={{{name!r}: {called!r}}}, and no stage of that name."
            )


def filled(plan: Plan, defaults: Defaults) -> Plan:
    """The plan with the deployment's word wherever its author left something open.

    Kept with the plan: every admission asks.
    """
    kept: tuple[Defaults, Plan] | None = plan.__dict__.get(FILLED)
    if kept is None or kept[0] != defaults:
        kept = plan.__dict__[FILLED] = (defaults, _filled(plan, defaults))
    return kept[1]


def _filled(plan: Plan, defaults: Defaults) -> Plan:
    stages = tuple(
        replace(stage, **{name: getattr(defaults, name) for name in stage.unset}, unset=()) for stage in plan.stages
    )
    rest: dict[str, Any] = {name: getattr(defaults, name) for name in OPEN if name in plan.unset}
    rest["keep"] = retention.kept(plan, defaults)
    bare = replace(plan, stages=stages, unset=(), fingerprint="", **rest)
    return replace(bare, fingerprint=json.fingerprint(bare))


def _check_need(pipeline: str, stage: StagePlan, needed: str, how: str, seen: Mapping[str, StagePlan]) -> None:
    if needed not in seen:
        raise DefinitionError(
            f"Stage {stage.name!r} of {pipeline!r} needs {needed!r}, which no earlier stage is named."
        )
    runs_over = seen[needed].over is not None
    if how == "needs" and runs_over:
        raise DefinitionError(
            f"Stage {needed!r} runs once per element, so {stage.name!r} must say gather({needed})"
            f" or each(gather({needed}))."
        )
    if how == "gather" and not runs_over:
        raise DefinitionError(f"Stage {needed!r} runs once, so {stage.name!r} must say needs({needed}), not gather.")
