"""What can be said about a stage or a pipeline beside its code, and what it comes to in the plan."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypedDict

from packhorse.core import plan, publish_path
from packhorse.core.error_codes import CODE_PATTERN
from packhorse.core.plan import TERMINAL, Backoff, Status
from packhorse.define.durations import Duration, Size, seconds, size
from packhorse.define.introspection import check_name

NEVER = plan.Revive()


@dataclass(frozen=True, kw_only=True)
class Revive:
    """A policy: runs that fail with one of these codes are retried without a person.

    ``Revive(codes=("HTTP_500", "TIMEOUT"), times=3, backoff="5m", budget=100, per="1h")``: up to three times each,
    after five minutes, then ten, then twenty; of failures with one fingerprint at most a hundred in any hour.
    """

    codes: Sequence[str]
    times: int = 3
    backoff: Duration = 300.0
    budget: int = 100
    per: Duration = 3_600.0

    def to_plan(self) -> plan.Revive:
        """As it is in a plan. Raises ValueError."""
        codes = (self.codes,) if isinstance(self.codes, str) else tuple(self.codes)
        for code in codes:
            if not CODE_PATTERN.fullmatch(str(code)):
                raise ValueError(f"revive: {code!r} is not a code such as HTTP_500")
        return plan.Revive(
            codes,
            check_int("revive: times", self.times, 1),
            _positive("revive: backoff", seconds(self.backoff)),
            check_int("revive: budget", self.budget, 1),
            _positive("revive: per", seconds(self.per)),
        )


class StageOptions(TypedDict, total=False):
    name: str
    """Keeps the stored name when the function is renamed. Default: the function's name."""
    queue: str
    """Which workers take it. Default: ``default``."""
    retries: int
    """Attempts after the first. Default: 3."""
    backoff: Duration | tuple[Duration, Duration]
    """Wait before the second attempt, doubling; and the longest wait. Default: ``("1s", "60s")``."""
    timeout: Duration
    """Limit of one attempt. Default: ``10m``."""
    stall: Duration | None
    """Limit of the time without any progress. Default: none."""
    memory: Size | None
    """Limit of the process tree, such as ``512MB``. Default: none."""
    weight: float
    """Share of the job's progress, against the other stages. Default: 1."""
    elements: int
    """How many elements ``each`` may give it. Default: 1000."""


class PipelineOptions(TypedDict, total=False):
    one_per: Literal["user"] | None
    """Admit one active job at a time of each user. Default: any number."""
    slot: str | None
    """Pipelines that name the same slot share it. Default: the pipeline's name."""
    keep: Duration | Mapping[str, Duration]
    """How long ended jobs are kept, in all or per status. Default: ``7d``."""
    deadline: Duration
    """Limit of a whole run. Default: ``24h``."""
    pending: Duration
    """Limit of the time until a worker starts any stage of a run. Default: ``24h``."""
    revive: Revive | None
    """Which failed runs are begun again by themselves. Default: what the settings say, which is none."""
    publish: str | None
    """Where the files of a completed job are found as well, such as ``{schedule}/{date}``. Default: nowhere."""
    outputs: Mapping[str, str] | None
    """What the app's users call the files of its stages, as ``{"onnx_path": "onnx"}``. Default: nothing else."""
    description: str
    """What people are told about it. Default: the docstring of its parameters, of a job that of its function."""


class JobOptions(StageOptions, PipelineOptions, total=False):
    pass


class ScheduleOptions(TypedDict, total=False):
    zone: str
    """The time zone whose clock the cron line is read by, such as ``Europe/Berlin``. Default: ``UTC``."""
    user: str
    """Whose jobs they are. Default: ``local``."""
    active: bool
    """Whether it begins at once. Default: it does."""
    overlap: Literal["skip", "queue", "cancel"]
    """While the run before is not over, leave this one out, let it wait, or cancel that one. Default: ``skip``."""
    misfire: Literal["skip", "catch_up"]
    """What to do with a tick that nobody was there to run. Default: ``skip``."""
    window: Duration
    """How old a tick may be to be caught up with. Default: ``1h``."""
    labels: Mapping[str, str]
    """Kept with it and shown with it, not looked at."""


STAGE_DEFAULTS = ("retries", "backoff", "timeout")
PIPELINE_DEFAULTS = ("deadline", "keep", "pending", "revive")


