"""The bench: with it a test runs a pipeline, lets time pass, and makes things go wrong."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from types import TracebackType
from typing import Any, ParamSpec, Self, TypeVar, Unpack, overload

from packhorse.define.files import File
from packhorse.define.options import Duration, seconds
from packhorse.define.pipelines import Pipeline
from packhorse.define.signature import Submits
from packhorse.define.stages import Later
from packhorse.define.submit import SubmitOptions, options_from
from packhorse.settings import Settings
from packhorse.testing.environment import Attempts, Clock, Fault, Hook, Moment, Place, Rule, Script
from packhorse.testing.job import AnyStage, BenchJob, stage_of
from packhorse.testing.worker import InlineWorker

P = TypeVar("P")
Q = ParamSpec("Q")
T = TypeVar("T")

START = 1_767_225_600.0
"""When the clock of a bench starts: 1 January 2026, UTC. So times are the same in every run of a test."""

Do = Callable[[BenchJob[Any]], object]


class Bench:
    """Runs pipelines inline. Its clock stands still while stages run, and jumps to what is due when nothing runs.

    Its methods also work in an async test, but block the event loop; `a_run` does not.
    """

    def __init__(self, *, seed: int = 0, start: float = START, settings: Settings | None = None) -> None:
        """``seed`` is for the jitter of backoffs. ``settings`` gives limits and the lease; its places are not used."""
        self._start = start
        self._clock = Clock(start)
        self._script = Script()
        self._place = Place(self._clock, settings)
        self._worker = InlineWorker(self._place, self._clock, self._script, seed)
        self._jobs: dict[str, BenchJob[Any]] = {}
        self._files = 0
        self._one_at_a_time = threading.Lock()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _t: type[BaseException] | None, e: BaseException | None, _b: TracebackType | None, /) -> None:
        self.close(check=e is None)

    def close(self, *, check: bool = True) -> None:
        """Delete everything: jobs, files, and downloaded results.

        Raises `AssertionError` if a hook of `during` never ran. ``check=False``: the test has already failed.
        """
        self._worker.close()
        self._place.close()
        if check:
            self._script.require_during()

    # Running.

    def run(self, pipeline: Pipeline[P], params: P, **options: Unpack[SubmitOptions]) -> BenchJob[Any]:
        """Submit a job and run it until it has ended. Check the status of the job.

        Other jobs that become due run too. Raises what a submit raises, such as `InvalidInput` or `SlotTaken`.
        """
        job = self.submit(pipeline, params, **options)
        self._finish(job.id)
        return job

    async def a_run(self, pipeline: Pipeline[P], params: P, **options: Unpack[SubmitOptions]) -> BenchJob[Any]:
        """The same in a thread, so that stages can call something that runs in the event loop of the test."""

        def alone() -> BenchJob[Any]:
            with self._one_at_a_time:
                return self.run(pipeline, params, **options)

        return await asyncio.to_thread(alone)

    @overload
    def call(
        self, function: Submits[Q, Coroutine[Any, Any, T | Later]], *args: Q.args, **kwargs: Q.kwargs
    ) -> BenchJob[T]: ...
    @overload
    def call(self, function: Submits[Q, T | Later], *args: Q.args, **kwargs: Q.kwargs) -> BenchJob[T]: ...
    def call(self, function: Submits[..., Any], *args: Any, **kwargs: Any) -> BenchJob[Any]:
        """`run` for an ``@app.job``: ``call(add, 1, b=2)``, ``call(add.using(user="ann"), 1, b=2)``."""
        return self.run(function.pipeline, function.params_from(*args, **kwargs), **function.options)

    def submit(self, pipeline: Pipeline[P], params: P, **options: Unpack[SubmitOptions]) -> BenchJob[Any]:
        """Only submit the job. It runs with `work`, `pass_time`, or the `run` of another job."""
        handle = self._place.submit(pipeline, params, options_from(**options))
        self._worker.learn(pipeline)
        self._worker.watch(handle.id)
        job = BenchJob(self._place, handle, lambda: self._worker.reporter.reports, self._finish)
        return self._jobs.setdefault(handle.id, job)

    def work(self) -> None:
        """Run every job until it has ended."""
        _run_outside_loop(self._worker.work)
        for job in self._jobs.values():
            self._require_during(job)

    def file(self, name: str, content: bytes | str = b"") -> File:
        """A file to submit."""
        self._files += 1
        path = self._place.folder / "files" / str(self._files) / name
        path.parent.mkdir(parents=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return File(path)

    def failures(self) -> str:
        """Why jobs of this bench failed, as text. pytest shows it with a failed test."""
        errors = [(job, job.error) for job in self._jobs.values() if not job.is_purged]
        return "\n".join(f"{job!r}\n{error.detail or ''}" for job, error in errors if error is not None)

    # Time.

    @property
    def now(self) -> float:
        """The time of the bench, in seconds since 1970."""
        return self._clock.now

    @property
    def elapsed(self) -> float:
        """Seconds that have passed on the bench."""
        return self._clock.now - self._start

    def pass_time(self, time: Duration) -> None:
        """Move the clock (``"90s"``, ``"8d"``), and run what becomes due, purging of expired jobs included.

        Call it inside a stage or a hook to make the stage take that long. Its timeout ends it if that is too long.
        """
        until = self._clock.now + seconds(time)
        _run_outside_loop(partial(self._worker.work, until=until))
        self._worker.tidy()

    # Faults. Several for the same stage happen in the order in which they were arranged.

    def fail(
        self, stage: AnyStage, error: BaseException | type[BaseException] | None = None, **which: Unpack[Attempts]
    ) -> None:
        """Make the next attempt raise the error instead of calling the stage. ``times=2``: the next two."""
        if error is None:
            error = RuntimeError("The test has arranged for this.")
        self._script.faults.append(Rule(error() if isinstance(error, type) else error, stage_of(stage), **which))

    def crash(self, stage: AnyStage, **which: Unpack[Attempts]) -> None:
        """Make the stage's process die, as if the system had killed it."""
        self._script.faults.append(Rule(Fault.CRASH, stage_of(stage), **which))

    def lose(self, stage: AnyStage, **which: Unpack[Attempts]) -> None:
        """Make the worker die without a trace: the next attempt begins when the lease has expired."""
        self._script.faults.append(Rule(Fault.LOSE, stage_of(stage), **which))

    def stall(self, stage: AnyStage, **which: Unpack[Attempts]) -> None:
        """Make the stage hang without reports, until its ``stall``, its ``timeout`` or the job's deadline ends it."""
        self._script.faults.append(Rule(Fault.STALL, stage_of(stage), **which))

    def time_out(self, stage: AnyStage, **which: Unpack[Attempts]) -> None:
        """Make the stage report without end, until its ``timeout`` or the job's deadline ends it."""
        self._script.faults.append(Rule(Fault.TIME_OUT, stage_of(stage), **which))

    def replace(self, stage: AnyStage, function: Callable[..., Any]) -> None:
        """Call ``function(ctx, params, ...)`` instead of the stage's own, with the same arguments, from now on."""
        self._script.replacements[stage_of(stage).plan.kind] = function

    # Hooks. What a hook raises, such as a failed assert, is raised in the test.

    def before(self, stage: AnyStage, do: Do, **which: Unpack[Attempts]) -> None:
        """Call ``do(job)`` when an attempt has begun, before the stage is called.

        If ``do`` cancels the job, the stage is not called.
        """
        self._script.hooks.append((Moment.BEFORE, 0, Rule(self._hook(do), stage_of(stage), **which)))

    def during(self, stage: AnyStage, do: Do, *, report: int = 1, **which: Unpack[Attempts]) -> None:
        """Call ``do(job)`` inside an attempt, when it calls ``ctx.progress`` for the first (second, ...) time.

        If ``do`` cancels the job, the stage ends at that point: only its ``finally`` blocks still run.
        The test fails if that report never comes: for a stage that reports nothing, use `before` or `after`.
        """
        self._script.hooks.append((Moment.DURING, report, Rule(self._hook(do), stage_of(stage), **which)))

    def after(self, stage: AnyStage, do: Do, **which: Unpack[Attempts]) -> None:
        """Call ``do(job)`` when the outcome of an attempt is recorded, before anything else begins."""
        self._script.hooks.append((Moment.AFTER, 0, Rule(self._hook(do), stage_of(stage), **which)))

    def _hook(self, do: Do) -> Hook:
        return lambda job_id: do(self._jobs[job_id])

    def _finish(self, job_id: str) -> None:
        self._worker.watch(job_id)
        job = self._jobs[job_id]
        _run_outside_loop(partial(self._worker.work, lambda: job.status.is_terminal))
        self._require_during(job)

    def _require_during(self, job: BenchJob[Any]) -> None:
        if not job.is_purged and job.status.is_terminal:
            self._script.require_during({stage.kind for stage in job.record.plan.stages})


def _run_outside_loop(work: Callable[[], None]) -> None:
    """Stages never meet a running event loop in their thread, as they would not in a worker."""
    loop = None
    with suppress(RuntimeError):
        loop = asyncio.get_running_loop()
    if loop is None:
        work()
        return
    with ThreadPoolExecutor(1, thread_name_prefix="packhorse-bench") as thread:
        thread.submit(contextvars.copy_context().run, work).result()
