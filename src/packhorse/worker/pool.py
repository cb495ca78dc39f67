"""The children of a worker: warm ones are used again, old ones replaced, and none outlives us."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import secrets
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

import psutil

from packhorse import host
from packhorse.core.plan import StagePlan
from packhorse.errors import DefinitionError
from packhorse.log import log
from packhorse.worker.child import guard, prctl
from packhorse.worker.process import MARK, Child

SWEEP = 0.5
"""Seconds between a stage's end and the look at what it may have left running."""
TICK = 0.02
"""Seconds. Start times of processes are told in hundredths."""
REST = 1.0
"""Seconds without new stages after one had to be handed back, whatever seems to be warm."""
OF_A_SHELL = frozenset({"_", "PWD", "OLDPWD", "SHLVL"})
"""Variables that a shell sets anew for whoever it starts."""


class Room(NamedTuple):
    """What can be taken on by those who are warm."""

    alone: int
    """Stages that have a process to themselves."""
    is_shared: bool
    """Whether stages that share a process have theirs."""


class Pool:
    def __init__(
        self, app: str, *, recycle: int, memory: int, grace: float, scratch: Path, log_line: Callable[[str], None]
    ) -> None:
        self._app = app
        self._recycle = recycle
        self._memory = memory
        self._grace = grace
        self._scratch = scratch
        self._log = log_line
        self._idle: list[Child] = []
        self._all: set[Child] = set()
        self._shared: Child | None = None
        self._starting = asyncio.Lock()
        self._guard: asyncio.subprocess.Process | None = None
        self._broken: str | None = None
        """Why no process can be started, since one could not."""
        self._rests_until = 0.0
        self._sweeping: asyncio.Task[None] | None = None
        self._may_have_left = False
        self._opened = 0.0
        self._brand = secrets.token_hex(8)
        """How the marks of all our children begin."""
        self._numbers = itertools.count(1)

    async def open(self) -> None:
        self._opened = host.clock()
        prctl.adopt_orphans()
        self._guard = await asyncio.create_subprocess_exec(
            sys.executable, "-ISE", guard.__file__, stdin=asyncio.subprocess.PIPE, start_new_session=True
        )
        self._tell_guard(f"{self._scratch}")

    async def single(self) -> Child:
        """A process that runs nothing else."""
        while self._idle:
            child = self._idle.pop()
            if _is_warm(child):
                return child
        return await self._start_now(shared=False)

    async def shared(self) -> Child:
        """The process in which async stages run side by side."""
        if (child := self._usable_shared()) is not None:  # nearly always, and a lock is not for nothing
            return child
        async with self._starting:
            old = self._shared
            if old is not None and _is_warm(old) and (old is self._usable_shared() or self._broken is not None):
                return old
            if self._broken is not None and self._is_resting():  # who waited for a start needs no failure of his own
                raise DefinitionError(self._broken)
            self._shared = await self._start_now(shared=True)
            if old is not None and _is_warm(old):
                self._retire_when_empty(old)
            return self._shared

    def _usable_shared(self) -> Child | None:
        """The shared process, if it is up and has not run enough yet. Stages here are many and small."""
        child = self._shared
        is_fit = child is not None and _is_warm(child) and child.runs < self._recycle * 100
        return child if is_fit else None

    def give_back(self, child: Child) -> None:
        """It is free again. One that ended, or has run enough, is replaced when the next is needed."""
        self._sweep_soon()
        if child.is_shared or child.is_ending or child.has_ended.is_set():
            return
        if child.runs >= self._recycle or (self._memory and child.memory > self._memory):
            self._retire_when_empty(child)
        else:
            self._idle.append(child)

    async def end(self, child: Child) -> None:
        """End a child and everything it started, whatever it takes."""
        await child.end(self._grace)

    def room(self) -> Room | None:
        """What more it can take on: anything, unless no process can be started at present.

        A file that is being edited, or a half-copied deploy: who is warm can still work, and nobody new can start.
        """
        if self._broken is None:
            return None
        if self._is_resting():
            return Room(0, False)
        return Room(len(self._idle), self._shared is not None and _is_warm(self._shared))

    async def reload(self) -> None:
        """See whether a process can be started again; it takes the place of one that is idle and older."""
        with contextlib.suppress(DefinitionError):
            child = await self._start(shared=False)
            if self._idle:
                self._retire_when_empty(self._idle.pop(0))
            self._idle.append(child)

    def busy(self) -> list[Child]:
        return [child for child in self._all if child.calls]

    async def close(self) -> None:
        await asyncio.gather(*(child.end(min(self._grace, 1.0)) for child in list(self._all)))
        if self._sweeping is not None:
            self._sweeping.cancel()
        await self._end_orphans()
        if self._guard is not None and self._guard.stdin is not None:
            with contextlib.suppress(OSError):
                self._guard.stdin.close()
            await self._guard.wait()

    async def _start_now(self, *, shared: bool) -> Child:
        """For a stage that waits for it, and will have to be handed back if there is none."""
        try:
            return await self._start(shared=shared)
        except DefinitionError:
            self._rests_until = time.monotonic() + REST
            raise

    def _is_resting(self) -> bool:
        return time.monotonic() < self._rests_until

    async def _start(self, *, shared: bool) -> Child:
        """Raises DefinitionError, also where the system has no process for us: the stage is as little to blame."""
        try:
            child = await Child.start(
                self._app,
                shared=shared,
                env=host.child_environment(),
                log=self._log,
                mark=f"{self._brand}.{next(self._numbers)}",
                born=self._register,
            )
        except DefinitionError as error:
            self._break(error.message, log.app_broken)
            raise
        except OSError as error:
            message = f"No process can be started: {error.strerror or error}"
            self._break(message, log.no_process)
            raise DefinitionError(message) from error
        if self._broken is not None:
            self._broken = None
            log.app_mended(self._app)
        return child

    def _break(self, message: str, tell: Callable[[str], None]) -> None:
        if message != self._broken:
            tell(message)
        self._broken = message

    def _register(self, child: Child) -> None:
        """As soon as the process is there, long before it is ready: who is not known here is an orphan to be ended."""
        self._all.add(child)
        self._tell_guard(f"+{child.pid}")
        asyncio.create_task(self._forget(child)).add_done_callback(_no_exception)

    async def _forget(self, child: Child) -> None:
        await child.has_ended.wait()
        self._all.discard(child)
        if child in self._idle:
            self._idle.remove(child)
        self._tell_guard(f"-{child.pid}")
        await self._end_orphans()

    def _retire_when_empty(self, child: Child) -> None:
        async def retire() -> None:
            await asyncio.gather(*(call.outcome for call in child.calls.values()), return_exceptions=True)
            await child.end(self._grace)

        asyncio.create_task(retire()).add_done_callback(_no_exception)

    def _tell_guard(self, line: str) -> None:
        if self._guard is not None and self._guard.stdin is not None and not self._guard.stdin.is_closing():
            self._guard.stdin.write(line.encode() + b"\n")

    def _sweep_soon(self) -> None:
        """A stage may have left something running. Not at once: the sweep looks at every process of the machine."""
        self._may_have_left = True
        if self._sweeping is None or self._sweeping.done():
            self._sweeping = asyncio.create_task(self._sweep())
            self._sweeping.add_done_callback(_no_exception)

    async def _sweep(self) -> None:
        while self._may_have_left:
            await asyncio.sleep(SWEEP)
            self._may_have_left = False
            self._may_have_left = await self._end_orphans() or self._may_have_left  # what was ended has to be reaped

    async def _end_orphans(self) -> bool:
        """End what stages have left behind, even where it had taken a session of its own; whether there was any.

        Only what has no parent any more, and was adopted by us: a process that its child still looks after may be
        kept for the next stage, as a warm child itself is. And only what a stage has started: as the first process of
        a container we adopt everybody, and a shell may have started others before it became this worker.
        """
        found = await asyncio.to_thread(psutil.Process().children)
        # Only now, back in the loop where children are started and registered in one go, is it sure who is ours.
        ours = {child.pid for child in self._all} | {self._guard.pid if self._guard else 0}
        ended = False
        for process in found:
            with contextlib.suppress(OSError, psutil.Error):
                if process.pid not in ours and self._is_left_behind(process.pid):
                    ended = True
                    process.kill()
                    os.waitpid(process.pid, os.WNOHANG)  # noqa: ASYNC222 (it does not wait; the rest is reaped later)
        return ended

    def _is_left_behind(self, pid: int) -> bool:
        """Whether a stage of ours has started it, and none that still runs.

        The mark tells, or that it has none because its environment was wiped. What was there before us never came from
        a stage, nor did what has inherited our own environment whole: a child would have added the mark.
        """
        born = host.born(pid, or_zombie=True)
        if born is None or born < self._opened or os.getsid(pid) == os.getsid(0):
            return False
        environment = _environment_of(pid)
        mark = environment.get(MARK)
        is_ours = mark.startswith(self._brand) if mark is not None else not _is_as_ours(environment)
        return is_ours and not self._is_in_use(pid, mark)

    def _is_in_use(self, pid: int, mark: str | None) -> bool:
        """Whether a stage that still runs may have started it: it is younger, and of the same child if that is told."""
        born = host.born(pid)
        if born is None:
            return False
        calls = (call for child in self._all if mark in (None, child.mark) for call in child.calls.values())
        return any(born > call.began - TICK for call in calls)


def may_share(stage: StagePlan) -> bool:
    """Async stages run side by side in one process, but not one whose memory is limited: only a process has that."""
    return stage.is_async and stage.memory is None


def _is_warm(child: Child) -> bool:
    return not child.has_ended.is_set() and not child.is_ending


def _environment_of(pid: int) -> dict[str, str]:
    """As it was started with; empty if it cannot be read, as a zombie's."""
    with contextlib.suppress(OSError, psutil.Error):
        return psutil.Process(pid).environ()
    return {}


def _is_as_ours(environment: Mapping[str, str]) -> bool:
    """Whether it has every name that ours has: then nobody has wiped it, and of a child it would have the mark."""
    return os.environ.keys() - OF_A_SHELL <= environment.keys()


def _no_exception(task: asyncio.Task[None]) -> None:
    if not task.cancelled():
        task.result()
