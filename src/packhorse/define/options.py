"""Options of stages, pipelines, jobs and schedules: types, checks, and their values in the plan."""

from __future__ import annotations

import math
import re
import string
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from functools import lru_cache
from typing import Any, Literal, Required, TypedDict, get_args

from packhorse.core import json, plan, publish_path
from packhorse.core.conditions import Condition
from packhorse.core.error_codes import CODE_PATTERN
from packhorse.core.limits import PARAMETER, WINDOWS
from packhorse.core.plan import TERMINAL, Backoff, OnConflict, Status
from packhorse.define.introspection import check_name

Duration = float | str | timedelta
Size = int | str

UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0, "w": 604_800.0}
SIZES = {"": 1, "b": 1} | {k + b: 1024**power for power, k in enumerate("kmgt", 1) for b in ("", "b", "ib")}

BARE = {(name, "", None) for name in ("source", "name", "suffix")} | {(None, None, None)}
"""What `string.Formatter.parse` finds after each text of a valid `result_name`."""

_NUMBER = r"([0-9]+(?:\.[0-9]+)?)"
_PART = re.compile(rf"\s*{_NUMBER}\s*(ms|s|m|h|d|w)")
_WHOLE = re.compile(rf"(?:{_PART.pattern})+")
_SIZE = re.compile(rf"{_NUMBER}\s*((?:[kmgt]i?)?b|[kmgt])?", re.IGNORECASE)


def seconds(value: Duration) -> float:
    """``"10m"``, ``"1h30m"``, ``"250ms"``, ``90``, or a ``timedelta``. Raises ValueError for anything else."""
    if isinstance(value, timedelta):
        found: float | None = value.total_seconds()
    elif isinstance(value, str):
        found = _parse(value)
    else:
        found = _number(value)
    if found is None or not math.isfinite(found) or found < 0:
        raise ValueError(f'{value!r} is not a duration: write "250ms", "90s", "10m", "1.5h", "7d" or seconds')
    return found


def size(value: Size) -> int:
    """``"512MB"``, ``"2GiB"`` or bytes; K, M, G and T are powers of 1024. Raises ValueError for anything else."""
    match = _SIZE.fullmatch(value.strip()) if isinstance(value, str) else None
    found = float(match[1]) * SIZES[(match[2] or "").lower()] if match else _number(value)
    if found is None or not math.isfinite(found) or found < 0:
        raise ValueError(f'{value!r} is not a size: write "512MB", "2GiB" or bytes')
    return int(found)


@lru_cache(maxsize=256)
def _parse(text: str) -> float | None:
    if _WHOLE.fullmatch(text.strip()):
        return sum(float(number) * UNITS[unit] for number, unit in _PART.findall(text))
    return _number(text)


def _number(value: object) -> float | None:
    """A plain number, also as the text of an environment variable; never a bool."""
    if isinstance(value, str):
        return float(value) if re.fullmatch(_NUMBER, value.strip()) else None
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


NEVER = plan.Revive()


@dataclass(frozen=True, kw_only=True)
class Revive:
    """A policy for automatic retries of runs that fail with one of these codes.

    ``Revive(codes=("HTTP_500", "TIMEOUT"), times=3, backoff="5m", budget=100, per="1h")``: up to three retries per
    job, after 5, 10 and 20 minutes, and at most 100 retries per failure fingerprint in an hour.
    """

    codes: Sequence[str]
    times: int = 3
    backoff: Duration = 300.0
    budget: int = 100
    per: Duration = 3_600.0

    def to_plan(self) -> plan.Revive:
        """The policy as stored in a plan. Raises ValueError."""
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


@dataclass(frozen=True)
class AlertRate:
    """Alert when ``failures`` runs have failed within ``per``, at most once in that time.

    ``alerts=AlertRate(10, per="1h")`` on a pipeline.
    """

    failures: int
    per: Duration = 3_600.0

    def to_plan(self) -> plan.AlertRate:
        """The policy as stored in a plan. Raises ValueError."""
        return plan.AlertRate(
            check_int("alerts: failures", self.failures, 2), _positive("alerts: per", seconds(self.per))
        )


FIXED = "name:"  # in front of the name of a limit that several pipelines share
MOST_AT_LIMIT = 1_000_000


