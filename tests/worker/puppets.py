"""A child and a pool that do what a test tells them to, for attempts that need no process."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import cast

from packhorse.blobs.base import Blobs
from packhorse.jobs.transact import Transactor
from packhorse.settings import Settings
from packhorse.store.base import Store
from packhorse.worker.attempt import Resources
from packhorse.worker.child.messages import Document, Returned, Run, Stop
from packhorse.worker.pool import Pool
from packhorse.worker.process import Call, ChildDied, Listener, Outcome, Then
from packhorse.worker.reporter import Reporter

Act = Callable[[Run, Listener], Outcome | Exception | None]
"""What a stage does with its call; None: it never ends by itself."""


def returns(value: bytes = b'"done"') -> Act:
    """Uses no scratch folder, and says so as a child does: then nobody looks for one afterwards."""
    return lambda run, _: Returned(run.call, Document(value), None, has_scratch=False)


def returns_files(*names: str) -> Act:
    """Writes files into its scratch folder and returns them."""

    def act(run: Run, _listener: Listener) -> Outcome:
        folder = Path(run.scratch)
        folder.mkdir(parents=True, exist_ok=True)
        for name in names:
            (folder / name).write_text(name)
        files = tuple((str(folder / name), name) for name in names)
        return Returned(run.call, Document(b"1", files), None, has_scratch=True)

    return act


def dies(_run: Run, _listener: Listener) -> Exception:
    return ChildDied("was killed by SIGTERM")


class Puppet:
    """Stands in for a child. ``at_end`` is what it does with its calls when it is ended."""

    def __init__(self, act: Act, at_end: Act = dies) -> None:
        self.act = act
        self.at_end = at_end
        self.is_shared = False
        self.is_ending = False
        self.runs: list[Run] = []
        self.has_begun = asyncio.Event()
        self._calls: list[Call] = []

    def number(self) -> int:
        return len(self.runs) + 1

    def run(self, message: Run, listener: Listener, then: Then | None = None) -> Call:
        self.runs.append(message)
        call = Call(message.call, listener, then)
        self._calls.append(call)
        self._set(call, self.act(message, listener))
        self.has_begun.set()
        return call

    def send(self, message: Stop) -> None: ...

    def end(self) -> None:
        for call, message in zip(self._calls, self.runs, strict=True):
            self._set(call, self.at_end(message, call.listener))

    def _set(self, call: Call, outcome: Outcome | Exception | None) -> None:
        if outcome is not None:
            call.end(outcome)


class PuppetPool:
    """Gives out one puppet, and may be slow to do so."""

    def __init__(self, puppet: Puppet) -> None:
        self.puppet = puppet
        self.may_give = asyncio.Event()
        self.may_give.set()
        self.is_asked = asyncio.Event()
        self.given_back = 0

    async def single(self, _owner: str = "") -> Puppet:
        self.is_asked.set()
        await self.may_give.wait()
        return self.puppet

    async def shared(self) -> Puppet:
        return await self.single()

    def warm_shared(self) -> Puppet | None:
        return self.puppet if self.puppet.is_shared else None

    def give_back(self, _child: Puppet) -> None:
        self.given_back += 1

    async def end(self, child: Puppet) -> None:
        child.is_ending = True
        child.end()


def resources(store: Store, blobs: Blobs, transact: Transactor, scratch: Path, pool: PuppetPool) -> Resources:
    return Resources(
        store=store,
        blobs=blobs,
        transact=transact,
        pool=cast(Pool, pool),
        reporter=Reporter(store, log_limit=10_000, samples=10),
        settings=Settings(secret_key="k" * 40, grace=0.0, result_limit=1000, log_rate=1000),
        scratch=scratch,
        luck=lambda: 0.0,
    )
