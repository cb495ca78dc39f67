"""Starts prepared when a job is submitted, so that a claim can start a batch in one statement.

The column `start` of an entry has a line for each piece: version of the state, deadline and time limit of the run,
first and last number of the events, the state that the job must still have, then the new state and the events, cut
where something is filled in that is known only when the task starts. The statement `start` in sql/claim.sql puts them
together.
"""

from __future__ import annotations

import re
import struct
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from itertools import islice
from typing import Any, NamedTuple

from msgspec.structs import replace

from packhorse.core import json, lifecycle
from packhorse.core.changes import Change, MakeDue
from packhorse.core.models import Job, Stage, TaskId
from packhorse.core.plan import Plan
from packhorse.log import log
from packhorse.store import sql_files
from packhorse.store.base import Claim, Decide, Starter
from packhorse.store.postgres import reads
from packhorse.store.postgres.connection import Clock, Row, Session
from packhorse.store.postgres.watch import Notice
from packhorse.store.rows import Plans, claim_from

SQL = sql_files.load(__package__, "claim")

MARGIN = 32
"""Entries looked at beyond what is wanted, for those that somebody else is just claiming."""
KNOWN = 100
"""Plans named to the server, the last to be read: jobs of others are decided about here."""
PLAIN = re.compile(r"[\w.:-]+", re.ASCII)
"""Tokens that are the same in JSON."""

STAGES = 200
"""Of a job whose start is prepared: it holds the state twice."""
DOUBLE = struct.Struct("<d")
MOST = 1000
"""Templates kept: one for each first stage of a plan."""

_NOW = str(lifecycle.NOW)
_TOKEN = f"{json.encode(lifecycle.TOKEN).decode()},{_NOW}"
_WORKER = json.encode(lifecycle.WORKER).decode()
_KNOWN_LATER = re.compile("|".join(re.escape(text) for text in (_TOKEN, str(lifecycle.LINEAGE), _NOW, _WORKER)))

_READY, _BASIS, _DEADLINE = 5_555_555_555_555.125, 2**63, "\0deadline"
_SLOTS = [str(_READY), str(_BASIS), _DEADLINE]
_FILL = re.compile("({})".format("|".join(re.escape(text) for text in _SLOTS)))

_templates: dict[tuple[str, TaskId], list[str | int]] = {}
"""Starts of new jobs by plan and task: text, with a slot's number for each place that differs by job."""


def prepared_start(change: Change, effect: MakeDue) -> str | None:
    """The start of the only task that a new job makes due; None: decide it when it is claimed."""
    job, at = change.after, effect.task
    if change.before is not None or job.events != 1 or effect.delay or job.webhooks or job.firing:
        return None
    if job.counted is not None or sum(isinstance(each, MakeDue) for each in change.effects) != 1:
        return None
    if len(job.stages) > STAGES or job.plan.needs_current_reader:
        return None
    key = job.plan.fingerprint, at
    if (template := _templates.get(key)) is None:
        if len(_templates) >= MOST:
            _templates.clear()
        template = _templates[key] = _template(job, at)
    [task] = job.stage(at.stage).tasks or ()
    slots = (repr(task.ready_at), str(job.lineage), repr(job.not_before + job.plan.deadline))
    return "".join([part if isinstance(part, str) else slots[part] for part in template])


def _template(job: Job, at: TaskId) -> list[str | int]:
    """A new job's start depends on nothing but its plan, and what is in the slots."""
    i = job.plan.index[at.stage]
    [task] = job.stages[i].tasks or ()
    stages = (*job.stages[:i], Stage((replace(task, ready_at=_READY),)), *job.stages[i + 1 :])
    model = replace(job, stages=stages, lineage=_BASIS)
    start = lifecycle.prepare(model, at)
    assert start is not None
    events = start.change.events
    state = _KNOWN_LATER.split(json.state_of(start.change.after).decode())
    said = _KNOWN_LATER.split(json.encode(events).decode())
    assert len(state) == 3
    assert len(said) == 4
    numbers = [str(events[0].n), str(events[-1].n)]
    limit = "" if start.limit is None else repr(start.limit)
    before = json.state_of(model).decode()
    text = "\n".join([str(json.UNREGULATED), _DEADLINE, limit, *numbers, before, *state, *said])
    return [_SLOTS.index(part) if n % 2 else part for n, part in enumerate(_FILL.split(text))]


