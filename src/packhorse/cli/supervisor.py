"""A process that is kept running: its output is forwarded, its death answered with a new one, its successor awaited."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import time
from asyncio.subprocess import DEVNULL, STDOUT, Process
from collections.abc import Callable, Collection, Mapping, Sequence

from packhorse.cli import USAGE
from packhorse.cli.__main__ import PARENT

FIRST_DELAY, LONGEST_DELAY = 0.1, 10.0
"""Seconds before a process that died is started again: at first at once, then doubling."""
SETTLED = 10.0  # seconds of life after which a death is not held against the next start
HURRY = 1.0
"""Seconds a process has before it gets a second signal to stop: a worker then returns its stages at once."""
PATIENCE = 15.0  # seconds it has after that, before it is killed with all it started
LAST_WORDS = 1.0  # seconds to read what a process that has ended wrote before
LONGEST_LINE = 1024 * 1024

Say = Callable[[str, str], None]


class Kept:
    """One role, such as the worker, and the processes that have it: the present one, and earlier ones that drain."""

    def __init__(self, name: str, arguments: Sequence[str], say: Say, env: Mapping[str, str] | None = None) -> None:
        self.name = name
        self._arguments = arguments
        self._say = say
        self._env = os.environ if env is None else env
        self._generation = 0
        self._turned = asyncio.Event()
        self.refused = asyncio.Event()
        """It said that it cannot run like this, and will not be started again by itself."""
        self._processes: set[Process] = set()
        self._asked: set[Process] = set()
        """Processes that are stopping and finish their work."""
        self._keeping: set[asyncio.Task[None]] = set()

    def start(self) -> None:
        """Start a process, and let the present one, if there is any, finish what it is doing."""
        self._turn()
        self._ask(self._processes - self._asked)  # a second signal would make a worker drop its running stages
        task = asyncio.create_task(self._keep(self._generation))
        self._keeping.add(task)
        task.add_done_callback(self._keeping.discard)

    async def end(self) -> None:
        """When this returns, nothing of any process group is left."""
        self._turn()
        for tell, patience in ((self._ask, HURRY), (self._ask, PATIENCE), (self.kill, None)):
            if self._keeping:
                tell(self._processes)
                await asyncio.wait(self._keeping, timeout=patience)

    def kill(self, processes: Collection[Process] | None = None) -> None:
        for process in self._processes if processes is None else processes:
            _kill_group(process)

    def _turn(self) -> None:
        """No process of an earlier generation is started again."""
        self._generation += 1
        self._turned.set()
        self._turned = asyncio.Event()

    def _ask(self, processes: Collection[Process]) -> None:
        self._asked |= {*processes}
        for process in processes:
            with contextlib.suppress(ProcessLookupError):
                process.terminate()

    async def _keep(self, generation: int) -> None:
        deaths = 0
        while generation == self._generation:
            began = time.monotonic()
            code = await self._run(generation)
            if generation != self._generation:
                return
            if code == USAGE and not deaths:
                self.refused.set()
                return
            deaths = 1 if time.monotonic() - began > SETTLED else deaths + 1
            delay = min(LONGEST_DELAY, FIRST_DELAY * 2 ** (deaths - 1))
            self._say(self.name, f"exited with status {code}; restarting in {delay:.1f} s")
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(delay):
                    await self._turned.wait()

    async def _run(self, generation: int) -> int:
        """Start a process and wait for its end; nothing of its group is left when this returns."""
        # A pipe of our own: asyncio's wait() would wait for everybody who inherited its pipe.
        ours, theirs = os.pipe()
        try:
            process = await self._start(theirs)
        finally:
            os.close(theirs)
        self._processes.add(process)
        if generation != self._generation:  # while it was being started, and nobody could ask it yet
            self._ask([process])
        forwarding = asyncio.create_task(self._forward(ours))
        code = await process.wait()
        self._processes.discard(process)
        self._asked.discard(process)
        _kill_group(process)
        await asyncio.wait([forwarding], timeout=LAST_WORDS)
        forwarding.cancel()
        return code

    async def _start(self, output: int) -> Process:
        return await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "packhorse.cli",
            *self._arguments,
            stdin=DEVNULL,
            stdout=output,
            stderr=STDOUT,
            process_group=0,  # Ctrl-C is for us alone: we end our children in our own way
            env={**self._env, PARENT: str(os.getpid()), "PYTHONUNBUFFERED": "1"},
        )

    async def _forward(self, output: int) -> None:
        reader = asyncio.StreamReader(LONGEST_LINE)
        pipe, _ = await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(output, "rb")
        )
        try:
            while not reader.at_eof():
                with contextlib.suppress(ValueError):  # longer than any line should be: what is read of it is dropped
                    if line := await reader.readline():
                        self._say(self.name, line.decode("utf-8", "replace").rstrip())
        finally:
            pipe.close()


def _kill_group(process: Process) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
