"""Schedules: what is run when, every version of it, and what became of each tick. Decides; stores commit.

A tick is a moment that the cron line names. Whoever claims one writes down a run for it and moves the schedule on to
the next, in one step; the run is then carried on by whoever comes first, with the version that was claimed with it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Literal, get_args
from urllib.parse import quote

from msgspec import Struct, field
from msgspec.structs import asdict, replace

from packhorse.core import cron
from packhorse.core.plan import Status
from packhorse.core.records import IndexEntry, Ref, time_place
from packhorse.errors import InvalidInput, NotAllowed

LATE = 60.0
"""Seconds after which a tick that nobody has claimed counts as missed: a worker may well take that long to restart."""
MAX_COUNTED = 1000
"""Missed ticks that are counted; more are told as this many, and when the first and the last were."""
MAX_WAITING = 10
"""Runs of one schedule that may wait for the one before them."""
MAX_VERSIONS = 1000
"""Versions of a schedule that are kept."""
MISSED = "Nobody was there to run it in time."
CODE = "code"
"""Who has made a version that comes from the app's own code."""

Overlap = Literal["skip", "queue", "cancel"]
Misfire = Literal["skip", "catch_up"]

MAX_TEXT = 255
MAX_LABELS = 32
MAX_WINDOW = 366 * 86_400.0

RunStatus = Literal["due", "fired", "completed", "failed", "cancelled", "skipped", "missed"]

OPEN: frozenset[str] = frozenset({"due", "fired"})


class Terms(Struct, frozen=True):
    """What people edit. Each version has its own."""

    pipeline: str
    parameters: bytes
    """JSON, kept byte by byte."""
    cron: str
    zone: str = "UTC"
    user: str = "local"
    active: bool = True
    overlap: Overlap = "skip"
    misfire: Misfire = "skip"
    window: float = 3600.0
    """Seconds in which a missed tick is caught up with, where it is."""
    labels: Mapping[str, str] = field(default_factory=dict)


class Schedule(Struct, frozen=True, omit_defaults=True):
    tenant: str
    id: str
    terms: Terms
    version: int
    """Of the terms."""
    stamp: int = 1
    """Moves with every write, claims too: who decides on an older one is refused."""
    next_at: float | None = None
    """The tick to be claimed next; None while it is paused or ended."""
    last_at: float = 0.0
    """The last tick that was claimed."""
    runs: int = 0
    """How many runs it has had."""
    declared: Terms | None = None
    """What the app's code says. People's edits win over it."""
    created_at: float = 0.0
    updated_at: float = 0.0
    updated_by: str = ""
    ended_at: float | None = None

    @property
    def is_adrift(self) -> bool:
        return self.declared is not None and self.declared != self.terms


class Revision(Struct, frozen=True):
    """One version of a schedule, and who made it why."""

    tenant: str
    schedule: str
    version: int
    terms: Terms
    author: str
    at: float
    """Never before a tick that was claimed with the version before."""
    action: str
    reason: str = ""


class Run(Struct, frozen=True, omit_defaults=True):
    """What became of a tick; of many that nobody claimed in time, one for all of them."""

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
    due_at: float | None = None
    """When somebody is to carry it on; None once it is decided."""
    until: float | None = None
    """The last of several missed ticks, of which ``tick`` is the first."""
    count: int = 1
    n: int = 0
    """Counts the runs of its schedule, in the order of their ticks."""

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


class Declared(Struct, frozen=True):
    """A schedule as the app's code says it."""

    id: str
    terms: Terms


class Move(Struct, frozen=True):
    """A decision about one schedule, to be committed whole or not at all."""

    before: Schedule | None
    after: Schedule
    revision: Revision | None = None
    runs: tuple[Run, ...] = ()


# Terms.


def check_terms(terms: Terms, now: float) -> None:
    """Raises InvalidInput that names what is wrong. Whether the parameters fit the pipeline is for others to say."""
    mistakes = [{"field": field, "message": message} for field, message in _term_errors(terms, now)]
    if mistakes:
        said = "; ".join(f"{each['field']}: {each['message']}" for each in mistakes)
        raise InvalidInput(f"The schedule is not valid: {said}.", errors=mistakes)


