"""What a worker may start: its slots by queue, tokens of attempts, and the stage that follows another in its slot."""

from __future__ import annotations

import math
import secrets
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping

from packhorse.background.reaper import StuckJobs
from packhorse.core import lifecycle
from packhorse.core.changes import Change, MakeDue
from packhorse.core.models import Job, Result, TaskId
from packhorse.errors import StoreError, UnknownOutcome
from packhorse.jobs.transact import Transactor
from packhorse.log import log
from packhorse.store.base import Claim, Store

TOKEN_SIZE = 16
"""Characters of a token."""
TOKENS_AT_ONCE = 256
"""Tokens made of one call to the system, which costs more than all the rest."""
BATCH = 100
LOOK = 0.5
"""Seconds between looks for orphaned claims, for a lease after the answer to a claim was lost."""


class Slots:
    """How many attempts a worker may have at a time, and has, by queue."""

    def __init__(self, sizes: dict[str, int]) -> None:
        self.sizes = sizes
        self.busy: Counter[str] = Counter()
        self.paused: frozenset[str] = frozenset()
        """Queues in which nothing is started. What runs, runs on."""
        self.is_draining = False
        self.exhausted: set[str] = set()
        """Queues whose last claim found fewer tasks than there were free slots."""

    def free(self) -> dict[str, int]:
        """Those to claim for: none in a paused queue."""
        return {
            queue: 0 if queue in self.paused else max(0, size - self.busy[queue]) for queue, size in self.sizes.items()
        }

    def may_start(self, queue: str) -> bool:
        return not self.is_draining and queue not in self.paused

    def note_claim(self, wanted: Mapping[str, int], found: Mapping[str, int]) -> bool:
        """Whether to claim again at once: a queue had as much as was wanted, and has a slot that became free."""
        asked = [queue for queue, want in wanted.items() if want > 0]
        short = {queue for queue in asked if found.get(queue, 0) < wanted[queue]}
        self.exhausted = self.exhausted.difference(asked) | short
        free = self.free()
        return any(free[queue] > 0 for queue in asked if queue not in short)


def limit_total(wanted: Mapping[str, int], most: int) -> dict[str, int]:
    """At most that many in all, the first queues first."""
    given: dict[str, int] = {}
    for queue, want in wanted.items():
        given[queue] = max(0, min(want, most - sum(given.values())))
    return given


