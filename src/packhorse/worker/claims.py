"""What a worker claims: its slots by queue, the tokens of its attempts, and claims whose answer was lost."""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
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
