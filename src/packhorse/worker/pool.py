"""The child processes of a worker: reused while warm, replaced when old. One reads what the app defines."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import secrets
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import psutil
from msgspec import Struct

from packhorse import host
from packhorse.core import json
from packhorse.core.plan import Definition, StagePlan
from packhorse.core.schedules import Declared
from packhorse.errors import DefinitionError, SettingError
from packhorse.log import log
from packhorse.worker.cgroups import MemoryGroups
from packhorse.worker.child import guard
from packhorse.worker.process import START, Child, wait_at_most

SWEEP = 0.5
"""Seconds from the end of a stage to the search for processes that it left running."""
TICK = 0.02
"""Seconds. The system gives start times of processes in hundredths."""
REST = 1.0
"""Seconds without new stages after one had to be handed back, even if warm processes seem to be there."""
OF_A_SHELL = frozenset({"_", "PWD", "OLDPWD", "SHLVL"})
"""Variables that a shell sets for each process it starts."""


class Room(NamedTuple):
    """How many more stages the warm processes can run."""

    alone: int
    """Stages that need a process of their own."""
    is_shared: bool
    """Whether the process for stages that share one is there."""


class Pool:
    def __init__(
        self,
        app: str,
        scratch: Path,
        *,
        recycle: int,
        memory: int,
        grace: float,
        log_line: Callable[[str], None] = log.printed,
        user: host.StageUser | None = None,
    ) -> None:
        self._app = app
        self._recycle = recycle
        self._memory = memory
        self._grace = grace
        self._scratch = scratch
        self._log = log_line
        self._user = user
        self._idle: list[Child] = []
        self._all: set[Child] = set()
        self._shared: Child | None = None
        self._starting = asyncio.Lock()
        self._guard: asyncio.subprocess.Process | None = None
        self._broken: str | None = None
        """Why the last process could not be started; None if it could."""
        self._rests_until = 0.0
        self._sweeping: asyncio.Task[None] | None = None
        self._may_have_left = False
        self._opened = 0.0
        self._groups: MemoryGroups | None = None
        self._brand = secrets.token_hex(8)
        """The prefix of the marks of all our children."""
        self._numbers = itertools.count(1)

    async def open(self) -> None:
        self._opened = host.clock()
        self._groups = MemoryGroups.open()
        guard.adopt_orphans()
        self._guard = await asyncio.create_subprocess_exec(
            sys.executable,
            "-ISE",
            guard.__file__,
            stdin=asyncio.subprocess.PIPE,
            start_new_session=True,
            env=host.child_environment("guard"),
        )
        self._tell_guard(f"{self._scratch}")

    @property
    def has_groups(self) -> bool:
        """Whether each process has a cgroup of its own."""
        return self._groups is not None

    async def single(self, owner: str = "") -> Child:
        """A process that runs nothing else, and has run stages of no other owner."""
        while self._idle:
            at = next((i for i in reversed(range(len(self._idle))) if self._idle[i].owner in ("", owner)), None)
            child = self._idle.pop(0 if at is None else at)
            if at is None:  # it makes room for one of this owner
                self._retire_when_empty(child)
                break
            if child.is_warm:
                child.owner = owner
                return child
        child = await self._start_now(shared=False)
        child.owner = owner
        return child

    async def shared(self) -> Child:
        """The process in which async stages run side by side."""
        if (child := self.warm_shared()) is not None:  # nearly always; taking the lock would cost time
            return child
        async with self._starting:
            old = self._shared
            if old is not None and old.is_warm and (old is self.warm_shared() or self._broken is not None):
                return old
            if self._broken is not None and self._is_resting():  # the one before has just failed: fail at once
                raise DefinitionError(self._broken)
            self._shared = await self._start_now(shared=True)
            if old is not None and old.is_warm:
                self._retire_when_empty(old)
            return self._shared

    def warm_shared(self) -> Child | None:
        """The shared process, if it is up and need not be recycled. Its stages are many and small."""
        child = self._shared
        is_fit = child is not None and child.is_warm and child.runs < self._recycle * 100
        return child if is_fit else None

    def give_back(self, child: Child) -> None:
        """Return a child after a call. One that ended, or has run enough, is replaced when the next is needed."""
        self._sweep_soon()
        if child.is_shared or not child.is_warm:
            return
        if child.runs >= self._recycle or (self._memory and child.memory > self._memory):
            self._retire_when_empty(child)
        else:
            self._idle.append(child)

    async def end(self, child: Child) -> None:
        """End a child and every process it started."""
        await child.end(self._grace)

    def room(self) -> Room | None:
        """None if there is no limit; otherwise what the warm processes can take while no new one can be started.

        That happens while a file of the app is being edited, or during a deploy.
        """
        if self._broken is None:
            return None
        if self._is_resting():
            return Room(0, False)
        return Room(len(self._idle), self._shared is not None and self._shared.is_warm)

    async def reload(self) -> None:
        """Try to start a process again; it replaces the oldest idle one."""
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
        """For a waiting stage, which is handed back if this fails."""
        try:
            return await self._start(shared=shared)
        except DefinitionError:
            self._rests_until = time.monotonic() + REST
            raise

    def _is_resting(self) -> bool:
        return time.monotonic() < self._rests_until

    async def _start(self, *, shared: bool) -> Child:
        """Raises DefinitionError, also if the system cannot start a process: the stage is not to blame."""
        try:
            mark = f"{self._brand}.{next(self._numbers)}"
            child = await Child.start(
                self._app, shared=shared, log=self._log, mark=mark, born=self._register, user=self._user
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
        """As soon as the process exists, long before it is ready: an unregistered process is ended as an orphan."""
        self._all.add(child)
        child.group = None if self._groups is None else self._groups.add(child.pid)
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
        """A stage may have left a process running. Not at once: the sweep reads every process of the machine."""
        self._may_have_left = True
        if self._sweeping is None or self._sweeping.done():
            self._sweeping = asyncio.create_task(self._sweep())
            self._sweeping.add_done_callback(_no_exception)

    async def _sweep(self) -> None:
        while self._may_have_left:
            await asyncio.sleep(SWEEP)
            self._may_have_left = False
            self._may_have_left = await self._end_orphans() or self._may_have_left  # ended ones must be reaped

    async def _end_orphans(self) -> bool:
        """End processes that stages left behind, even in sessions of their own; return whether there were any.

        Only those whose parent has ended, so that the system made us their parent: a process that a living child
        started may serve its next stage. And only those that a stage started: as the first process of a container we
        adopt every orphan, and a shell may have started others before it became this worker.
        """
        found = await asyncio.to_thread(psutil.Process().children)
        # Read back in the event loop, where children are started and registered without a gap.
        ours = {child.pid for child in self._all} | {self._guard.pid if self._guard else 0}
        ended = False
        for process in found:
            with contextlib.suppress(OSError, psutil.Error):
                if process.pid not in ours and self._is_left_behind(process.pid):
                    ended = True
                    process.kill()
                    os.waitpid(process.pid, os.WNOHANG)  # noqa: ASYNC222 (it does not block; the rest is reaped later)
        return ended

    def _is_left_behind(self, pid: int) -> bool:
        """Whether one of our stages started it, and that stage no longer runs.

        It has our mark, or no mark because its environment was cleared. A process older than this worker did not come
        from a stage, nor did one that has our own environment unchanged: a child would have added the mark.
        """
        born = host.born(pid, or_zombie=True)
        if born is None or born < self._opened or os.getsid(pid) == os.getsid(0):
            return False
        environment = _environment_of(pid)
        mark = environment.get(host.MARK)
        is_ours = (
            mark.startswith(self._brand)
            if mark is not None
            else not environment.keys() >= host.STARTED_WITH - OF_A_SHELL
        )
        return is_ours and not self._is_in_use(pid, mark)

    def _is_in_use(self, pid: int, mark: str | None) -> bool:
        """Whether a running stage may have started it: it is younger, and of the same child if the mark is known."""
        born = host.born(pid)
        if born is None:
            return False
        calls = (call for child in self._all if mark in (None, child.mark) for call in child.calls.values())
        return any(born > call.began - TICK for call in calls)


class Description(Struct, frozen=True):
    definitions: Sequence[Definition]
    queues: Mapping[str, frozenset[str]]
    """What kinds of stages use each queue."""
    sharing: frozenset[str] = frozenset()
    """The kinds that run side by side in one process."""
    files: tuple[str, ...] = ()
    """Of all modules that were loaded with the app, ours and Python's included."""
    schedules: Sequence[Declared] = ()
    postgres: str | None = None
    """The SQL file that the app declares."""

    @property
    def kinds(self) -> frozenset[str]:
        return frozenset().union(*self.queues.values())