def _term_errors(terms: Terms, now: float) -> Iterator[tuple[str, str]]:
    if not _is_text(terms.user):
        yield "user_id", f"It must be a text of 1 to {MAX_TEXT} characters"
    if terms.overlap not in get_args(Overlap):
        yield "overlap", f"It is one of {', '.join(get_args(Overlap))}"
    if terms.misfire not in get_args(Misfire):
        yield "misfire", f"It is one of {', '.join(get_args(Misfire))}"
    if not 0 <= terms.window <= MAX_WINDOW:
        yield "window", "It must be between nothing and a year"
    if len(terms.labels) > MAX_LABELS:
        yield "labels", f"There are more than {MAX_LABELS}"
    if not all(_is_text(name) and _fits(value) for name, value in terms.labels.items()):
        yield "labels", f"Names and values must be texts of at most {MAX_TEXT} characters"
    yield from cron.find_errors(terms.cron, terms.zone, now)


def _is_text(text: object) -> bool:
    return text != "" and _fits(text)


def _fits(text: object) -> bool:
    """What an app's code says has not been checked by anybody else."""
    return isinstance(text, str) and len(text) <= MAX_TEXT and "\0" not in text


def diff_terms(old: Terms, new: Terms) -> list[tuple[str, Any, Any]]:
    """Field, what it was, and what it is; parameters one by one are the matter of whoever may show them."""
    was, now = asdict(old), asdict(new)
    return [(name, was[name], now[name]) for name in was if was[name] != now[name]]


# Ticks.


def claim(schedule: Schedule, now: float, hold: float = 0.0) -> Move | None:
    """Claim the tick that is due: a run to be carried on, and a record of what was missed. None if nothing is due.

    Of several, the last is run if it is young enough; whatever is too old is never replayed.
    """
    tick, terms = schedule.next_at, schedule.terms
    if tick is None or tick > now:
        return None
    last = cron.last_tick(terms.cron, terms.zone, now, tick)
    runs: list[Run] = []
    if now - last <= _max_delay(terms):
        runs.append(_run(schedule, last, due_at=now + hold))
        if last > tick:
            runs.append(_missed_run(schedule, tick, _before(schedule, tick, last)))
    else:
        runs.append(_missed_run(schedule, tick, last))
    moved = replace(schedule, stamp=schedule.stamp + 1, last_at=last, runs=schedule.runs + len(runs))
    numbered = tuple(replace(run, n=moved.runs - i) for i, run in enumerate(runs))  # the newest comes first
    return Move(schedule, replace(moved, next_at=_next(moved, max(now, last))), runs=numbered)


def is_too_late(run: Run, terms: Terms, now: float) -> bool:
    """Whether whoever claimed it died, and nobody came in time. One that was looked at and had to wait is never late.

    It may be claimed at the last moment, so there is as much time again to carry it on.
    """
    return not run.is_manual and not run.message and now - run.tick > _max_delay(terms) + LATE


def pass_over(schedule: Schedule) -> Move:
    """Go on to the next tick without a run: there is one for this tick, from before the clock was set back."""
    assert schedule.next_at is not None
    moved = replace(schedule, stamp=schedule.stamp + 1, last_at=max(schedule.last_at, schedule.next_at))
    return Move(schedule, replace(moved, next_at=_next(moved, schedule.next_at)))


def realign(schedule: Schedule, now: float) -> Move | None:
    """The clock was set back, or the rules of the zone have changed: the next tick is not what it would be now."""
    if schedule.next_at is None or schedule.next_at <= now:
        return None
    expected = _next(schedule, now)
    if expected == schedule.next_at:
        return None
    return Move(schedule, replace(schedule, stamp=schedule.stamp + 1, next_at=expected))


def run_now(schedule: Schedule, now: float) -> Move:
    """A run beside the ticks. It has a moment of its own, and none of a cron line falls between two seconds."""
    _check_alive(schedule, "run")
    moved = replace(schedule, stamp=schedule.stamp + 1, runs=schedule.runs + 1)
    run = replace(_run(schedule, round(now, 6), due_at=now), is_manual=True, n=moved.runs)
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
    """A new version, from the next tick on. A tick that is due is claimed with the old one, in the same step."""
    _check_alive(schedule, "edit")
    return _revise(schedule, terms, author, reason, now, action)


def end(schedule: Schedule, *, author: str, reason: str, now: float) -> Move:
    """No tick is claimed any more. What has happened stays to be seen until it is purged."""
    _check_alive(schedule, "delete")
    move = _revise(schedule, replace(schedule.terms, active=False), author, reason, now, "deleted")
    return replace(move, after=replace(move.after, ended_at=now, next_at=None))


def revive(schedule: Schedule, terms: Terms, *, author: str, reason: str, now: float) -> Move:
    """Make one anew under the id of one that has ended; the numbers of versions go on."""
    return _revise(replace(schedule, ended_at=None), terms, author, reason, now, "created", before=schedule)