def tokens() -> Iterator[str]:
    """Random names of attempts: no two attempts have the same."""
    while True:
        many = secrets.token_hex(TOKEN_SIZE // 2 * TOKENS_AT_ONCE)
        yield from (many[at : at + TOKEN_SIZE] for at in range(0, len(many), TOKEN_SIZE))


class Orphans:
    """Hands back, uncounted, what the store has started for this worker without the worker knowing of it.

    A claim whose answer was lost may be made long after the worker has given it up: a COMMIT waits for a slow disk, a
    stopped server still has the command in its socket. So the worker looks often for a full lease after a lost answer,
    and from time to time always. Nobody renews such a lease: it would end as a lost attempt that nobody ever ran.

    An attempt that ran here and whose end could not be written is no orphan. It counts: its lease runs out, and the
    reaper ends it as lost. Handed back, the stage could run any number of times.
    """

    def __init__(
        self, store: Store, transact: Transactor, worker: str, lease: float, own: Callable[[], Collection[str]],
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        """``own`` returns the tokens of all attempts that run here, and of those that a running commit may start."""
        self._store = store
        self._transact = transact
        self._worker = worker
        self._lease = lease
        self._own = own
        self._monotonic = monotonic
        self._next_look = monotonic() + lease / 3
        self._unsure_until = -math.inf
        self._unwritten: dict[str, float] = {}
        """Tokens of attempts that ran here and ended unwritten, and when each may be forgotten."""

    def note_unwritten(self, token: str) -> None:
        """Call this when an attempt leaves ``own`` and the store may still hold its lease."""
        self._unwritten[token] = self._monotonic() + 2 * self._lease

    def note_failed_claim(self, error: StoreError) -> None:
        now = self._monotonic()
        self._next_look = now
        if isinstance(error, UnknownOutcome) or self.is_unsure:  # what was sent may be made when the store is back
            self._unsure_until = now + self._lease

    @property
    def is_unsure(self) -> bool:
        """Whether a claim that was given up may still be made."""
        return self._monotonic() < self._unsure_until

    async def hand_back(self) -> None:
        """Look, if it is time to. No claim may run meanwhile."""
        if self._monotonic() < self._next_look:
            return
        # What is not ours comes on top of what is, and must not be hidden by it.
        held = await self._store.held_by(self._worker, BATCH + len(self._own()) + len(self._unwritten))
        own = {*self._own(), *self._unwritten}  # after the read: by now every attempt that it shows is known here
        self._forget_unwritten({found.token for job, task in held if (found := job.task(task)) is not None})
        stuck = StuckJobs()
        for job, task in held:
            found = job.task(task)
            if found is not None and found.token not in own:
                with stuck.collect():
                    if await self._transact.end_attempt(job, task, lifecycle.hand_back):
                        log.orphan_handed_back(job.id, task.stage)
        self._next_look = self._monotonic() + (min(LOOK, self._lease / 20) if self.is_unsure else self._lease / 3)
        stuck.log("handing back orphaned claims")

    def _forget_unwritten(self, shown: Collection[str | None]) -> None:
        """A look does not show a job that cannot be read, so a token that is missing is kept for two leases."""
        now = self._monotonic()
        self._unwritten = {token: at for token, at in self._unwritten.items() if now < at or token in shown}


# Handoff: the commit that finishes a stage also starts the next one, in the slot that becomes free.


class Handoffs:
    """Finds, for each attempt of a worker, the stage that may follow it in its slot."""

    def __init__(
        self, slots: Slots, kinds: Mapping[str, Collection[str]], tokens: Iterator[str],
        *, worker: str, lease: float, now: Callable[[], float],
    ) -> None:  # fmt: skip
        """``kinds`` are those that the worker has, by queue."""
        self.slots = slots
        self.kinds = {queue: tuple(each) for queue, each in kinds.items()}
        self.worker = worker
        self.lease = lease
        self.now = now
        self._tokens = tokens

    def after(self, claim: Claim) -> Handoff | None:
        task = next_task(claim, self.kinds)
        return None if task is None else Handoff(self, claim, task, next(self._tokens))


class Handoff:
    """The stage that may follow an attempt, with the token of its own first attempt."""

    def __init__(self, by: Handoffs, before: Claim, task: TaskId, token: str) -> None:
        self._by = by
        self._before = before
        self._task = task
        self._queue = before.job.plan.stage(task.stage).queue
        self.token = token
        self._was_tried = False

    def extend(self, finish: Change) -> Change:
        """Let the finish start the stage as well. Tried once: after a refusal, the finish is committed alone."""
        if self._was_tried or not self._is_due(finish) or not self._by.slots.may_start(self._queue):
            return finish
        self._was_tried = True
        by = self._by
        kinds = by.kinds[self._queue]
        return lifecycle.follow(
            finish, self._task, kinds=kinds, token=self.token, worker=by.worker, lease=by.lease, now=by.now()
        )

    def claim(self, job: Job, result: Result) -> Claim | None:
        """What a claim of the stage would have returned; None if the commit did not start it."""
        task = job.task(self._task)
        if task is None or task.token != self.token:
            return None
        known = {**self._before.upstream, self._before.task.stage: (result,)}
        needs = job.plan.stage(self._task.stage).needs
        return Claim(job, self._task, self._before.spec, {need.stage: known[need.stage] for need in needs})

    def _is_due(self, change: Change) -> bool:
        for effect in change.effects:  # noqa: SIM110 (a generator costs more than the loop)
            if isinstance(effect, MakeDue) and effect.task == self._task:
                return True
        return False


def next_task(claim: Claim, kinds: Mapping[str, Collection[str]]) -> TaskId | None:
    """The stage that needs nothing but what this attempt has, and may run in the same slot."""
    plan = claim.job.plan
    for stage in plan.heirs[claim.task.stage]:
        is_here = stage.queue == plan.stage(claim.task.stage).queue and stage.kind in kinds.get(stage.queue, ())
        if is_here and not stage.is_regulated:  # limits and turns are a claim's
            return TaskId(stage.name)
    return None
