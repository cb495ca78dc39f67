"""A job on a bench, as a test looks at it."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, Generic, TypeVar, cast, overload

from packhorse.core.models import Event, Failure, Job
from packhorse.core.plan import Status
from packhorse.define.files import File
from packhorse.define.signature import Function
from packhorse.define.stages import Later, Stage
from packhorse.errors import JobNotFound, NotFinished
from packhorse.runtime import Handle, Runtime
from packhorse.store.base import Line, Report

R_co = TypeVar("R_co", covariant=True)
T = TypeVar("T")

AnyStage = Stage[..., Any] | Function[..., ..., Any]
"""Where a stage is meant: what ``@pipeline.stage`` made, or ``@app.job``."""


def named(stage: AnyStage) -> Stage[..., Any]:
    return stage.stage if isinstance(stage, Function) else stage


class BenchJob(Generic[R_co]):
    """Nothing in it is a copy: each look is a look at the store, also from a hook while the job runs.

    Once the job is purged, only `id` and `is_purged` are left; anything else raises `JobNotFound`.
    """

    def __init__(
        self, runtime: Runtime, handle: Handle[R_co], reports: Callable[[], list[Report]], go_on: Callable[[str], None]
    ) -> None:
        self.id = handle.id
        self._runtime = runtime
        self._handle = handle
        self._reports = reports
        self._go_on = go_on

    @property
    def status(self) -> Status:
        return self.record.status

    @property
    def run(self) -> int:
        """1, and one more for each retry by a person."""
        return self.record.run

    @property
    def error(self) -> Failure | None:
        """Why it failed: code, message, stage, and in ``detail`` the traceback."""
        return self.record.error

    @property
    def progress(self) -> float:
        """0 to 100, over all stages."""
        return self._handle.wait(timeout=0).progress

    @property
    def result(self) -> R_co:
        """The value of the only last stage, else a mapping by last stage. Raises `NotFinished` if there is none."""
        try:
            return self._handle.wait(timeout=0).result
        except NotFinished as missing:
            raise self._explained(missing) from None

    @overload
    def result_of(self, stage: Stage[..., Coroutine[Any, Any, T | Later]]) -> T: ...
    @overload
    def result_of(self, stage: Stage[..., T | Later]) -> T: ...
    @overload
    def result_of(self, stage: list[T]) -> list[T]: ...
    def result_of(self, stage: Any) -> Any:
        """What the stage returned; for ``gather(stage)``, the list of what its elements returned.

        Raises `NotFinished` if it has not.
        """
        try:
            return self._handle.result_of(stage)
        except NotFinished as missing:
            raise self._explained(missing) from None

    def status_of(self, stage: AnyStage) -> Status:
        return self.record.stage(named(stage).name).status

    def attempts_of(self, stage: AnyStage, element: int | None = None) -> int:
        """How many attempts this run has counted, of one element or of all of them together.

        As for ``retries``, one that ended in `Later` does not count.
        """
        tasks = self.record.stage(named(stage).name).tasks or ()
        return sum(task.attempt for task in tasks) if element is None else tasks[element].attempt

    @property
    def events(self) -> list[Event]:
        """All there are, in order: ``[event.type for event in job.events]``."""
        number = self.record.events
        return self._asked(lambda store: store.events(self.id, limit=number))

    @property
    def reports(self) -> list[Report]:
        """Every call of ``ctx.progress``, of all attempts, in order."""
        return [report for report in self._reports() if report.job_id == self.id]

    @property
    def log(self) -> list[str]:
        """The lines that stages have printed or logged, of all attempts, in order."""
        return [line.text for line in self.lines]

    @property
    def lines(self) -> list[Line]:
        """The same with stage, element, attempt and time."""
        return self._asked(lambda store: store.lines(self.id, limit=1_000_000))

    @property
    def artifacts(self) -> dict[str, File]:
        """The files that stages returned or published, by the name they are asked for: ``onnx/model.onnx``."""
        return self._runtime.wait_for(self._fetched())

    @property
    def is_purged(self) -> bool:
        """Whether its time is over, and record and files are gone."""
        [job] = self._asked(lambda store: store.get([self.id]))
        return job is None

    @property
    def record(self) -> Job:
        """All that the store remembers of it, for whatever has no property here."""
        [job] = self._asked(lambda store: store.get([self.id]))
        if job is None:
            raise JobNotFound(job_id=self.id)
        return cast(Job, job)

    def cancel(self) -> None:
        """As a person would: at once if nothing runs, else what runs is asked to stop."""
        self._handle.cancel()

    def retry(self, stage: AnyStage | str | None = None) -> None:
        """As a person would, and run it to its end: what has not finished, a stage and what follows, or all (``*``)."""
        self._handle.retry(stage if stage is None or isinstance(stage, str) else named(stage).name)
        self._go_on(self.id)

    def __repr__(self) -> str:
        if self.is_purged:
            return f"<job {self.id} purged>"
        job = self.record
        why = f": {job.error.code} in {job.error.stage or 'all'}: {job.error.message}" if job.error else ""
        return f"<job {job.plan.pipeline} {job.status}{why}>"

    def _asked(self, question: Callable[[Any], Coroutine[Any, Any, T]]) -> T:
        async def asking() -> T:
            store, _ = await self._runtime.open()
            return await question(store)

        return self._runtime.wait_for(asking())

    async def _fetched(self) -> dict[str, File]:
        store, blobs = await self._runtime.open()
        results = (await store.results([self.id])).get(self.id, {})
        found: dict[str, File] = {}
        for artifact in (artifact for result in results.values() for artifact in result.artifacts):
            path = self._runtime.downloads(self.id) / artifact.file.key.replace("/", "-")
            if not path.exists():
                await blobs.fetch(artifact.file.key, path)
            found[artifact.name] = File(path, artifact.file.name)
        return found

    def _explained(self, missing: NotFinished) -> NotFinished:
        """A test that stops here should say what has gone wrong in the stage."""
        error = self.error
        if error is not None:
            missing.add_note(f"{self!r}\n{error.detail or ''}")
        return missing
