"""Going on with a job: the commit that finishes a stage starts the next one in the slot that becomes free."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from packhorse.core import lifecycle
from packhorse.core.changes import Change, MakeDue
from packhorse.core.models import Job, Result, TaskId
from packhorse.jobs.transact import Verb
from packhorse.store.base import Claim


class Heir:
    """The stage that may follow an attempt, and the token of its first attempt."""

    def __init__(
        self, claim: Claim, at: TaskId, *, kinds: Collection[str], token: str, worker: str, lease: float,
        now: Callable[[], float], may_start: Callable[[], bool] = lambda: True,
    ) -> None:  # fmt: skip
        self._before = claim
        self._at = at
        self._token = token
        self._kinds = kinds
        self._worker = worker
        self._lease = lease
        self._now = now
        self._may_start = may_start
        self._is_asked_for = False

    def after(self, finish: Verb) -> Verb:
        """The finish that starts it, too. Once refused, for whatever reason, the finish goes alone."""

        def both(job: Job) -> Change | None:
            change = finish(job)
            if change is None or self._is_asked_for or not self._is_due(change) or not self._may_start():
                return change
            self._is_asked_for = True
            return lifecycle.follow(
                change,
                self._at,
                kinds=self._kinds,
                token=self._token,
                worker=self._worker,
                lease=self._lease,
                now=self._now(),
            )

        return both

    def claim(self, job: Job, result: Result) -> Claim | None:
        """What was started, if it was: all that it needs is here already."""
        task = job.task(self._at)
        if task is None or task.token != self._token:
            return None
        known = {**self._before.upstream, self._before.task.stage: (result,)}
        needs = job.plan.stage(self._at.stage).needs
        return Claim(job, self._at, self._before.spec, {need.stage: known[need.stage] for need in needs})

    def _is_due(self, change: Change) -> bool:
        for effect in change.effects:  # noqa: SIM110 (a generator costs more than the look)
            if isinstance(effect, MakeDue) and effect.task == self._at:
                return True
        return False


def heir(claim: Claim, kinds: Mapping[str, Collection[str]]) -> TaskId | None:
    """The stage that needs nothing but what this attempt has, and may take over its slot.

    ``kinds`` are those that this worker has, by queue.
    """
    plan = claim.job.plan
    for stage in plan.heirs[claim.task.stage]:
        if stage.queue == plan.stage(claim.task.stage).queue and stage.kind in kinds.get(stage.queue, ()):
            return TaskId(stage.name)
    return None
