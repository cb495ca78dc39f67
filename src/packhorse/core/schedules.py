"""Schedules: terms, versions, ticks and runs. This module decides, stores commit.

A tick is a time of the cron expression. Claiming a tick writes a run for it and moves the schedule to the next tick, in
one step. Any worker then carries the run out, with the version that was claimed with it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Literal, get_args
from urllib.parse import quote

from msgspec import Struct, field
from msgspec.structs import asdict, replace

from packhorse.core import cron, json
from packhorse.core.records import IndexEntry, Ref, time_place
from packhorse.core.text import CONTROLS
from packhorse.errors import NotAllowed

LATE = 60.0  # Seconds after which an unclaimed tick counts as missed. Long enough for a worker to restart.
MAX_COUNTED = 1000  # Maximum missed ticks counted. More are reported as "more than" this number.
MAX_WAITING = 10  # maximum runs of one schedule that wait for an earlier run
MAX_VERSIONS = 1000  # maximum versions kept per schedule
MISSED = "No worker ran it in time."
CODE = "code"  # author of a version that comes from the app's code

Overlap = Literal["skip", "queue", "cancel"]
Misfire = Literal["skip", "catch_up"]

MAX_TEXT = 255
MAX_SUMMARY = 2000  # characters of a result's message and output that its run keeps
MAX_LABELS = 32
MAX_WINDOW = 366 * 86_400.0

RunStatus = Literal["due", "fired", "completed", "failed", "cancelled", "skipped", "missed"]

OPEN: frozenset[str] = frozenset({"due", "fired"})


class Terms(Struct, frozen=True):
    """The editable part of a schedule. Each version has its own terms."""

    pipeline: str
    parameters: bytes  # JSON, stored unchanged
    cron: str
    zone: str = "UTC"
    user: str = "local"
    active: bool = True
    overlap: Overlap = "skip"
    misfire: Misfire = "skip"
    window: float = 3600.0  # maximum age in seconds of a missed tick that is caught up
    labels: Mapping[str, str] = field(default_factory=dict)


class Schedule(Struct, frozen=True, omit_defaults=True):
    tenant: str
    id: str
    terms: Terms
    version: int
    stamp: int = 1
    """Incremented by every write, claims included. A decision based on an older stamp is refused."""
    next_at: float | None = None  # the next tick to claim; None while paused or deleted
    last_at: float = 0.0  # the last tick that was claimed
    runs: int = 0
    declared: Terms | None = None  # The terms in the app's code. Edits by people take precedence.
    created_at: float = 0.0
    since: int = 1  # the version with which it was created, again after a delete
    updated_at: float = 0.0
    updated_by: str = ""
    ended_at: float | None = None

    @property
    def is_adrift(self) -> bool:
        return self.declared is not None and self.declared != self.terms


class Revision(Struct, frozen=True):
    """One version of a schedule: its author, time and reason."""

    tenant: str
    schedule: str
    version: int
    terms: Terms
    author: str
    at: float  # never earlier than a tick claimed with the version before
    action: str
    reason: str = ""


class Run(Struct, frozen=True, omit_defaults=True):
    """The record of a tick. Several missed ticks share one record."""

    tenant: str
    schedule: str
    tick: float
    version: int
    status: RunStatus = "due"
    stamp: int = 1
    is_manual: bool = False
    message: str = ""
    job_id: str | None = None
    trace_id: str = ""
    started_at: float | None = None
    ended_at: float | None = None
    due_at: float | None = None  # when a worker takes it; None once it is decided
    until: float | None = None  # the last of several missed ticks, of which `tick` is the first
    count: int = 1
    n: int = 0  # counts the runs of its schedule, in the order of their ticks
    output: str = ""  # the artifact that the job's result names as its output, behind the id of its job and a slash

    @property
    def is_open(self) -> bool:
        return self.status in OPEN


class NotedRun(Struct, frozen=True, omit_defaults=True):
    """What the commit of its job says of a run."""

    status: RunStatus
    job_id: str
    trace_id: str
    message: str = ""
    started_at: float | None = None
    ended_at: float | None = None
    output: str = ""


class Output(Struct, frozen=True):
    """The artifact that a job's result names as its output; one of an earlier job, if nothing has changed since."""

    job_id: str
    artifact: str


