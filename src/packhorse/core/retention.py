"""How long an ended job is kept."""

from __future__ import annotations

from packhorse.core.plan import TERMINAL, Defaults, Plan, Status

DAY = 86_400.0
KEEP = 7 * DAY


def purge_at(plan: Plan, status: Status, ended_at: float) -> float:
    """When record, indexes and objects go together: per status if the plan says so, else after a week."""
    return ended_at + plan.keep.get(status, KEEP)


def rule(plan: Plan) -> dict[Status, float]:
    """Seconds that a job of this plan is kept, for each way it may end."""
    return {status: plan.keep.get(status, KEEP) for status in sorted(TERMINAL)}


def kept(plan: Plan, defaults: Defaults) -> dict[Status, float]:
    """What the plan says, per status; where it says nothing, the deployment."""
    said = {} if "keep" in plan.unset else plan.keep
    return {status: said.get(status, defaults.kept.get(status, defaults.keep)) for status in sorted(TERMINAL)}
