"""Notices dead workers of this host at once, instead of waiting for their leases to run out."""

from __future__ import annotations

import asyncio
import shutil
from contextlib import suppress
from functools import partial

from packhorse.core import lifecycle
from packhorse.engine import host
from packhorse.engine.settle import Settle
from packhorse.errors import Conflict, Refused
from packhorse.store.base import Store, WorkerCard
from packhorse.telemetry import log

BATCH = 100
PERIOD = 0.5
LONG_GONE = 20
"""Leases after which a silent worker of another host, which nobody here can look at, is forgotten."""


class Neighbours:
    def __init__(self, store: Store, settle: Settle, me: WorkerCard, lease: float) -> None:
        self._store = store
        self._settle = settle
        self._me = me
        self._lease = lease

    async def tick(self) -> float:
        for card in await self._store.workers():
            if card.id == self._me.id:
                continue
            if self._can_see(card):
                if not host.is_alive(card.pid, card.born):
                    await self._bury(card)
            elif self._store.now() - card.seen_at > LONG_GONE * self._lease:
                await self._store.dismiss(card.id)
        return PERIOD

    def _can_see(self, card: WorkerCard) -> bool:
        """Same boot and same set of pids. A host name would not do: containers share it and machines reuse it."""
        return (card.boot, card.pid_space) == (self._me.boot, self._me.pid_space)

    async def _bury(self, card: WorkerCard) -> None:
        """Its jobs before itself: who forgot the worker first would lose track of what it held."""
        freed, before = 0, -1
        while freed > before and (held := await self._store.held_by(card.id, BATCH)):
            before = freed
            for job, task in held:
                lease = job.task(task)
                if lease is None or lease.token is None:
                    continue
                verb = partial(lifecycle.lose, at=task, token=lease.token, now=self._store.now(), witnessed=True)
                with suppress(Conflict, Refused):
                    await self._settle(job.id, verb)
                    freed += 1
        if card.scratch:
            await asyncio.to_thread(shutil.rmtree, card.scratch, ignore_errors=True)
        await self._store.dismiss(card.id)
        log.worker_lost(card.id, freed)
