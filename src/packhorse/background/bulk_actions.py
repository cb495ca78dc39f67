"""Retries or dismisses many failures, step by step, as ordered by a person.

An order is stored, so that ten thousand retries are not one request and survive a restart of the server. One worker at
a time has it. A step that is repeated after a crash counts once: each failure records the order that settled it.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Mapping, Sequence

from msgspec.structs import replace

from packhorse.core import json, lifecycle
from packhorse.core.changes import Change
from packhorse.core.failures import FailureAction
from packhorse.core.models import FailedRun, FailureStatus, Job, Settled
from packhorse.core.plan import Status
from packhorse.crashpoints import reach
from packhorse.errors import CorruptRecord, JobNotFound, NotAllowed, SchemaTooNew, SlotTaken
from packhorse.jobs.transact import Transactor, Verb
from packhorse.log import log
from packhorse.schemas.orders import LeftFailure, Order, Why, order_from_action
from packhorse.store.base import Store
from packhorse.store.collections.failures import get_failures, settle_action, take_actions

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
SOONEST, LATEST = 5.0, 600.0
"""Seconds until a failed action is tried again; they double with each attempt."""


class BulkActions:
    def __init__(self, store: Store, transact: Transactor, hold: float = HOLD) -> None:
        self._store = store
        self._transact = transact
        self._hold = hold

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
        outcomes = await self._retry_all(action, order, open) if order.kind == "retry" else {}
        if order.kind == "dismiss":
            settled = Settled(self._store.now(), order.by, order.reason, order=action.id)
            dismissed = await self._store.dismiss_failures([each.id for each in open], settled)
            outcomes = {each.id: None if each.id in dismissed else "settled" for each in open}
        reach("order.retried")
        left: list[LeftFailure] = []
        done = 0
        for id, failure in page.items():
            why: Why | None = outcomes[id] if id in outcomes else _before(failure, action)
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

    async def _retry_all(self, action: FailureAction, order: Order, open: Sequence[FailedRun]) -> dict[str, Why | None]:
        whys = await asyncio.gather(*(self._retry(action, order, each) for each in open))
        return {each.id: why for each, why in zip(open, whys, strict=True)}

    async def _retry(self, action: FailureAction, order: Order, failure: FailedRun) -> Why | None:
        def verb(job: Job) -> Change | None:
            check_failed(job, failure)
            return lifecycle.retry(job, now=self._store.now(), by=order.by, order=action.id)

        return await try_verb(self._transact, failure, verb)


def check_failed(job: Job, failure: FailedRun) -> None:
    """Raises NotAllowed unless the failed run is still the job's last one."""
    if job.run != failure.run or job.status is not Status.FAILED:
        raise NotAllowed(verb="retry", status=job.status.value)


async def try_verb(transact: Transactor, failure: FailedRun, verb: Verb) -> Why | None:
    """Retry the job; return why not, if it cannot be retried."""
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


def _before(failure: FailedRun | None, action: FailureAction) -> Why | None:
    """Of a failure that was not open any more: None, for done, if this order settled it."""
    if failure is None:
        return "gone"
    return None if failure.settled is not None and failure.settled.order == action.id else "settled"


async def run_or_postpone(store: Store, actions: Sequence[FailureAction], work: Awaitable[None]) -> None:
    try:
        await work
    except Exception as error:  # broad: those behind it, of other tenants too, would never have their turn
        log.duty_failed(f"action {actions[0].id}", error)
        await _put_back(store, actions)


async def _put_back(store: Store, actions: Sequence[FailureAction]) -> None:
    for action in actions:
        pause = min(LATEST, SOONEST * 2 ** min(action.attempts, 10))
        try:
            await settle_action(store, action, due_at=store.now() + pause)
        except Exception as error:  # broad, as above; it is due again by itself
            log.duty_failed(f"action {action.id}", error)
            return