@dataclass(frozen=True, kw_only=True)
class Limit:
    """Maximum tasks at once, or maximum starts in any second, minute or hour, on all workers together.

    ``by`` says what is counted separately: ``"user"``, ``"tenant"``, or a parameter such as ``"params.site"``. All
    pipelines with ``"name:whisper-gpu"`` share one limit of that name.
    """

    by: str = field(kw_only=False)
    at_once: int | None = None
    per_second: int | None = None
    per_minute: int | None = None
    per_hour: int | None = None

    def to_plan(self, owner: str) -> tuple[plan.Limit, ...]:
        """Its bounds as stored in a plan, named after the pipeline or stage that it is on. Raises ValueError."""
        name, by = _limit_name(self.by, owner)
        bounds = {"at_once": self.at_once, **{each: getattr(self, each) for each in WINDOWS}}
        given = {each: most for each, most in bounds.items() if most is not None}
        if not given:
            raise ValueError(f"Limit({self.by!r}) needs a number: {', '.join(bounds)}")
        return tuple(
            plan.Limit(
                name if each == "at_once" else f"{name}.{each}",
                by,
                check_int(f"Limit({self.by!r}): {each}", most, 1, MOST_AT_LIMIT),
                WINDOWS.get(each, 0.0),
            )
            for each, most in given.items()
        )


def _limit_name(by: Any, owner: str) -> tuple[str, str]:
    if isinstance(by, str) and by.removeprefix(FIXED).removeprefix(PARAMETER).rpartition(".")[2] in WINDOWS:
        raise ValueError(f"a limit cannot go by {by!r}: names that end in {', '.join(WINDOWS)} are those of rates")
    if by in ("user", "tenant") or (isinstance(by, str) and by.startswith(PARAMETER) and by != PARAMETER):
        return f"{owner}.{by}", by
    if isinstance(by, str) and by.startswith(FIXED):
        return check_name(by.removeprefix(FIXED)), ""
    raise ValueError(f'a limit goes by "user", "tenant", a parameter as in "params.site", or "name:…", not {by!r}')


class StageOptions(TypedDict, total=False):
    name: str
    """Stored name of the stage, so that the function can be renamed. Default: the function's name."""
    queue: str
    """Queue whose workers run it. Default: ``default``."""
    retries: int
    """Maximum retries after the first attempt. Default: 3."""
    backoff: Duration | tuple[Duration, Duration]
    """Delay before the first retry, doubled each time, and the maximum delay. Default: ``("1s", "60s")``."""
    timeout: Duration
    """Time limit of one attempt. Default: ``10m``."""
    stall: Duration | None
    """Time limit without progress. Default: none."""
    memory: Size | None
    """Memory limit of the process tree, such as ``512MB``. Default: none."""
    retry_on: Sequence[Literal["timeout", "memory"]]
    """Exceeded limits after which the stage is retried. Most stages would exceed them again. Default: none."""
    weight: float
    """Weight of the stage in the job's progress. Default: 1."""
    elements: int
    """Maximum elements of an ``each`` stage. Default: 1000."""
    when: Condition | None
    """Condition on the parameters, such as ``contains("processors", "ocr")``; else it is skipped. Default: none."""
    limits: Sequence[Limit]
    """How many of its tasks run at once or start in a time, beside the limits of the pipeline. Default: none."""
    fair: Literal["user", "tenant"] | None
    """Let users or tenants take turns in its queue, however many jobs each has. Default: as the pipeline."""
    weights: Mapping[str, float] | None
    """How many turns a user or tenant gets, such as ``{"acme": 3}``; the others get one. Default: one each."""
    aging: Duration | None
    """Time of waiting that counts as much as one more of priority, such as ``10m``. Default: none."""


class ElementOptions(StageOptions, total=False):
    """Options of a stage that runs once per element."""

    tolerate: Required[float]
    """Elements that may fail permanently without failing the run: a number (3) or a share (0.05). Default: none."""


class DownloadOptions(TypedDict, total=False):
    """Limits of a pipeline's downloads. What is left out is as in the settings; 0 means unlimited."""

    per: Literal["user", "key"]
    """Whom a download is counted for: the job's user, or the key. Default: the settings, which say ``user``."""
    at_once: int
    """Concurrent downloads."""
    per_10s: int
    """Downloads started in 10 seconds."""
    per_minute: int
    """Downloads started in a minute."""
    bytes_per_hour: Size
    """Bytes downloaded in an hour, such as ``1GB``."""
    bytes_per_day: Size
    """Bytes downloaded in 24 hours."""


