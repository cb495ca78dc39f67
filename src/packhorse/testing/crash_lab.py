"""Kills a real worker at every point of every stage, and says what that did to the job and to the world outside.

A stage must be safe to run again, because nobody can know how far a killed one got. This shows whether it is.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self, TypeVar, Unpack

from msgspec import Struct

from packhorse import crashpoints
from packhorse.background.janitor import Janitor
from packhorse.core import json
from packhorse.core.models import Job, Stage
from packhorse.core.plan import Status
from packhorse.define.files import File
from packhorse.define.pipelines import Pipeline
from packhorse.define.submit import SubmitOptions, options_from
from packhorse.factory import open_both
from packhorse.jobs.artifacts import all_keys, referenced_keys
from packhorse.jobs.transact import Transactor
from packhorse.runtime import Handle, Runtime
from packhorse.settings import load
from packhorse.worker.attempt import Attempt
from packhorse.worker.pool import describe
from packhorse.worker.worker import Worker

P = TypeVar("P")

POINTS = {
    "claimed": "attempt.claimed",  # the worker has the stage, no process runs it
    "running": "attempt.sent",  # halfway through the time that the stage took without a kill
    "returned": "attempt.done",  # the stage has returned, none of its files is stored
    "published": "attempt.published",  # its files are stored, the job does not know
    "committed": "attempt.settled",  # the result is stored, the worker has not continued
}
WITHIN = 120.0
"""Seconds in which a job has to end, and a worker to reach its point."""
KILL = "CRASH_LAB_KILL"
"""The environment variable that tells a worker of the lab where to die."""

ENDS = frozenset(status.value for status in Status if status.is_terminal)
_NOTHING: Counter[str] = Counter()

Effects = Callable[[], Iterable[object]]


class Kill(NamedTuple):
    """Where a worker dies."""

    stage: str = ""
    point: str = ""
    after: float = 0.0
    """Seconds after the stage has begun, for ``running``."""


class CrashRun(Struct, frozen=True):
    """One job whose worker was killed once."""

    stage: str
    point: str
    status: str
    attempts: int
    """Of the stage."""
    repeated: tuple[str, ...] = ()
    """Effects that happened more often than without a kill."""
    missing: tuple[str, ...] = ()
    """Effects that did not happen."""
    problems: tuple[str, ...] = ()
    """What else is wrong, such as a job that failed."""

    @property
    def is_clean(self) -> bool:
        return not (self.repeated or self.missing or self.problems)


class CrashReport(Struct, frozen=True):
    """All runs of a pipeline. Its text is a table of what went wrong."""

    runs: Sequence[CrashRun]

    @property
    def is_clean(self) -> bool:
        return all(run.is_clean for run in self.runs)

    def __str__(self) -> str:
        lines = [f"{sum(run.is_clean for run in self.runs)} of {len(self.runs)} kills did no harm"]
        lines += [f"  {run.stage}, killed when {run.point}: {what}" for run in self.runs for what in _harm(run)]
        return "\n".join(lines)


def _harm(run: CrashRun) -> Iterator[str]:
    yield from run.problems
    yield from (f"happened more than once: {effect}" for effect in run.repeated)
    yield from (f"did not happen: {effect}" for effect in run.missing)


class CrashLab:
    """Runs pipelines on real workers that it kills. Each job has a store and files of its own in a temporary folder."""

    def __init__(self) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="packhorse-crash-lab-"))
        self._files = 0
        self._jobs = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _t: type[BaseException] | None, _e: BaseException | None, _b: TracebackType | None, /) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)

    def file(self, name: str, content: bytes | str = b"") -> File:
        """A file to submit."""
        self._files += 1
        path = self._folder / "files" / str(self._files) / name
        path.parent.mkdir(parents=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return File(path)

    def run(
        self,
        pipeline: Pipeline[P],
        params: P,
        *,
        effects: Effects = tuple,
        points: Collection[str] = tuple(POINTS),
        **options: Unpack[SubmitOptions],
    ) -> CrashReport:
        """Run a job without a kill, then one per stage and point: claimed, running, returned, published, committed.

        ``effects`` returns everything that the stages have done outside of packhorse so far: lines of a file, rows of a
        table, requests that a stand-in server has received. The lab compares what each job added with what the first
        one added; the id of the job may be part of it. Raises AssertionError if the first job does not complete.
        """
        if unknown := [point for point in points if point not in POINTS]:
            raise ValueError(f"Unknown points: {', '.join(unknown)}. There are {', '.join(POINTS)}.")
        usual, times = self._watch(pipeline, params, effects, options)
        if usual.problems:
            raise AssertionError(f"Without any kill, {pipeline.name} goes wrong: {'; '.join(usual.problems)}")
        expected = Counter(usual.repeated)
        runs = []
        for stage, took in times.items():
            for point in points:
                kill = Kill(stage, point, took / 2)
                runs.append(self._watch(pipeline, params, effects, options, kill, expected)[0])
        return CrashReport(runs)

    def _watch(
        self,
        pipeline: Pipeline[Any],
        params: object,
        effects: Effects,
        options: SubmitOptions,
        kill: Kill | None = None,
        expected: Counter[str] = _NOTHING,
    ) -> tuple[CrashRun, dict[str, float]]:
        """Run one job; and how long each of its stages took."""
        before = Counter(map(str, effects()))
        self._jobs += 1
        with _Place(self._folder / f"job-{self._jobs}", pipeline) as place:
            handle = place.runtime.submit(pipeline, params, options_from(**options))
            problems = list(place.run_workers(handle, kill))
            job, broken = place.runtime.wait_for(place.examine(handle.id))
        added = Counter(map(str, effects())) - before
        made = Counter(effect.replace(job.id, "JOB") for effect in added.elements())
        run = CrashRun(
            *(kill or Kill())[:2],
            job.status.value,
            max((task.attempt for task in (job.stage(kill.stage).tasks if kill else None) or ()), default=1),
            tuple((made - expected).elements()),
            tuple((expected - made).elements()),
            (*problems, *broken),
        )
        return run, {plan.name: _longest(job.stage(plan.name)) for plan in job.plan.stages}


def _longest(stage: Stage) -> float:
    tasks = [(task.started_at, task.ended_at) for task in stage.tasks or ()]
    return max((end - start for start, end in tasks if start is not None and end is not None), default=0.0)


class _Place:
    """A store, files and workers for one job."""

    def __init__(self, folder: Path, pipeline: Pipeline[Any]) -> None:
        folder.mkdir()
        given = {
            "app": _file_of(pipeline),
            "store": f"sqlite://{folder / 'packhorse.db'}",
            "blobs": f"file://{folder / 'blobs'}",
            "scratch": str(folder / "scratch"),
            "secret_key": secrets.token_urlsafe(32),
            "sweep": "0.3",
        }
        others = {name: value for name, value in os.environ.items() if not name.startswith("PACKHORSE_")}
        ours = {f"PACKHORSE_{name.upper()}": value for name, value in given.items()}
        self._env = {**others, **ours, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        self.runtime = Runtime(load(given, env={}, folder=folder).settings)
        self._log = (folder / "workers.log").open("a+b")
        self._workers: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _t: type[BaseException] | None, _e: BaseException | None, _b: TracebackType | None, /) -> None:
        for worker in self._workers:
            worker.kill()
            worker.wait()
        self.runtime.close()
        self._log.close()

    def run_workers(self, handle: Handle[Any], kill: Kill | None) -> Iterator[str]:
        """Let the job end, on a second worker if the first is killed. What went wrong, if anything."""
        first = self._start_worker(kill)
        if kill is not None:
            try:
                code = first.wait(WITHIN)
            except subprocess.TimeoutExpired:
                yield f"the worker did not get there within {WITHIN:.0f} s\n{self._last_log()}"
            else:
                if code != -signal.SIGKILL:
                    yield f"the worker ended by itself, with exit code {code}\n{self._last_log()}"
                self._start_worker(None)
        job = handle.wait(WITHIN)
        if not job.status.is_terminal:
            yield f"the job did not end within {WITHIN:.0f} s\n{self._last_log()}"
        elif job.status is not Status.COMPLETED:
            yield f"the job {job.status.value}" + (f": {job.error.code}: {job.error.message}" if job.error else "")

    def _start_worker(self, kill: Kill | None) -> subprocess.Popen[bytes]:
        env = self._env if kill is None else {**self._env, KILL: json.encode(kill).decode()}
        command = [sys.executable, "-m", "packhorse.testing.crash_lab"]
        self._workers.append(subprocess.Popen(command, env=env, stdout=self._log, stderr=self._log))
        return self._workers[-1]

    def _last_log(self) -> str:
        self._log.seek(0)
        return self._log.read().decode(errors="replace")[-2000:]

    async def examine(self, job_id: str) -> tuple[Job, list[str]]:
        """The job, and which of the promises of packhorse do not hold for it."""
        store, blobs = await self.runtime.open()
        [job] = await store.get([job_id])
        assert job is not None
        events = await store.events(job_id)
        ends = [event.type for event in events if event.type in ENDS]
        attempts = {plan.name: [task.attempt for task in job.stage(plan.name).tasks or ()] for plan in job.plan.stages}
        await Janitor(store, blobs, Transactor(store), orphan_after=0.0, period=0.0).tick()
        wanted = {each.file.key for each in (await store.specs([job_id]))[job_id].inputs}
        wanted |= referenced_keys((await store.results([job_id])).get(job_id, {}))
        stored = set(await all_keys(blobs, "jobs"))
        promises = {
            f"its events are not numbered from 1 to {job.events}": [each.n for each in events]
            == list(range(1, job.events + 1)),
            f"it has ended {len(ends)} times": ends == [job.status.value] or not job.status.is_terminal,
            f"a stage had more attempts than it may have: {attempts}": all(
                count <= plan.retries + 1 for plan in job.plan.stages for count in attempts[plan.name]
            ),
            f"files are stored that nothing refers to: {sorted(stored - wanted)}": stored <= wanted,
            f"files are missing: {sorted(wanted - stored)}": wanted <= stored,
        }
        return job, [broken for broken, holds in promises.items() if not holds]


def _file_of(pipeline: Pipeline[Any]) -> str:
    """The file to start a worker with: the one that defines the first stage."""
    stage = next(iter(pipeline.stages.values()))
    return str(Path(inspect.getfile(inspect.unwrap(stage.function))).resolve())


# The worker process.


def _die_at(kill: Kill) -> None:
    """Kill this process when the stage reaches the point, and its tries before that do not count."""
    point, timer = POINTS[kill.point], None

    def die() -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def on_reach(reached: str, by: object) -> None:
        nonlocal timer
        if not isinstance(by, Attempt) or by.claim.task.stage != kill.stage:
            return
        if reached == point and kill.point == "running":
            timer = threading.Timer(kill.after, die)
            timer.daemon = True
            timer.start()
        elif reached == point or timer is not None:  # it was faster than without a kill
            die()

    crashpoints.hook = on_reach


async def _work() -> None:
    settings = load().settings
    store, blobs = await open_both(settings)
    worker = Worker(store, blobs, settings, await describe(settings.app))
    if text := os.environ.pop(KILL, ""):
        _die_at(json.decode(text, Kill))
    await worker.run(asyncio.Event())


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(process)d %(message)s")
    asyncio.run(_work())
