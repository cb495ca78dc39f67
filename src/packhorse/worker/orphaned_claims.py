"""Attempts that the store has started for us and whose news was lost on the way: nobody runs them, and nobody would."""

from __future__ import annotations

from collections.abc import Collection
from contextlib import suppress
from functools import partial

from packhorse.core import lifecycle
from packhorse.errors import Conflict, Refused
from packhorse.jobs.transact import Settle
from packhorse.store.base import Store

BATCH = 100


async def hand_back(store: Store, settle: Settle, worker: str, running: Collection[str]) -> None:
    """Hand back, uncounted, what this worker holds of jobs that it is not running: an outage spends no attempt.

    A job that runs here is left alone: the commit that ends one of its stages and starts the next may be on its way.
    """
    for job, task in await store.held_by(worker, BATCH):
        held = job.task(task)
        if job.id in running or held is None or held.token is None:
            continue
        with suppress(Conflict, Refused):
            await settle(job.id, partial(lifecycle.hand_back, at=task, token=held.token, now=store.now()))
