"""Starts prepared when a task is queued, so that a claim can start a batch in one script.

The field `start` of a job is JSON: version of the state, entry, what it is based on, deadline and time limit of the
run, then the effects of the start as lua/effects.lua reads them. A word that depends on what is known only when the
task starts is a list of its parts, with a number for the token, worker, time, lineage, deadline or lease.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from typing import Any

from msgspec.structs import replace

from packhorse.core import json, lifecycle
from packhorse.core.changes import Change
from packhorse.core.models import Job, Stage, TaskId
from packhorse.store.redis import keys

Pack = Callable[[Change, list[Any]], None]
Word = str | int | list[str | int]

MOST = 16_384
"""Bytes of the state of a job whose start is prepared. It holds the state once more, and the server reads all of it."""

_KNOWN_LATER = (
    lifecycle.TOKEN,
    lifecycle.WORKER,
    str(lifecycle.NOW),
    str(lifecycle.LINEAGE),
    str(lifecycle.RUN_UNTIL),
    str(lifecycle.SECONDS),
)
_NUMBERS: dict[str, int] = {}
for _n, _text in enumerate(_KNOWN_LATER, 1):
    _NUMBERS[_text] = _NUMBERS[json.encode(_text).decode()[1:-1]] = _n
_OPEN = re.compile("({})".format("|".join(re.escape(text) for text in _NUMBERS)))

_JOB, _BASIS, _DEADLINE, _READY = "\1job", "\1basis", "\1deadline", 5_555_555_555_555.125
_SLOTS = [json.encode(text).decode().strip('"') for text in (_JOB, _BASIS, _DEADLINE, _READY)]
_FILL = re.compile("({})".format("|".join(re.escape(text) for text in _SLOTS)))
_fresh: dict[tuple[str, str, TaskId], list[str | int]] = {}
"""The starts of new jobs by plan, tenant and task: text, with a slot's number for each place that differs by job."""


def pack_start(job: Job, at: TaskId, state: str, pack: Pack) -> str | None:
    """The start of a task that has just become due, as the claim's script makes it; None: decide it when it is claimed.

    ``state`` is the text of the job's state, ``pack`` appends the effects of a change.
    """
    tasks = job.stage(at.stage).tasks or ()
    if len(tasks) != 1 or len(state) > MOST or _OPEN.search(state) is not None:
        return None
    basis = hashlib.sha1(f"{job.version} {state}".encode(), usedforsecurity=False).hexdigest()
    if job.version != 1 or job.events != 1 or tasks[0].delay or job.webhooks or job.firing or job.counted is not None:
        return _start(job, at, basis, pack)
    key = job.plan.fingerprint, job.tenant, at
    if (template := _fresh.get(key)) is None:
        if len(_fresh) >= keys.CACHED:
            _fresh.clear()
        template = _fresh[key] = _template(job, at, pack)
    ready_at, deadline = tasks[0].ready_at, job.not_before + job.plan.deadline
    slots = (job.id, basis, repr(deadline), repr(ready_at))
    return "".join([part if isinstance(part, str) else slots[part] for part in template])


def _template(job: Job, at: TaskId, pack: Pack) -> list[str | int]:
    """A new job's start depends on nothing but its plan, its tenant, and what is in the slots."""
    i = job.plan.index[at.stage]
    [task] = job.stages[i].tasks or ()
    stages = (*job.stages[:i], Stage((replace(task, ready_at=_READY),)), *job.stages[i + 1 :])
    text = _start(replace(job, id=_JOB, stages=stages), at, _BASIS, pack, _DEADLINE)
    assert text is not None
    return [_SLOTS.index(part) if n % 2 else part for n, part in enumerate(_FILL.split(text))]


def _start(job: Job, at: TaskId, basis: str, pack: Pack, deadline: str = "") -> str | None:
    """``basis`` says what the job must still be like. The state has the lineage: one of another history is another."""
    prepared = lifecycle.prepare(job, at)
    if prepared is None:
        return None
    effects: list[Any] = []
    pack(prepared.change, effects)
    limit = "" if prepared.limit is None else repr(prepared.limit)
    head = [json.VERSION, keys.entry(job.id, at), basis, deadline or repr(prepared.deadline), limit]
    return json.encode([*head, *[_open(word) for word in effects]]).decode()


def _open(word: Any) -> Word:
    if type(word) is not str:
        return int(word)
    if (number := _NUMBERS.get(word)) is not None:
        return [number]
    if word[:1] not in ("[", "{"):  # everything else that depends on them is JSON
        return word
    parts = _OPEN.split(word)
    if len(parts) == 1:
        return word
    return [_NUMBERS[part] if n % 2 else part for n, part in enumerate(parts)]
