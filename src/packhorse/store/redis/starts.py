"""Starts prepared when a task is queued, so that a claim can start a batch in one script.

A prepared start is JSON: version of the state, entry, what it is based on, deadline and time limit of the run, then the
effects of the start as lua/effects.lua reads them. A word that depends on what is known only when the task starts is a
list of its parts, with the number of a gap for the token, worker, time, lineage, deadline or lease.

The field `start` of a job is such JSON. New jobs of one plan start alike, so theirs is in the hash `starts`, once, with
further gaps for what differs between them; their field has its name there and what fills these gaps.
"""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from msgspec.structs import replace

from packhorse.core import json, lifecycle
from packhorse.core.changes import Change
from packhorse.core.models import Job, Stage, TaskId
from packhorse.store.redis import keys
from packhorse.store.rows import Plans

Pack = Callable[[Change, list[Any]], object]
Word = str | int | list[str | int]

MOST = 16_384
"""Bytes of the state of a job whose start is prepared. It holds the state once more, and the server reads all of it."""
FRESH = 10.0
"""Seconds after which a template is sent again, with the next job. A server may have lost it in a power cut, and then
each start is decided by its worker."""

_JOB, _READY, _TENANT = "\1job", 5_555_555_555_555.125, "\1tenant"
_GAPS = (
    lifecycle.TOKEN,
    lifecycle.WORKER,
    str(lifecycle.NOW),
    str(lifecycle.LINEAGE),
    str(lifecycle.RUN_UNTIL),
    str(lifecycle.SECONDS),
)
_GAPS_OF_NEW_JOBS = (*_GAPS, _JOB, str(_READY), keys.tenant(_TENANT))


class _Opener:
    """Finds in a word what is not known yet."""

    def __init__(self, gaps: tuple[str, ...]) -> None:
        self.numbers: dict[str, int] = {}
        for n, text in enumerate(gaps, 1):
            self.numbers[text] = self.numbers[json.encode(text).decode()[1:-1]] = n
        self.pattern = re.compile("({})".format("|".join(re.escape(text) for text in self.numbers)))

    def open(self, word: Any) -> Word:
        if type(word) is not str:
            return int(word)
        if (number := self.numbers.get(word)) is not None:
            return [number]
        parts = self.pattern.split(word)
        if len(parts) == 1:
            return word
        return [self.numbers[part] if n % 2 else part for n, part in enumerate(parts)]


_opener, _opener_of_new_jobs = _Opener(_GAPS), _Opener(_GAPS_OF_NEW_JOBS)


class Template(NamedTuple):
    """The start of the new jobs of a plan."""

    name: str
    body: str


class Known(Plans):
    """The plans and templates that the server is known to have."""

    def __init__(self) -> None:
        super().__init__()
        self._sent: dict[str, float] = {}

    def forget(self) -> None:
        """The server has lost them."""
        self.stored.clear()
        self._sent.clear()

    def is_sent(self, template: Template) -> bool:
        """Whether the template was sent a moment ago; if not, it has to be sent now."""
        now = time.monotonic()
        if now < self._sent.get(template.name, 0.0):
            return True
        self._sent[template.name] = now + FRESH
        return False


_templates: dict[tuple[str, TaskId], Template | None] = {}


def pack_start(job: Job, at: TaskId, state: str, pack: Pack) -> tuple[str, Template | None] | None:
    """The start of a task that has just become due, as the claim's script makes it; None: decide it when it is claimed.

    ``state`` is the text of the job's state, ``pack`` appends the effects of a change.
    """
    tasks = job.stage(at.stage).tasks or ()
    if len(tasks) != 1 or len(state) > MOST:
        return None
    is_new = job.version == 1 and job.events == 1
    if is_new and not (tasks[0].delay or job.webhooks or job.firing or job.counted is not None or job.limit_values):
        key = job.plan.fingerprint, at
        if key not in _templates:
            if len(_templates) >= keys.CACHED:
                _templates.clear()
            _templates[key] = _template(job, at, pack)
        if (template := _templates[key]) is not None:
            deadline = job.not_before + job.plan.deadline
            text = f"{template.name} {deadline!r} {tasks[0].ready_at!r} {keys.tenant(job.tenant)}"
            return text, template
    if _opener.pattern.search(state) is not None:
        return None
    basis = hashlib.sha1(f"{job.version} {state}".encode(), usedforsecurity=False).hexdigest()
    start = _start(job, at, basis, pack, _opener)
    return None if start is None else (start, None)


def _template(job: Job, at: TaskId, pack: Pack) -> Template | None:
    """A new job's start depends on nothing but its plan and what is in the gaps."""
    i = job.plan.index[at.stage]
    [task] = job.stages[i].tasks or ()
    stages = (*job.stages[:i], Stage((replace(task, ready_at=_READY),)), *job.stages[i + 1 :])
    like = replace(job, id=_JOB, tenant=_TENANT, user="", slot=None, stages=stages)
    body = _start(like, at, "", pack, _opener_of_new_jobs)
    if body is None:
        return None
    return Template(hashlib.sha1(body.encode(), usedforsecurity=False).hexdigest()[:16], body)


def _start(job: Job, at: TaskId, basis: str, pack: Pack, opener: _Opener) -> str | None:
    """``basis`` says what the job must still be like. The state has the lineage: one of another history is another.

    It is empty in a template, which holds only for a job without changes.
    """
    prepared = lifecycle.prepare(job, at)
    if prepared is None:
        return None
    effects: list[Any] = []
    pack(prepared.change, effects)
    limit = "" if prepared.limit is None else repr(prepared.limit)
    entry, deadline = opener.open(keys.entry(job.id, at)), repr(prepared.deadline) if basis else ""
    schema = json.VERSION if job.plan.needs_current_reader else json.UNREGULATED
    head = [schema, entry, basis, deadline, limit]
    return json.encode([*head, *[opener.open(word) for word in effects]]).decode()
