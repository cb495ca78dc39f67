"""A job on a bench, as a test sees it."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, Generic, TypeVar, cast, overload

from packhorse.core.models import Event, Failure, Job
from packhorse.core.plan import Status, TaskStatus
from packhorse.define.files import File
from packhorse.define.signature import Function
from packhorse.define.stages import Later, Skip, Stage
from packhorse.errors import JobNotFound, NotFinished
from packhorse.runtime import Handle, Runtime
from packhorse.store.base import Line, Report

R_co = TypeVar("R_co", covariant=True)
T = TypeVar("T")

AnyStage = Stage[..., Any] | Function[..., ..., Any]  # the result of `@pipeline.stage`, or of `@app.job`


def stage_of(stage: AnyStage) -> Stage[..., Any]:
    return stage.stage if isinstance(stage, Function) else stage


class BenchJob(Generic[R_co]):
    """Every property reads the store, also from a hook while the job runs.

    Once the job is purged, only `id` and `is_purged` work; anything else raises `JobNotFound`.
    """

    def __init__(
        self, runtime: Runtime, handle: Handle[R_co], reports: Callable[[], list[Report]], finish: Callable[[str], None]
    ) -> None:
        self.id = handle.id
        self._runtime = runtime
        self._handle = handle
        self._reports = reports
        self._finish = finish

    @property
    def status(self) -> Status:
        return self.record.status

    @property
    def run(self) -> int:
        """The number of the run: 1, and one more after each manual retry."""
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
        """The result of the last stage; a mapping by stage if there are several last stages. Raises `NotFinished`."""
        try:
            return self._handle.wait(timeout=0).result
        except NotFinished as missing:
            raise self._explain(missing) from None

    @overload
    def result_of(self, stage: Stage[..., Coroutine[Any, Any, T | Later | Skip]]) -> T: ...
    @overload
    def result_of(self, stage: Stage[..., T | Later | Skip]) -> T: ...
    @overload
    def result_of(self, stage: list[T]) -> list[T]: ...
    def result_of(self, stage: Any) -> Any:
        """The result of the stage; for ``gather(stage)``, the list of its elements' results.

        Raises `NotFinished` if there is none.
        """
        try:
            return self._handle.result_of(stage)
        except NotFinished as missing:
            raise self._explain(missing) from None

    def status_of(self, stage: AnyStage) -> TaskStatus:
        return self.record.stage_status(stage_of(stage).name)

    def attempts_of(self, stage: AnyStage, element: int | None = None) -> int:
        """Number of attempts in this run, of one element or of all elements.

        As for ``retries``, an attempt that returned `Later` does not count.
        """
        tasks = self.record.stage(stage_of(stage).name).tasks or ()
        return sum(task.attempt for task in tasks) if element is None else tasks[element].attempt

    @property
    def events(self) -> list[Event]:
        """All events in order: ``[event.type for event in job.events]``."""
        number = self.record.events
        return self._read(lambda store: store.events(self.id, limit=number))

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
        return self._read(lambda store: store.lines(self.id, limit=1_000_000))

    @property
    def artifacts(self) -> dict[str, File]:
        """The files that stages returned or published, by name: ``onnx/model.onnx``."""
        return self._runtime.wait_for(self._fetch_artifacts())

    @property
    def is_purged(self) -> bool:
        """Whether its retention has ended, and its record and files are deleted."""
        [job] = self._read(lambda store: store.get([self.id]))
        return job is None

    @property
    def record(self) -> Job:
        """The record in the store, for everything that has no property here."""
        [job] = self._read(lambda store: store.get([self.id]))
        if job is None:
            raise JobNotFound(job_id=self.id)
        return cast(Job, job)

    def cancel(self) -> None:
        """Cancel it: at once if nothing runs, else the running stages are asked to stop."""
        self._handle.cancel()

    def retry(self, stage: AnyStage | str | None = None, *, failed_elements: bool = False) -> None:
        """Start a new run, and run it until it has ended: of unfinished stages, from a stage on, or of all (``*``).

        ``failed_elements``: of the elements that failed and were left out, and of what follows them.
        """
        name = stage if stage is None or isinstance(stage, str) else stage_of(stage).name
        self._handle.retry(name, failed_elements=failed_elements)
        self._finish(self.id)

    def __repr__(self) -> str:
        if self.is_purged:
            return f"<job {self.id} purged>"
        job = self.record
        why = f": {job.error.code} in {job.error.stage or 'all'}: {job.error.message}" if job.error else ""
        return f"<job {job.plan.pipeline} {job.status}{why}>"

    def _read(self, read: Callable[[Any], Coroutine[Any, Any, T]]) -> T:
        async def read_store() -> T:
            store, _ = await self._runtime.open()
            return await read(store)

        return self._runtime.wait_for(read_store())

    async def _fetch_artifacts(self) -> dict[str, File]:
        store, _ = await self._runtime.open()
        results = (await store.results([self.id])).get(self.id, {})
        artifacts = [artifact for result in results.values() for artifact in result.artifacts]
        return {artifact.name: await self._runtime.fetch(self.id, artifact.file) for artifact in artifacts}

    def _explain(self, missing: NotFinished) -> NotFinished:
        """Add to the error why the job failed, for a test that stops here."""
        error = self.error
        if error is not None:
            missing.add_note(f"{self!r}\n{error.detail or ''}")
        return missing