class RunOptions(TypedDict, total=False):
    """Options that only a pipeline has."""

    one_per: Literal["user"] | None
    """Allow one active job per user. Default: any number."""
    slot: str | None
    """Name of the slot that ``one_per`` uses. Pipelines with the same name share it. Default: the pipeline's name."""
    on_conflict: OnConflict
    """While the user has an active job: ``refuse`` a new one, ``queue`` it, or ``replace`` the active one, which is
    cancelled. Default: ``refuse``."""
    keep: Duration | Mapping[str, Duration]
    """Retention of ended jobs, for all or per status. Default: ``7d``."""
    deadline: Duration
    """Time limit of a whole run, counted from the submit. Default: ``24h``."""
    pending: Duration
    """Time limit until a worker starts the run. Default: ``24h``."""
    run_timeout: Duration | None
    """Time limit of a run from its first start, however long it waited for a worker. Default: none."""
    revive: Revive | None
    """Which failed runs are retried automatically. Default: the settings, which retry none."""
    alerts: Literal["new", "every"] | AlertRate
    """Which failures people are alerted to: each new kind, every failure, or many in a short time. Default: ``new``."""
    publish: str | None
    """Additional path of a completed job's files, such as ``{schedule}/{date}``. Default: none."""
    outputs: Mapping[str, str] | None
    """The app's own names for the files of its stages, such as ``{"onnx_path": "onnx"}``. Default: none."""
    has_output: bool
    """Whether each job also has these files as ``output``, not only in its ``alias``. Default: no."""
    result_name: str | None
    """File name of the downloaded result: ``{source}`` is the primary input without its suffix, or the pipeline;
    ``{name}`` the file that the stage returned, ``{suffix}`` its suffix. Default: ``{source}-{name}``."""
    downloads: DownloadOptions | None
    """Limits of its downloads, such as ``{"per": "key", "per_minute": 20}``. Default: the settings."""
    search: Sequence[str]
    """Parameters whose values jobs are found by: ``("site",)``, and ``site=oslo`` finds them. Default: none."""
    description: str
    """Description shown to people. Default: the docstring of the parameters, or of the function of a job."""


class PipelineOptions(RunOptions, total=False):
    limits: Sequence[Limit]
    """How many tasks of all its stages run at once or start in a time, together. Default: none."""
    fair: Literal["user", "tenant"] | None
    """Let users or tenants take turns in its queues, however many jobs each has. Default: the oldest job goes first."""
    weights: Mapping[str, float] | None
    """How many turns a user or tenant gets, such as ``{"acme": 3}``; the others get one. Default: one each."""
    aging: Duration | None
    """Time of waiting that counts as much as one more of priority, such as ``10m``. Default: none."""


class JobOptions(StageOptions, RunOptions, total=False):
    pass


class ScheduleOptions(TypedDict, total=False):
    zone: str
    """Time zone of the cron expression, such as ``Europe/Berlin``. Default: ``UTC``."""
    user: str
    """User of the jobs. Default: ``local``."""
    active: bool
    """Whether the schedule is active. Default: ``True``."""
    overlap: Literal["skip", "queue", "cancel"]
    """While the previous run is active: skip the new run, queue it, or cancel the previous one. Default: ``skip``."""
    misfire: Literal["skip", "catch_up"]
    """What to do with a tick that no worker ran in time. Default: ``skip``."""
    window: Duration
    """Maximum age of a tick that is caught up. Default: ``1h``."""
    labels: Mapping[str, str]
    """Free labels, stored and shown with the schedule."""


def limits_of(owner: str, given: Sequence[Limit]) -> tuple[plan.Limit, ...]:
    """As stored in a plan. Raises ValueError."""
    wanted: Any = given  # what a user without mypy may give
    if not isinstance(wanted, list | tuple) or not all(isinstance(each, Limit) for each in wanted):
        raise ValueError(f'limits takes a list such as [Limit("user", at_once=2)], not {wanted!r}')
    return tuple(bound for each in given for bound in each.to_plan(owner))


def sort_limits(given: Iterable[plan.Limit]) -> tuple[plan.Limit, ...]:
    """Those that stop fewest others first: a task waits under the first that is full."""
    order = {"user": 0, "tenant": 2, "": 3}
    return tuple(sorted(given, key=lambda limit: order.get(limit.by, 1)))