class Summary(Struct, frozen=True):
    """What the result of a scheduled job says of itself: its fields ``message`` and ``output``."""

    message: str = ""
    output: Output | None = None

    @property
    def address(self) -> str:
        """Job and artifact, as a run keeps them."""
        return "" if self.output is None else f"{self.output.job_id}/{self.output.artifact}"


def summarize(result: bytes) -> Summary:
    """Empty for a result that is no object, or has something else under these names. A long message is cut."""
    try:
        found = json.decode(result, Summary)
    except ValueError:
        return Summary()
    if len(found.address) > MAX_SUMMARY:
        return Summary(found.message[:MAX_SUMMARY])
    return Summary(found.message[: MAX_SUMMARY - len(found.address)], found.output)


class Declared(Struct, frozen=True):
    id: str
    terms: Terms


class Move(Struct, frozen=True):
    """A decision about one schedule, committed atomically."""

    before: Schedule | None
    after: Schedule
    revision: Revision | None = None
    runs: tuple[Run, ...] = ()


# Terms.


def check_terms(terms: Terms, now: float) -> None:
    """Raise InvalidInput with all errors. The parameters are checked elsewhere, against the pipeline."""
    if found := list(_term_errors(terms, now)):
        raise cron.invalid(found, "The schedule is not valid: ")


def _term_errors(terms: Terms, now: float) -> Iterator[tuple[str, str]]:
    if not _is_text(terms.user) or CONTROLS.search(terms.user):
        yield "user_id", f"It must be a text of 1 to {MAX_TEXT} characters, without control characters"
    if terms.overlap not in get_args(Overlap):
        yield "overlap", f"It must be one of {', '.join(get_args(Overlap))}"
    if terms.misfire not in get_args(Misfire):
        yield "misfire", f"It must be one of {', '.join(get_args(Misfire))}"
    if not 0 <= terms.window <= MAX_WINDOW:
        yield "window", "It must be between 0 and 366 days"
    if len(terms.labels) > MAX_LABELS:
        yield "labels", f"At most {MAX_LABELS} labels are allowed"
    if not all(_is_text(name) and _fits(value) for name, value in terms.labels.items()):
        yield "labels", f"Names and values must be texts of at most {MAX_TEXT} characters"
    yield from cron.find_errors(terms.cron, terms.zone, now)


def _is_text(text: object) -> bool:
    return text != "" and _fits(text)


def _fits(text: object) -> bool:
    """Terms from an app's code have not been checked before."""
    return isinstance(text, str) and len(text) <= MAX_TEXT and "\0" not in text


def diff_terms(old: Terms, new: Terms) -> list[tuple[str, Any, Any]]:
    """Field, old value and new value of each difference. Parameters are compared as a whole."""
    was, now = asdict(old), asdict(new)
    return [(name, was[name], now[name]) for name in was if was[name] != now[name]]


# Ticks.


def claim(schedule: Schedule, now: float, hold: float = 0.0) -> Move | None:
    """Claim the tick that is due: a run to carry out, and a record of missed ticks. None if nothing is due.

    If several are due, the last one runs if it is recent enough; the others are recorded as missed.
    """
    tick, terms = schedule.next_at, schedule.terms
    if tick is None or tick > now:
        return None
    last = cron.last_tick(terms.cron, terms.zone, now, tick)
    runs: list[Run] = []
    if now - last <= _max_delay(terms):
        runs.append(_run(schedule, last, due_at=now + hold))
        if last > tick:
            before = cron.last_tick(terms.cron, terms.zone, last - 1.0, tick)
            runs.append(_missed_run(schedule, tick, before))
    else:
        runs.append(_missed_run(schedule, tick, last))
    moved = replace(schedule, stamp=schedule.stamp + 1, last_at=last, runs=schedule.runs + len(runs))
    numbered = tuple(replace(run, n=moved.runs - i) for i, run in enumerate(runs))  # the newest comes first
    return Move(schedule, replace(moved, next_at=_next(moved, max(now, last))), runs=numbered)


