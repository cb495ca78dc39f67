"""The bench: what a test says to run a pipeline, to let time pass, and to have things go wrong."""

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
from packhorse.runtime import Handle
from packhorse.settings import Settings
from packhorse.testing.environment import Clock, Place
from packhorse.testing.faults import Attempts, Hook, Mishap, Moment, Rule, Script
from packhorse.testing.job import AnyStage, BenchJob, named
from packhorse.testing.worker import InlineWorker

P = TypeVar("P")
Q = ParamSpec("Q")
T = TypeVar("T")

START = 1_767_225_600.0
"""The first moment of 2026, UTC: when a bench begins, so that times are the same in every run of a test."""

Do = Callable[[BenchJob[Any]], object]


class Bench:
    """Runs pipelines inline. Its clock stands still while stages run, and jumps when there is nothing to do but wait.

    Plain calls also work inside an async test, but hold up its event loop meanwhile; `a_run` does not.
    """

    def __init__(self, *, seed: int = 0, start: float = START, settings: Settings | None = None) -> None:
        """``seed`` is that of the jitter in backoffs. Of ``settings``, limits and lease count, not where things are."""
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

    def __exit__(self, _t: type[BaseException] | None, _e: BaseException | None, _b: TracebackType | None, /) -> None:
        self.close()

    def close(self) -> None:
        """Everything of it is gone then: jobs, files, and what was downloaded of results."""
        self._worker.close()
        self._place.close()

    # Running.

    def run(self, pipeline: Pipeline[P], params: P, **options: Unpack[SubmitOptions]) -> BenchJob[Any]:
        """Submit a job and run it to its end, whatever that is: look at the status of what you get.

        Other jobs that are due meanwhile run too. Raises what a submit raises, such as `InvalidInput` or `SlotTaken`.
        """
        job = self.submit(pipeline, params, **options)
        self._finish(job.id)
        return job

    async def a_run(self, pipeline: Pipeline[P], params: P, **options: Unpack[SubmitOptions]) -> BenchJob[Any]:
        """The same in a thread, so that stages can talk to what runs in the event loop of the test."""

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
        """`run` for what ``@app.job`` made: ``call(add, 1, b=2)``, ``call(add.using(user="ann"), 1, b=2)``."""
        return self.run(function.pipeline, function.params_from(*args, **kwargs), **function.options)

    def submit(self, pipeline: Pipeline[P], params: P, **options: Unpack[SubmitOptions]) -> BenchJob[Any]:
        """Only submit the job. It runs when time passes, or another job is run, or with `work`."""
        handle = self._place.submit(pipeline, params, options_from(**options))
        self._worker.learn(pipeline)
        self._worker.watch(handle.id)
        return self._jobs.setdefault(handle.id, self._job(handle))

    def work(self) -> None:
        """Run every job to its end."""
        _apart(self._worker.work)

    def file(self, name: str, content: bytes | str = b"") -> File:
        """A file to submit."""
        self._files += 1
        path = self._place.folder / "files" / str(self._files) / name
        path.parent.mkdir(parents=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return File(path)

    def failures(self) -> str:
        """Why jobs of this bench have failed, for a person to read. pytest shows it with a test that has failed."""
        errors = [(job, job.error) for job in self._jobs.values() if not job.is_purged]
        return "\n".join(f"{job!r}\n{error.detail or ''}" for job, error in errors if error is not None)

    # Time.

    @property
    def now(self) -> float:
        """What the clock says, in seconds since 1970."""
        return self._clock.now

    @property
    def elapsed(self) -> float:
        """Seconds that have passed on the bench."""
        return self._clock.now - self._start

    def pass_time(self, time: Duration) -> None:
        """Let so much time pass (``"90s"``, ``"8d"``), and do what is due meanwhile, purging of ended jobs included.

        Inside a stage or a hook, it is how a stage takes long: long enough, and it is ended by its timeout.
        """
        until = self._clock.now + seconds(time)
        _apart(partial(self._worker.work, until=until))
        self._worker.tidy()

    # Having things go wrong. What is arranged for a stage happens in that order, each to its number of attempts.

    def fail(
        self,
        stage: AnyStage,
        error: BaseException | type[BaseException] | None = None,
        **which: Unpack[Attempts],
    ) -> None:
        """Have the next attempt raise the error instead of calling the stage. ``times=2``: the next two."""
        if error is None:
            error = RuntimeError("The test has arranged for this.")
        self._script.add_mishap(Rule(error() if isinstance(error, type) else error, named(stage), **which))

    def crash(self, stage: AnyStage, **which: Unpack[Attempts]) -> None:
        """Have the stage's process die, as if the system had killed it."""
        self._script.add_mishap(Rule(Mishap.CRASH, named(stage), **which))

    def lose(self, stage: AnyStage, **which: Unpack[Attempts]) -> None:
        """Have the worker die with all that could notice: the next attempt begins when its lease has run out."""
        self._script.add_mishap(Rule(Mishap.LOSE, named(stage), **which))

    def stall(self, stage: AnyStage, **which: Unpack[Attempts]) -> None:
        """Have the stage hang without a word, until its ``stall``, its ``timeout`` or the job's deadline ends it."""
        self._script.add_mishap(Rule(Mishap.STALL, named(stage), **which))

    def time_out(self, stage: AnyStage, **which: Unpack[Attempts]) -> None:
        """Have the stage go on and on, reporting, until its ``timeout`` or the job's deadline ends it."""
        self._script.add_mishap(Rule(Mishap.TIME_OUT, named(stage), **which))

    def replace(self, stage: AnyStage, function: Callable[..., Any]) -> None:
        """Call ``function(ctx, params, ...)`` instead of the stage's own, with the same arguments, from now on."""
        self._script.stand_in(named(stage), function)

    # Looking on. What a hook raises, a failed assert too, is raised in the test.

    def before(self, stage: AnyStage, do: Do, **which: Unpack[Attempts]) -> None:
        """Call ``do(job)`` when an attempt has begun, before the stage is called.

        If ``do`` cancels the job, the stage is not called any more.
        """
        self._script.add_hook(Moment.BEFORE, 0, Rule(self._hook(do), named(stage), **which))

    def during(self, stage: AnyStage, do: Do, *, report: int = 1, **which: Unpack[Attempts]) -> None:
        """Call ``do(job)`` inside an attempt, when it calls ``ctx.progress`` for the first (second, ...) time.

        If ``do`` cancels the job, the stage is ended at that point: its ``finally`` blocks run, and no more.
        """
        self._script.add_hook(Moment.DURING, report, Rule(self._hook(do), named(stage), **which))

    def after(self, stage: AnyStage, do: Do, **which: Unpack[Attempts]) -> None:
        """Call ``do(job)`` when the outcome of an attempt is recorded, before anything else begins."""
        self._script.add_hook(Moment.AFTER, 0, Rule(self._hook(do), named(stage), **which))

    def _hook(self, do: Do) -> Hook:
        return lambda job_id: do(self._jobs[job_id])

    def _job(self, handle: Handle[Any]) -> BenchJob[Any]:
        return BenchJob(self._place, handle, lambda: self._worker.reporter.reports, self._finish)

    def _finish(self, job_id: str) -> None:
        self._worker.watch(job_id)
        job = self._jobs[job_id]
        _apart(partial(self._worker.work, lambda: job.status.is_terminal))


def _apart(work: Callable[[], None]) -> None:
    """Stages never meet a running event loop in their thread, as they would not in a worker."""
    if not _is_in_a_loop():
        work()
        return
    with ThreadPoolExecutor(1, thread_name_prefix="packhorse-bench") as thread:
        thread.submit(contextvars.copy_context().run, work).result()


def _is_in_a_loop() -> bool:
    with suppress(RuntimeError):
        return bool(asyncio.get_running_loop())
    return False