def fair_of(
    fair: Literal["user", "tenant"] | None = None,
    weights: Mapping[str, float] | None = None,
    aging: Duration | None = None,
) -> plan.Fair | None:
    """As stored in a plan. Raises ValueError."""
    if fair not in (None, "user", "tenant"):
        raise ValueError(f'fair can only be "user" or "tenant", not {fair!r}')
    if weights and fair is None:
        raise ValueError("weights= needs fair=")
    if weights is not None and not isinstance(weights, Mapping):
        raise ValueError(f'weights takes a mapping such as {{"acme": 3}}, not {weights!r}')
    by: Literal["user", "tenant", ""] = fair if fair is not None else ""
    if not by and aging is None:
        return None
    checked = {name: _positive(f"weights: {name}", weight) for name, weight in (weights or {}).items()}
    return plan.Fair(by, checked, None if aging is None else _positive("aging", seconds(aging)))


START_OPTIONS = ("limits", "fair", "weights", "aging")
"""What a pipeline and a stage may say about when tasks start."""
STAGE_DEFAULTS = ("retries", "backoff", "timeout")
PIPELINE_DEFAULTS = ("deadline", "keep", "pending", "revive")


def unset_options(given: Mapping[str, Any], names: tuple[str, ...]) -> tuple[str, ...]:
    """Options that were not given, so that the deployment's settings apply."""
    return tuple(name for name in names if name not in given)


def check_names(given: Iterable[str], options: type[Any], what: str) -> None:
    """Raises TypeError that lists the valid options."""
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
    retry_on: Sequence[Literal["timeout", "memory"]] = (),
    weight: float = 1.0,
    elements: int = 1000,
    tolerate: float | None = None,
    when: Condition | None = None,
    limits: Sequence[Limit] = (),
    fair: Literal["user", "tenant"] | None = None,
    weights: Mapping[str, float] | None = None,
    aging: Duration | None = None,
    owner: str = "",
) -> dict[str, Any]:
    """The fields of a `StagePlan`. Raises ValueError."""
    return {
        "queue": check_name(queue),
        "retries": check_int("retries", retries, 0),
        "backoff": _backoff(backoff),
        "timeout": _positive("timeout", seconds(timeout)),
        "stall": None if stall is None else _positive("stall", seconds(stall)),
        "memory": None if memory is None else int(_positive("memory", size(memory))),
        "retry_on": _retry_on(retry_on),
        "weight": _positive("weight", weight),
        "elements": check_int("elements", elements, 1),
        "when": None if when is None else _condition(when),
        "tolerate": None if tolerate is None else _tolerance(tolerate),
        "limits": limits_of(owner, limits),
        "fair": fair_of(fair, weights, aging),
    }


def pipeline_limits(
    name: str,
    *,
    one_per: Literal["user"] | None = None,
    slot: str | None = None,
    on_conflict: OnConflict = "refuse",
    keep: Duration | Mapping[str, Duration] | None = None,
    deadline: Duration = 86_400.0,
    pending: Duration = 86_400.0,
    run_timeout: Duration | None = None,
    revive: Revive | None = None,
    alerts: Literal["new", "every"] | AlertRate = "new",
    publish: str | None = None,
    outputs: Mapping[str, str] | None = None,
    has_output: bool = False,
    result_name: str | None = None,
    downloads: DownloadOptions | None = None,
    search: Sequence[str] = (),
) -> dict[str, Any]:
    """The fields of a `Plan`. Raises ValueError."""
    if one_per not in (None, "user"):
        raise ValueError(f'one_per can only be "user", not {one_per!r}')
    if slot is not None and one_per is None:
        raise ValueError('slot= needs one_per="user"')
    if on_conflict not in get_args(OnConflict):
        raise ValueError(f'on_conflict can only be "refuse", "queue" or "replace", not {on_conflict!r}')
    if on_conflict != "refuse" and one_per is None:
        raise ValueError('on_conflict= needs one_per="user"')
    if has_output and not outputs:
        raise ValueError("has_output= needs outputs=")
    return {
        "slot": None if one_per is None else check_name(name if slot is None else slot),
        "on_conflict": on_conflict,
        "keep": {} if keep is None else _keep(keep),
        "deadline": _positive("deadline", seconds(deadline)),
        "pending": _positive("pending", seconds(pending)),
        "run_timeout": None if run_timeout is None else _positive("run_timeout", seconds(run_timeout)),
        "revive": NEVER if revive is None else revive.to_plan(),
        "alerts": _alerts(alerts),
        "publish": "" if publish is None else publish_path.check_pattern(publish),
        "outputs": {check_label("outputs", name): stage for name, stage in (outputs or {}).items()},
        "has_output": has_output,
        "result_name": plan.RESULT_NAME if result_name is None else _result_name(result_name),
        "downloads": None if downloads is None else _downloads(downloads),
        "search": _search(search),
    }