class _Reply(Struct):
    definitions: list[Definition] = []
    schedules: list[Declared] = []
    files: tuple[str, ...] = ()
    postgres: str | None = None
    error: str | None = None


async def describe(app: str, user: host.StageUser | None = None) -> Description:
    command = [sys.executable, "-m", "packhorse.worker.child", "describe", app]
    out = await (_output(app, command) if user is None else asyncio.to_thread(_output_of_user, app, command, user))
    reply = json.decode(out, _Reply) if out else _Reply(error=f"{app} ended the process that loads it.")
    if reply.error is not None:
        raise DefinitionError(reply.error)
    if not reply.definitions:
        raise DefinitionError(f"{app} defines no pipeline: add one with app.pipeline(...) or @app.job.")
    plans = [json.plan_from(definition.plan) for definition in reply.definitions]
    stages = [stage for plan in plans for stage in plan.stages]
    queues = sorted({stage.queue for stage in stages})
    return Description(
        reply.definitions,
        {queue: frozenset(stage.kind for stage in stages if stage.queue == queue) for queue in queues},
        frozenset(stage.kind for stage in stages if may_share(stage)),
        reply.files,
        reply.schedules,
        reply.postgres,
    )


async def _output(app: str, command: Sequence[str]) -> bytes:
    process = await asyncio.create_subprocess_exec(
        *command, stdout=asyncio.subprocess.PIPE, env=host.child_environment("describe")
    )
    try:
        async with asyncio.timeout(START):
            out, _ = await process.communicate()
    except TimeoutError:
        raise DefinitionError(f"{app} took longer than {START:.0f} s to load.") from None
    finally:
        if process.returncode is None:
            process.kill()
            await wait_at_most(process.wait(), 1.0)  # this also waits for processes that hold its output
    return out


