"""How long an ended job is kept."""

from __future__ import annotations

from packhorse.core.model import Plan, Status

DAY = 86_400.0
KEEP = 7 * DAY


def purge_at(plan: Plan, status: Status, ended_at: float) -> float:
    """When record, indexes and objects go together: per status if the plan says so, else after a week."""
    return ended_at + plan.keep.get(status, KEEP)
