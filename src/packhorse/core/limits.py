"""Limits and fair shares: what a task is counted under when it starts, and whose turn it takes.

A limit is a number for each key: of tasks that run at once, or of starts within a sliding window. The plan says what
the key is made of, a task's `LimitUse` has the key itself. A fair queue gives each share, a user or tenant, its turns.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import quote

import msgspec
from msgspec import Struct, field

if TYPE_CHECKING:
    from packhorse.core.models import Job, TaskId
    from packhorse.core.plan import Plan

WINDOWS: Mapping[str, float] = {"per_second": 1.0, "per_minute": 60.0, "per_hour": 3_600.0}
LONGEST = max(WINDOWS.values())
PARAMETER = "params."  # in front of the parameter that a limit goes by
KEY_LENGTH = 200  # characters of a value in a key; a longer one is cut and made unique by its hash
EVERYBODY = "*"  # the share of all tasks that have aging and no fairness: no escaped name has this character


class Limit(Struct, frozen=True, array_like=True):
    """One bound in a plan. Its name is what operators see and change."""

    name: str  # "album.user", "album.measure.user", "album.user.per_minute", "whisper-gpu"
    by: str  # "user", "tenant", "params.site"; empty: one key for all
    most: int
    window: float = 0.0
    """Seconds in which at most so many tasks start. 0: at most so many run at once."""
    default: Any = None  # of the parameter, if it is not submitted


class Fair(Struct, frozen=True, array_like=True):
    """Whose turns the tasks of a stage take in their queue."""

    by: Literal["user", "tenant", ""]  # empty: all tasks share the turns
    weights: Mapping[str, float] = field(default_factory=dict)  # by user or tenant; 1 for those that are not named
    aging: float | None = None  # seconds of waiting that count as much as one more of priority


class LimitUse(Struct, frozen=True, array_like=True):
    """A limit that a task is counted under from its start: until its lease ends, or for the window of a rate."""

    name: str
    key: str
    most: int
    """As the job's plan says it. A value that an operator has set for the name replaces it."""
    window: float = 0.0


class Share(Struct, frozen=True, array_like=True):
    """Whose turn a task takes in its queue, and its place among the tasks of that share."""

    name: str
    cost: float = 1.0  # of one start, in virtual time: 1 / weight
    rank: int = 0  # the smallest first, then the oldest job


def name_of(key: str) -> str:
    """The name of the limit that a key belongs to."""
    return key.partition("=")[0]


def window_of(name: str) -> float:
    """The window of a limit, from its name; 0 if it counts what runs at once."""
    return WINDOWS.get(name.rpartition(".")[2], 0.0)


def parameters_of(plan: Plan) -> dict[str, Any]:
    """The parameters that limits of the plan go by, with their defaults."""
    limits = (limit for stage in plan.stages for limit in stage.limits)
    return {each.by.removeprefix(PARAMETER): each.default for each in limits if each.by.startswith(PARAMETER)}


def values_from(plan: Plan, parameters: Mapping[str, Any]) -> dict[str, str]:
    """What a job keeps of its parameters, to be counted by."""
    return {name: _text(parameters.get(name, default)) for name, default in parameters_of(plan).items()}


def uses_of(job: Job, at: TaskId) -> tuple[LimitUse, ...]:
    """The limits that a task of the job is counted under, in the order of the plan."""
    if not job.plan.is_regulated:
        return ()
    limits = job.plan.stage(at.stage).limits
    return tuple(LimitUse(each.name, _key(each, job), each.most, each.window) for each in limits)


def share_of(job: Job, at: TaskId, due_at: float) -> Share | None:
    """Whose turn the task takes; None if its queue orders it by priority and age alone."""
    fair = job.plan.stage(at.stage).fair
    if fair is None:
        return None
    rank = -job.priority if fair.aging is None else round((due_at - job.priority * fair.aging) * 1000)
    if fair.by == "user":
        return Share(f"{_short(job.tenant)}/{_short(job.user)}", 1 / fair.weights.get(job.user, 1.0), rank)
    if fair.by == "tenant":
        return Share(_short(job.tenant), 1 / fair.weights.get(job.tenant, 1.0), rank)
    return Share(EVERYBODY, 1.0, rank)


def _key(limit: Limit, job: Job) -> str:
    if limit.by == "user":
        return f"{limit.name}={_short(job.tenant)}/{_short(job.user)}"
    if limit.by == "tenant":
        return f"{limit.name}={_short(job.tenant)}"
    if limit.by.startswith(PARAMETER):
        return f"{limit.name}={job.limit_values.get(limit.by.removeprefix(PARAMETER), 'null')}"
    return limit.name


def _text(value: Any) -> str:
    return _short(value if isinstance(value, str) else msgspec.json.encode(value, order="sorted").decode())


def _short(text: str) -> str:
    """Escaped, and with a hash in place of its end if it is long: an index entry has room for a few such names."""
    text = quote(text, safe="")
    if len(text) <= KEY_LENGTH:
        return text
    return f"{text[: KEY_LENGTH - 33]}~{hashlib.sha256(text.encode()).hexdigest()[:32]}"
