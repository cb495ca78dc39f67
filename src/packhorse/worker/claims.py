"""The claims of a worker: the tokens of its attempts, and claims whose answer from the store was lost."""

from __future__ import annotations

import secrets
from collections.abc import Collection, Iterator
from contextlib import suppress
from functools import partial

from packhorse.core import lifecycle
from packhorse.errors import Conflict, Refused
from packhorse.jobs.transact import Transactor
from packhorse.store.base import Store

TOKEN_SIZE = 16
"""Characters of a token."""
TOKENS_AT_ONCE = 256
"""Tokens made of one call to the system, which costs more than all the rest."""
BATCH = 100


def tokens() -> Iterator[str]:
    """Random names of attempts: no two attempts have the same."""
    while True:
        many = secrets.token_hex(TOKEN_SIZE // 2 * TOKENS_AT_ONCE)
        yield from (many[at : at + TOKEN_SIZE] for at in range(0, len(many), TOKEN_SIZE))


async def hand_back_orphans(store: Store, transact: Transactor, worker: str, running: Collection[str]) -> None:
    """Hand back, uncounted, what the store has started for this worker without the worker knowing of it.

    Its jobs that run here are left alone: a commit that ends one stage and starts the next may be under way.
    """
    for job, task in await store.held_by(worker, BATCH):
        held = job.task(task)
        if job.id in running or held is None or held.token is None:
            continue
        with suppress(Conflict, Refused):
            await transact(job.id, partial(lifecycle.hand_back, at=task, token=held.token, now=store.now()))
