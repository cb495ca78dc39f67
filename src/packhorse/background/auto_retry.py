"""Retries failed jobs as their pipelines say: for which error codes, how often, and within which budget."""

from __future__ import annotations

from urllib.parse import quote

from packhorse.background.bulk_actions import check_failed, run_or_postpone, try_verb
from packhorse.core import lifecycle
from packhorse.core.changes import Change
from packhorse.core.failures import FailureAction
from packhorse.core.models import FailedRun, FailureStatus, Job
from packhorse.crashpoints import reach
from packhorse.jobs.transact import Transactor
from packhorse.store.base import Charge, Store
from packhorse.store.collections.failures import get_failures, get_group, settle_action, take_actions

POLICY = "policy"
"""Recorded as the author of these retries."""
BATCH = 100
HOLD = 60.0
"""Seconds that this worker holds an action."""
POLL = 1.0
BUSY = 60.0
"""Seconds until the next try for a job whose user has another active one."""


class AutoRetry:
    """Runs in every worker. The store decides who takes an action and whether the budget has room."""

    def __init__(self, store: Store, transact: Transactor, hold: float = HOLD) -> None:
        self._store = store
        self._transact = transact
        self._hold = hold

    async def tick(self) -> float:
        taken = await take_actions(self._store, "revive", BATCH, self._hold)
        for action in taken:
            await run_or_postpone(self._store, [action], self._revive(action))
        return 0.0 if len(taken) == BATCH else POLL

    async def _revive(self, action: FailureAction) -> None:
        wait = await self._try_retry(action)
        await settle_action(self._store, action, due_at=None if wait is None else self._store.now() + wait)

    async def _try_retry(self, action: FailureAction) -> float | None:
        """Seconds until the next try; None if it is done."""
        [failure] = await get_failures(self._store, [action.id.removeprefix("revive.")])
        if failure is None or failure.status is not FailureStatus.OPEN or failure.budget is None:
            return None
        group = await get_group(self._store, failure.tenant, failure.fingerprint)
        if group is None or group.dismissal is not None:
            return None
        charge = budget_of(failure, *failure.budget)
        spent = await self._store.spend([charge])
        if spent.refused is not None:
            return spent.wait
        reach("revival.spent")
        why = await self._begin(failure)
        reach("revival.made")
        if why is None:
            return None
        await self._store.refund([charge], spent.at)
        return BUSY if why == "slot_taken" else None

    async def _begin(self, failure: FailedRun) -> str | None:
        def verb(job: Job) -> Change | None:
            check_failed(job, failure)
            return lifecycle.retry(job, now=self._store.now(), by=POLICY, is_revival=True)

        return await try_verb(self._transact, failure, verb)


def budget_of(failure: FailedRun, budget: int, per: float) -> Charge:
    """One counter per tenant and fingerprint, for all workers."""
    return Charge(f"revive:{quote(failure.tenant, safe='')}/{failure.fingerprint}", 1, budget, per)
