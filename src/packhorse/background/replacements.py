"""Ends the jobs that newer ones replace, where the submitter of the newer job died before it had done so."""

from __future__ import annotations

from packhorse.jobs.submit import replace_others
from packhorse.store.base import Store
from packhorse.store.collections.replacements import take_replacements

BATCH = 20
HOLD = 60.0
"""Seconds after which another worker repeats what this one has begun and not finished."""
POLL = 5.0


class Replacements:
    def __init__(self, store: Store, hold: float = HOLD) -> None:
        self._store = store
        self._hold = hold

    async def tick(self) -> float:
        taken = await take_replacements(self._store, BATCH, self._hold)
        for each in taken:
            await replace_others(self._store, each)
        return 0.0 if len(taken) == BATCH else POLL