Outcome = list[Claim] | Exception


class Ask(NamedTuple):
    """What one caller wants."""

    wants: Mapping[str, int]
    kinds: Collection[str]
    decide: Decide


class Begun(NamedTuple):
    """What one statement has started for callers who ask alike."""

    outcomes: Sequence[Outcome]
    left: Sequence[Mapping[str, int]]
    """What else each wants that may be there."""
    rows: Sequence[Row] | None
    """What the lifecycle may start, if that was all there is."""
    has_late: bool = False
    """Whether something delayed, or with limits or turns, may be next: nothing was looked at."""


async def begin(session: Session, asks: Sequence[Ask], clock: Clock, plans: Plans, notice: Notice) -> Begun:
    """Start what was prepared. The callers have the same kinds, and a `Starter` of the same worker."""
    wants = [Counter({queue: most for queue, most in ask.wants.items() if most > 0}) for ask in asks]
    wanted: Counter[str] = sum(wants, Counter())
    starters = [ask.decide for ask in asks if isinstance(ask.decide, Starter)]
    tokens = [token for starter, want in zip(starters, wants, strict=True) for token in starter.take(want.total())]
    if not (tokens and PLAIN.fullmatch("".join(tokens))):
        starters[0].give_back(tokens)
        return Begun([[] for _ in asks], wants, None)
    pages = {queue: most + MARGIN for queue, most in wanted.items()}
    rows = await session.whole(
        SQL.start, list(wanted), list(wanted.values()), list(pages.values()), list(asks[0].kinds), clock.parameter(),
        *_start_values(tokens, starters[0], clock.now()), _known(plans), *(notice.words() or (None, None)),
    )  # fmt: skip
    clock.adjust(rows[0]["now"])
    outcomes: list[list[Claim]] = [[] for _ in asks]
    order = {queue: n for n, queue in enumerate(wanted)}
    begun = [row for row in rows if row["token"] is not None]
    for row in sorted(begun, key=lambda row: (order[row["queue"]], row["rank"], row["id"])):
        n = next(n for n, want in enumerate(wants) if want[row["queue"]] > 0)
        wants[n][row["queue"]] -= 1
        outcomes[n] += _claims(row, plans)
    used = {row["token"] for row in begun}
    starters[0].give_back(token for token in tokens if token not in used)
    left, others = _what_is_left(rows, wanted, pages)
    still = [{queue: most for queue, most in want.items() if most > 0 and queue in left} for want in wants]
    return Begun(outcomes, still, others, rows[0]["has_late"])


def _start_values(tokens: Sequence[str], by: Starter, now: float) -> tuple[Any, ...]:
    width = max(map(len, tokens))
    text = "".join(token.ljust(width) for token in tokens).encode()
    worker = by.worker, json.encode(by.worker).decode()
    return text, width, *worker, by.lease, now, DOUBLE.pack(now), repr(now), json.VERSION


def _known(plans: Plans) -> list[str]:
    """Plans that were read here without an error: a job of one of them can be read when it has been started."""
    newest = islice(reversed(plans.known.items()), KNOWN)
    return [fingerprint for fingerprint, plan in newest if isinstance(plan, Plan)]


def _claims(row: Row, plans: Plans) -> list[Claim]:
    job, task = reads.read_job(row, plans), TaskId(row["stage"], row["element"])
    if isinstance(job, Job):
        return [claim_from(job, task, row["spec"], lambda _: ())]
    log.entry_dropped(str(row["id"]), task.stage, job)  # its lease runs out
    return []


def _what_is_left(
    rows: Sequence[Row], wanted: Mapping[str, int], pages: Mapping[str, int]
) -> tuple[Collection[str], Sequence[Row] | None]:
    """The queues that have more, and the rows of what can be started, if nothing else has to be looked at."""
    counts = Counter(row["queue"] for row in rows if row["id"] is not None)
    walked = {row["queue"]: row["walked"] for row in rows}
    others = [row for row in rows if row["token"] is None]
    short = {queue for queue, most in wanted.items() if counts[queue] < most and walked[queue] == pages[queue]}
    if rows[0]["has_late"]:
        return wanted.keys(), None
    left = short | {row["queue"] for row in others if row["id"] is not None}
    return left, None if short else [row for row in others if row["queue"] in left]
