"""Retries or dismisses failures, by the orders of people and by the retry policies of pipelines.

An order is stored, so that ten thousand retries are not one request and survive a restart of the server. One worker at
a time has it. A step that is repeated after a crash counts once: each failure records the order that settled it.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Mapping, Sequence
from typing import Any
from urllib.parse import quote

from msgspec.structs import replace

from packhorse.core import json, lifecycle
from packhorse.core.changes import Change
from packhorse.core.failures import FailureAction
from packhorse.core.models import FailedRun, FailureStatus, Job, Settled
from packhorse.core.plan import Status
from packhorse.crashpoints import reach
from packhorse.errors import CorruptRecord, JobNotFound, NotAllowed, SchemaTooNew, SlotTaken
from packhorse.jobs.transact import Transactor
from packhorse.log import log
from packhorse.schemas.failures import LeftFailure, Order, Why, order_from_action
from packhorse.store.base import Charge, Store
from packhorse.store.collections.failures import get_failures, get_group, settle_action, take_actions

BATCH = 100
"""Failures per step, at most."""
AT_ONCE = 10
"""Orders that one worker has at a time."""
HOLD = 60.0
"""Seconds that this worker holds an order. If a step takes longer, another worker repeats it; it counts once."""
NAMED = 100
"""Failures that an order lists as unchanged. Further ones are only counted."""
POLL = 1.0
STEP = 1.0
"""Seconds between the steps of an order with a pace, unless the pace is slower than one per step."""
POLICY = "policy"
"""Recorded as the author of automatic retries."""
BUSY = 60.0
"""Seconds until the next automatic retry of a job whose user has another active one."""
SOONEST, LATEST = 5.0, 600.0
"""Seconds until a failed action is retried; they double with each attempt."""


class _Actions:
    def __init__(self, store: Store, transact: Transactor, hold: float = HOLD) -> None:
        self._store = store
        self._transact = transact
        self._hold = hold


class BulkActions(_Actions):
    """Carries out orders, step by step."""

    async def tick(self) -> float:
        taken = await take_actions(self._store, "order", AT_ONCE, self._hold)
        for action in taken:
            await run_or_postpone(self._store, [action], self._step(action))
        return 0.0 if taken else POLL

    async def _step(self, action: FailureAction) -> None:
        order = order_from_action(action)
        size = BATCH if order.pace is None else max(1, min(BATCH, int(order.pace * STEP)))
        page, is_last = await self._page(action, order, size)
        after = await self._carry_out(action, order, page)
        now = self._store.now()
        if is_last:
            after = replace(after, ended_at=now)
            await settle_action(self._store, action, due_at=None, body=json.encode(after), is_kept=True)
            return
        pause = 0.0 if order.pace is None else size / order.pace
        await settle_action(self._store, action, due_at=now + pause, body=json.encode(after))

    async def _page(self, action: FailureAction, order: Order, size: int) -> tuple[dict[str, FailedRun | None], bool]:
        """The next failures, by id, and whether they are the last."""
        if order.wanted is None:
            start = 0 if order.cursor is None else order.ids.index(order.cursor) + 1
            ids = order.ids[start : start + size]
            found = await get_failures(self._store, ids)
            known = {
                id: each if each and each.tenant == action.tenant else None for id, each in zip(ids, found, strict=True)
            }
            return known, start + size >= len(order.ids)
        # Whatever their status: failures that this order settled before a crash are counted, too.
        wanted = replace(order.wanted, status=None)
        page = await self._store.failures(wanted, before=order.cursor, limit=size)
        return {each.id: each for each in page}, len(page) < size

    async def _carry_out(self, action: FailureAction, order: Order, page: Mapping[str, FailedRun | None]) -> Order:
        open = [each for each in page.values() if each is not None and each.status is FailureStatus.OPEN]
        whys: list[Why | None]
        if order.kind == "retry":
            facts = {"by": order.by, "order": action.id}
            whys = await asyncio.gather(*(retry_failure(self._store, self._transact, each, **facts) for each in open))
        else:
            settled = Settled(self._store.now(), order.by, order.reason, order=action.id)
            dismissed = await self._store.dismiss_failures([each.id for each in open], settled)
            whys = [None if each.id in dismissed else "settled" for each in open]
        outcomes = {each.id: why for each, why in zip(open, whys, strict=True)}
        reach("order.retried")
        left: list[LeftFailure] = []
        done = 0
        for id, failure in page.items():
            why = outcomes[id] if id in outcomes else _earlier_outcome(failure, action)
            if why is None:
                done += 1
            elif why != "settled" or order.wanted is None:  # a filter means open ones only
                left.append(LeftFailure(id, why))
        return replace(
            order,
            cursor=list(page)[-1] if page else order.cursor,
            done=order.done + done,
            left=dict(Counter(order.left) + Counter(each.why for each in left)),
            named=(*order.named, *left)[:NAMED],
        )


class AutoRetry(_Actions):
    """Retries failed jobs as their pipelines say: for which error codes, how often, and within which budget.

    The store decides who takes an action and whether the budget has room.
    """

    async def tick(self) -> float:
        taken = await take_actions(self._store, "revive", BATCH, self._hold)
        for action in taken:
            await run_or_postpone(self._store, [action], self._retry(action))
        return 0.0 if len(taken) == BATCH else POLL

    async def _retry(self, action: FailureAction) -> None:
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
        counter = f"revive:{quote(failure.tenant, safe='')}/{failure.fingerprint}"  # shared by all workers
        charge = Charge(counter, 1, *failure.budget)
        spent = await self._store.spend([charge])
        if spent.refused is not None:
            return spent.wait
        reach("revival.spent")
        why = await retry_failure(self._store, self._transact, failure, by=POLICY, is_revival=True)
        reach("revival.made")
        if why is None:
            return None
        await self._store.refund([charge], spent.at)
        return BUSY if why == "slot_taken" else None


async def retry_failure(store: Store, transact: Transactor, failure: FailedRun, **facts: Any) -> Why | None:
    """Retry the job if the failed run is still its last one; otherwise return why not."""

    def verb(job: Job) -> Change | None:
        if job.run != failure.run or job.status is not Status.FAILED:
            raise NotAllowed(verb="retry", status=job.status.value)
        return lifecycle.retry(job, now=store.now(), **facts)

    try:
        await transact(failure.job_id, verb)
    except JobNotFound:
        return "gone"
    except SlotTaken:
        return "slot_taken"
    except NotAllowed:
        return "running"
    except (CorruptRecord, SchemaTooNew):
        return "unreadable"
    return None


def _earlier_outcome(failure: FailedRun | None, action: FailureAction) -> Why | None:
    """Of a failure that was not open any more: None, for done, if this order settled it."""
    if failure is None:
        return "gone"
    return None if failure.settled is not None and failure.settled.order == action.id else "settled"


async def run_or_postpone(store: Store, actions: Sequence[FailureAction], work: Awaitable[None]) -> None:
    try:
        await work
    except Exception as error:  # broad: those behind it, of other tenants too, would never have their turn
        log.background_failed(f"action {actions[0].id}", error)
        try:
            for action in actions:
                pause = min(LATEST, SOONEST * 2 ** min(action.attempts, 10))
                await settle_action(store, action, due_at=store.now() + pause)
        except Exception as again:  # broad, as above; they are due again by themselves
            log.background_failed(f"action {actions[0].id}", again)