def is_too_late(run: Run, terms: Terms, now: float) -> bool:
    """Whether its worker died and no other took over in time. A run that waits for another is never late.

    A tick may be claimed at the last moment, so a run has LATE seconds more than a tick.
    """
    return not run.is_manual and not run.message and now - run.tick > _max_delay(terms) + LATE


def pass_over(schedule: Schedule) -> Move:
    """Move to the next tick without a run: this tick has one already, from before the clock was set back."""
    assert schedule.next_at is not None
    moved = replace(schedule, stamp=schedule.stamp + 1, last_at=max(schedule.last_at, schedule.next_at))
    return Move(schedule, replace(moved, next_at=_next(moved, schedule.next_at)))


def realign(schedule: Schedule, now: float) -> Move | None:
    """Correct the next tick after the clock was set back or the time zone rules changed. None if it is right."""
    if schedule.next_at is None or schedule.next_at <= now:
        return None
    expected = _next(schedule, now)
    if expected == schedule.next_at:
        return None
    return Move(schedule, replace(schedule, stamp=schedule.stamp + 1, next_at=expected))


def run_now(schedule: Schedule, now: float, trace_id: str = "") -> Move:
    """A manual run. Its time has a fraction, so it never equals a tick. ``trace_id`` becomes that of its job."""
    _check_alive(schedule, "run")
    moved = replace(schedule, stamp=schedule.stamp + 1, runs=schedule.runs + 1)
    run = replace(_run(schedule, round(now, 6), due_at=now), is_manual=True, n=moved.runs, trace_id=trace_id)
    return Move(schedule, moved, runs=(run,))


# Versions.


def create(
    tenant: str, id: str, terms: Terms, *, author: str, reason: str = "", now: float, declared: Terms | None = None
) -> Move:
    action = "declared" if declared is not None else "created"
    made = Schedule(
        tenant, id, terms, 1, declared=declared, created_at=now, updated_at=now, updated_by=author, last_at=0.0
    )
    made = replace(made, next_at=_next(made, now))
    return Move(None, made, Revision(tenant, id, 1, terms, author, now, action, reason))


def edit(schedule: Schedule, terms: Terms, *, author: str, reason: str, now: float, action: str = "edited") -> Move:
    """A new version, effective from the next tick. A tick that is already due is claimed with the old version."""
    _check_alive(schedule, "edit")
    return _revise(schedule, terms, author, reason, now, action)


def end(schedule: Schedule, *, author: str, reason: str, now: float) -> Move:
    """Delete the schedule: no tick is claimed any more. Its history stays until it is purged."""
    _check_alive(schedule, "delete")
    move = _revise(schedule, replace(schedule.terms, active=False), author, reason, now, "deleted")
    return replace(move, after=replace(move.after, ended_at=now, next_at=None))


def revive(schedule: Schedule, terms: Terms, *, author: str, reason: str, now: float) -> Move:
    """Create a schedule under the id of a deleted one. Version numbers continue."""
    revived = replace(schedule, ended_at=None, since=schedule.version + 1)
    return _revise(revived, terms, author, reason, now, "created", before=schedule)


def declare(schedule: Schedule, declared: Terms, *, now: float) -> Move | None:
    """Record the terms in the app's code. They take effect unless a person has edited the schedule."""
    if schedule.declared == declared:
        return None
    is_untouched = schedule.ended_at is None and schedule.declared is not None and not schedule.is_adrift
    kept = replace(schedule, declared=declared)
    if is_untouched:
        return _revise(kept, declared, CODE, "", now, "declared", before=schedule)
    return Move(schedule, replace(kept, stamp=schedule.stamp + 1))


def _revise(
    schedule: Schedule, terms: Terms, author: str, reason: str, now: float, action: str, before: Schedule | None = None
) -> Move:
    claimed = claim(schedule, now)
    base, runs = (schedule, ()) if claimed is None else (claimed.after, claimed.runs)
    at = max(now, base.last_at)  # clocks of two processes differ slightly: an edit is later than a claimed tick
    moved = replace(
        base, terms=terms, version=schedule.version + 1, updated_at=at, updated_by=author, stamp=schedule.stamp + 1
    )
    moved = replace(moved, next_at=_next(moved, at))
    revision = Revision(schedule.tenant, schedule.id, moved.version, terms, author, at, action, reason)
    return Move(before or schedule, moved, revision, runs)