def _search(value: Sequence[str]) -> tuple[str, ...]:
    if isinstance(value, str):
        raise ValueError(f'search takes names of parameters such as ("site",), not {value!r}')
    return tuple(dict.fromkeys(value))


def _alerts(value: Any) -> plan.AlertRate | None:
    if isinstance(value, AlertRate):
        return value.to_plan()
    if value not in ("new", "every"):
        raise ValueError(f'alerts= takes "new", "every" or AlertRate(10, per="1h"), not {value!r}')
    return plan.AlertRate() if value == "every" else None


def _result_name(value: str) -> str:
    """Without attributes, items, conversions and formats: a width could ask for any amount of memory."""
    check_label("result_name", value)
    message = f"result_name takes a pattern of {{source}}, {{name}} and {{suffix}}, not {value!r}"
    try:
        is_bare = {each[1:] for each in string.Formatter().parse(value)} <= BARE
    except ValueError as error:
        raise ValueError(message) from error
    if not is_bare:
        raise ValueError(message)
    return value


def _downloads(value: DownloadOptions) -> plan.DownloadLimits:
    if not isinstance(value, Mapping):
        raise ValueError(f'downloads takes a mapping such as {{"per_minute": 20}}, not {value!r}')
    check_names(value, DownloadOptions, "downloads")
    given: dict[str, Any] = dict(value)
    per = given.pop("per", None)
    if per not in (None, "user", "key"):
        raise ValueError(f'downloads: per can only be "user" or "key", not {per!r}')
    found = {name: size(each) if name.startswith("bytes") else each for name, each in given.items()}
    return plan.DownloadLimits(per, **{name: check_int(f"downloads: {name}", each, 0) for name, each in found.items()})


def _condition(value: Any) -> Condition:
    if not isinstance(value, Condition):
        raise ValueError(f'when takes a condition such as contains("processors", "ocr"), not {value!r}')
    for atom in value.atoms():
        if atom.op not in ("contains", "equals", "is_set") or not isinstance(atom.parameter, str):
            raise ValueError(f"when: {atom.op}_ takes conditions, and at least one")
        try:
            json.encode(atom.value)
        except (TypeError, ValueError) as error:
            raise ValueError(f"when: {atom.value!r} is no JSON value") from error
    return value


def _tolerance(value: Any) -> plan.Tolerance:
    if isinstance(value, float) and 0 < value <= 1:
        return plan.Tolerance(share=value)
    if isinstance(value, int) and not isinstance(value, bool) and value > 0:
        return plan.Tolerance(value)
    raise ValueError(f"tolerate takes a number of elements such as 3, or a share of them such as 0.05, not {value!r}")


def _retry_on(value: Sequence[str]) -> tuple[str, ...]:
    if isinstance(value, str) or not {*value} <= {"timeout", "memory"}:
        raise ValueError(f'retry_on takes ("timeout",), ("memory",) or ("timeout", "memory"), not {value!r}')
    return tuple(sorted({*value}))


WHILE = f"{Status.RUNNING.value}:"
"""Begins the key of a word for a job while one of its stages runs."""


def check_int(what: str, value: Any, least: int, most: float = math.inf) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        bound = f"at least {least}" if most == math.inf else f"from {least} to {most}"
        raise ValueError(f"{what} must be a whole number, {bound}, not {value!r}")
    return value


def check_statuses(given: Mapping[str, str]) -> tuple[dict[Status, str], dict[str, str]]:
    """The app's own names for statuses, and for running stages (``running:onnx``). Raises ValueError."""
    known = [status.value for status in Status]
    stages = {name: name.removeprefix(WHILE) for name in given if name.startswith(WHILE) and name != WHILE}
    if not {*given} <= {*known, *stages}:
        raise ValueError(f"statuses= takes {', '.join(known)} and {WHILE}STAGE, not {sorted(given)}")
    words = {name: check_label("statuses", called) for name, called in given.items()}
    return (
        {Status(name): word for name, word in words.items() if name not in stages},
        {stage: words[name] for name, stage in stages.items()},
    )


def check_label(what: str, value: Any) -> str:
    if not isinstance(value, str) or not 0 < len(value) <= 63 or not value.isprintable():
        raise ValueError(f"{what}= takes names of up to 63 printable characters, not {value!r}")
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
        raise ValueError(f"keep takes {', '.join(sorted(TERMINAL))}, not {sorted(value)}")
    return {Status(status): seconds(time) for status, time in value.items()}