def declare(schedule: Schedule, declared: Terms, *, now: float) -> Move | None:
    """What the code says now. It is taken over where nobody has changed what it said before, else only kept."""
    if schedule.declared == declared:
        return None
    is_untouched = schedule.ended_at is None and schedule.declared is not None and not schedule.is_adrift
    kept = replace(schedule, declared=declared)
    if is_untouched:
        return _revise(kept, declared, CODE, "", now, "declared", before=schedule)
    return Move(schedule, replace(kept, stamp=schedule.stamp + 1))


def _revise(
    schedule: Schedule,
    terms: Terms,
    author: str,
    reason: str,
    now: float,
    action: str,
    before: Schedule | None = None,
) -> Move:
    claimed = claim(schedule, now)
    base, runs = (schedule, ()) if claimed is None else (claimed.after, claimed.runs)
    at = max(now, base.last_at)  # the clocks of two processes differ a little: an edit comes after what was claimed
    moved = replace(
        base, terms=terms, version=schedule.version + 1, updated_at=at, updated_by=author, stamp=schedule.stamp + 1
    )
    moved = replace(moved, next_at=_next(moved, at))
    revision = Revision(schedule.tenant, schedule.id, moved.version, terms, author, at, action, reason)
    return Move(before or schedule, moved, revision, runs)


# Runs.


def close_run(run: Run, status: RunStatus, message: str, now: float) -> Run:
    """A run that becomes no job."""
    return replace(run, status=status, message=message, ended_at=now, due_at=None, stamp=run.stamp + 1)


def postpone_run(run: Run, message: str, until: float) -> Run:
    return replace(run, message=message, due_at=until, stamp=run.stamp + 1)


Verdict = tuple[Literal["fire", "wait", "skip", "cancel"], str]


def decide_overlap(run: Run, others: list[Run], overlap: Overlap) -> Verdict:
    """What to do with a run, given the others of its schedule that are not over; and why."""
    earlier = [each for each in others if each.tick < run.tick]
    active = [each for each in others if each.status == "fired"]
    waiting = [each for each in earlier if each.status == "due"]
    if overlap == "skip":
        # Who was claimed before and is not decided yet goes first: only one of them can be the next.
        busy = active or waiting
        return ("skip", f"The run of {iso(busy[0].tick)} was not over.") if busy else ("fire", "")
    if overlap == "queue":
        if len(waiting) >= MAX_WAITING:
            return "skip", f"{MAX_WAITING} runs were waiting already."
        busy = active or waiting
        return ("wait", f"Waits for the run of {iso(busy[0].tick)}.") if busy else ("fire", "")
    newer = [each for each in others if each.tick > run.tick]
    if newer:
        return "skip", f"The run of {iso(newer[-1].tick)} took its place."
    return ("cancel", f"Waits until the run of {iso(active[0].tick)} is cancelled.") if active else ("fire", "")


def run_status(status: Status) -> RunStatus:
    """What the run of a job that has ended is called."""
    word: RunStatus = status.value  # type: ignore[assignment]
    return word


RUN = "run"
"""The kind of record that keeps a run."""


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


def iso(tick: float) -> str:
    return cron.utc(tick)


def _run(schedule: Schedule, tick: float, *, due_at: float) -> Run:
    return Run(schedule.tenant, schedule.id, tick, schedule.version, due_at=due_at)


def _missed_run(schedule: Schedule, first: float, last: float) -> Run:
    """One record for all of them, however many there were."""
    terms = schedule.terms
    count = cron.count(terms.cron, terms.zone, first, last, MAX_COUNTED)
    what = MISSED
    if count > 1:
        more = "more than " if count == MAX_COUNTED else ""
        what = f"Nobody was there to run them in time: {more}{count} ticks until {iso(last)}."
    return Run(
        schedule.tenant,
        schedule.id,
        first,
        schedule.version,
        "missed",
        message=what,
        until=last if count > 1 else None,
        count=count,
    )


def _max_delay(terms: Terms) -> float:
    return max(LATE, terms.window) if terms.misfire == "catch_up" else LATE


def _before(schedule: Schedule, first: float, last: float) -> float:
    """The tick before the last one, ``first`` being one."""
    return cron.last_tick(schedule.terms.cron, schedule.terms.zone, last - 1.0, first)


def _next(schedule: Schedule, moment: float) -> float | None:
    terms = schedule.terms
    if not terms.active or schedule.ended_at is not None:
        return None
    return cron.next_tick(terms.cron, terms.zone, moment)


def _check_alive(schedule: Schedule, verb: str) -> None:
    if schedule.ended_at is not None:
        raise NotAllowed(f"The schedule {schedule.id} was deleted.", verb=verb, status="deleted")