# Runs.


def close_run(run: Run, status: RunStatus, message: str, now: float) -> Run:
    """Close a run without a job."""
    return replace(run, status=status, message=message, ended_at=now, due_at=None, stamp=run.stamp + 1)


def postpone_run(run: Run, message: str, until: float) -> Run:
    return replace(run, message=message, due_at=until, stamp=run.stamp + 1)


Verdict = tuple[Literal["fire", "wait", "skip", "cancel"], str]


def decide_overlap(run: Run, others: list[Run], overlap: Overlap) -> Verdict:
    """What to do with a run, given the other open runs of its schedule, and the reason."""
    earlier = [each for each in others if each.tick < run.tick]
    active = [each for each in others if each.status == "fired"]
    waiting = [each for each in earlier if each.status == "due"]
    if overlap == "skip":
        # An earlier run that is not decided yet goes first.
        busy = active or waiting
        return ("skip", f"The run of {cron.utc(busy[0].tick)} was still active.") if busy else ("fire", "")
    if overlap == "queue":
        if len(waiting) >= MAX_WAITING:
            return "skip", f"{MAX_WAITING} runs were already waiting."
        busy = active or waiting
        return ("wait", f"Waits for the run of {cron.utc(busy[0].tick)}.") if busy else ("fire", "")
    newer = [each for each in others if each.tick > run.tick]
    if newer:
        return "skip", f"The run of {cron.utc(newer[-1].tick)} replaced it."
    return ("cancel", f"Waits until the run of {cron.utc(active[0].tick)} is cancelled.") if active else ("fire", "")


RUN = "run"  # the kind of record that keeps a run


def schedule_key(tenant: str, id: str) -> str:
    """Tenant and id in one text, escaped, so that no name can spell another tenant's schedule."""
    return f"{_escape(tenant)}/{_escape(id)}"


def run_ref(tenant: str, schedule: str, tick: float) -> Ref:
    return Ref(RUN, f"{schedule_key(tenant, schedule)}/{tick!r}")


def run_index(tenant: str, schedule: str, tick: float, *, is_open: bool) -> tuple[IndexEntry, ...]:
    """All runs of a schedule by tick, and those that are not over."""
    key, place = schedule_key(tenant, schedule), time_place(tick)
    entries = IndexEntry(f"all/{key}", place), IndexEntry(f"open/{key}", place)
    return entries if is_open else entries[:1]


def _escape(name: str) -> str:
    return quote(name, safe="", errors="backslashreplace")


def _run(schedule: Schedule, tick: float, *, due_at: float) -> Run:
    return Run(schedule.tenant, schedule.id, tick, schedule.version, due_at=due_at)


def _missed_run(schedule: Schedule, first: float, last: float) -> Run:
    """One record for all missed ticks."""
    terms = schedule.terms
    count = cron.count(terms.cron, terms.zone, first, last, MAX_COUNTED)
    what = MISSED
    if count > 1:
        more = "more than " if count == MAX_COUNTED else ""
        what = f"No worker ran them in time: {more}{count} ticks until {cron.utc(last)}."
    until = last if count > 1 else None
    return Run(schedule.tenant, schedule.id, first, schedule.version, "missed", message=what, until=until, count=count)


def _max_delay(terms: Terms) -> float:
    return max(LATE, terms.window) if terms.misfire == "catch_up" else LATE


def _next(schedule: Schedule, moment: float) -> float | None:
    terms = schedule.terms
    if not terms.active or schedule.ended_at is not None:
        return None
    return cron.next_tick(terms.cron, terms.zone, moment)


def _check_alive(schedule: Schedule, verb: str) -> None:
    if schedule.ended_at is not None:
        raise NotAllowed(f"Schedule {schedule.id} was deleted.", verb=verb, status="deleted")