def unset_options(given: Mapping[str, Any], names: tuple[str, ...]) -> tuple[str, ...]:
    """What nobody said, and the deployment's settings therefore decide."""
    return tuple(name for name in names if name not in given)


def check_names(given: Iterable[str], options: type[Any], what: str) -> None:
    """Raises TypeError with the options there are, in place of Python's own about a function nobody has called."""
    known = list(options.__annotations__)
    for name in given:
        if name not in known:
            raise TypeError(f"{what} has no option {name!r}; it has {', '.join(known)}")


def stage_limits(
    *,
    queue: str = "default",
    retries: int = 3,
    backoff: Duration | tuple[Duration, Duration] = (1.0, 60.0),
    timeout: Duration = 600.0,
    stall: Duration | None = None,
    memory: Size | None = None,
    weight: float = 1.0,
    elements: int = 1000,
) -> dict[str, Any]:
    """The fields of a `StagePlan`. Raises ValueError."""
    return {
        "queue": check_name(queue),
        "retries": check_int("retries", retries, 0),
        "backoff": _backoff(backoff),
        "timeout": _positive("timeout", seconds(timeout)),
        "stall": None if stall is None else _positive("stall", seconds(stall)),
        "memory": None if memory is None else int(_positive("memory", size(memory))),
        "weight": _positive("weight", weight),
        "elements": check_int("elements", elements, 1),
    }


def pipeline_limits(
    name: str,
    *,
    one_per: Literal["user"] | None = None,
    slot: str | None = None,
    keep: Duration | Mapping[str, Duration] | None = None,
    deadline: Duration = 86_400.0,
    pending: Duration = 86_400.0,
    revive: Revive | None = None,
    publish: str | None = None,
    outputs: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """The fields of a `Plan`. Raises ValueError."""
    if one_per not in (None, "user"):
        raise ValueError(f'one_per can only be "user", not {one_per!r}')
    if slot is not None and one_per is None:
        raise ValueError('slot= says what is admitted one at a time, so it needs one_per="user"')
    return {
        "slot": None if one_per is None else check_name(name if slot is None else slot),
        "keep": {} if keep is None else _keep(keep),
        "deadline": _positive("deadline", seconds(deadline)),
        "pending": _positive("pending", seconds(pending)),
        "revive": NEVER if revive is None else revive.to_plan(),
        "publish": "" if publish is None else publish_path.check_pattern(publish),
        "outputs": {check_label("outputs", name): stage for name, stage in (outputs or {}).items()},
    }


def check_int(what: str, value: Any, least: int, most: float = math.inf) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        bound = f"at least {least}" if most == math.inf else f"from {least} to {most}"
        raise ValueError(f"{what} must be a whole number, {bound}, not {value!r}")
    return value


def check_statuses(given: Mapping[str, str]) -> dict[Status, str]:
    """What an app calls the statuses. Raises ValueError."""
    known = [status.value for status in Status]
    if not {*given} <= {*known}:
        raise ValueError(f"statuses= is about {', '.join(known)}; {sorted(given)} has other names")
    return {Status(status): check_label("statuses", called) for status, called in given.items()}


def check_label(what: str, value: Any) -> str:
    if not isinstance(value, str) or not 0 < len(value) <= 63 or not value.isprintable():
        raise ValueError(f"{what}= has {value!r}, which is no word of up to 63 characters")
    return value


def _positive(what: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
        raise ValueError(f"{what} must be more than 0, not {value!r}")
    return float(value)


def _backoff(value: Duration | tuple[Duration, Duration]) -> Backoff:
    base, cap = (seconds(part) for part in value) if isinstance(value, tuple) else (seconds(value), None)
    if cap is None:
        cap = max(base, Backoff().cap)
    if cap < base:
        raise ValueError(f"backoff cannot start at {base:g}s and stop growing at {cap:g}s")
    return Backoff(base, cap)


def _keep(value: Duration | Mapping[str, Duration]) -> dict[Status, float]:
    if not isinstance(value, Mapping):
        return dict.fromkeys(sorted(TERMINAL), seconds(value))
    if not value.keys() <= TERMINAL:
        raise ValueError(f"keep is per {', '.join(sorted(TERMINAL))}; {sorted(value)} has other names")
    return {Status(status): seconds(time) for status, time in value.items()}
