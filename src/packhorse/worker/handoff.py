"""The commit that finishes a stage also starts the next one, in the slot that becomes free."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping

from packhorse.core import lifecycle
from packhorse.core.changes import Change, MakeDue
from packhorse.core.models import Job, Result, TaskId
from packhorse.store.base import Claim
from packhorse.worker.claims import Slots


class Handoffs:
    """Finds, for each attempt of a worker, the stage that may follow it in its slot."""

    def __init__(
        self, slots: Slots, kinds: Mapping[str, Collection[str]], tokens: Iterator[str],
        *, worker: str, lease: float, now: Callable[[], float],
    ) -> None:  # fmt: skip
        """``kinds`` are those that the worker has, by queue."""
        self.slots = slots
        self.kinds = kinds
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
        self._token = token
        self._was_tried = False

    def extend(self, finish: Change) -> Change:
        """Let the finish start the stage as well. Tried once: after a refusal, the finish is committed alone."""
        if self._was_tried or not self._is_due(finish) or not self._by.slots.may_start(self._queue):
            return finish
        self._was_tried = True
        by = self._by
        kinds = by.kinds[self._queue]
        return lifecycle.follow(
            finish, self._task, kinds=kinds, token=self._token, worker=by.worker, lease=by.lease, now=by.now()
        )

    def claim(self, job: Job, result: Result) -> Claim | None:
        """What a claim of the stage would have returned; None if the commit did not start it."""
        task = job.task(self._task)
        if task is None or task.token != self._token:
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
        if stage.queue == plan.stage(claim.task.stage).queue and stage.kind in kinds.get(stage.queue, ()):
            return TaskId(stage.name)
    return None