def _output_of_user(app: str, command: Sequence[str], user: host.StageUser) -> bytes:
    """In a thread: uvloop starts no processes of another user."""
    env = host.child_environment("describe") | user.environment()
    try:
        out: bytes = subprocess.run(
            command, stdout=subprocess.PIPE, env=env, timeout=START, check=False, **user.popen()
        ).stdout
        return out
    except subprocess.TimeoutExpired:
        raise DefinitionError(f"{app} took longer than {START:.0f} s to load.") from None
    except PermissionError as error:
        message = f"User {user.name!r}, whom stages run as, cannot run {sys.executable}: {error.strerror}."
        raise SettingError(message, name="stage_user", value=user.name) from error


def check_reachable(folder: Path, user: host.StageUser) -> None:
    """Raises SettingError if that user cannot enter the folder."""
    look = "import os, sys; sys.exit(not os.access(sys.argv[1], os.X_OK))"
    command = [sys.executable, "-ISc", look, str(folder)]
    if subprocess.run(command, env=host.child_environment("check"), **user.popen(), check=False).returncode != 0:
        message = (
            f"User {user.name!r}, whom stages run as, cannot enter {folder}. Let it enter the folders above "
            "(chmod o+x), or set PACKHORSE_SCRATCH to one that it can enter."
        )
        raise SettingError(message, name="stage_user", value=user.name)


def may_share(stage: StagePlan) -> bool:
    """Async stages share one process, except those with a memory limit, which needs a process of their own."""
    return stage.is_async and stage.memory is None


def _environment_of(pid: int) -> dict[str, str]:
    """Its initial environment; empty if it cannot be read, as of a zombie."""
    with contextlib.suppress(OSError, psutil.Error):
        return psutil.Process(pid).environ()
    return {}


def _no_exception(task: asyncio.Task[None]) -> None:
    if not task.cancelled():
        task.result()
