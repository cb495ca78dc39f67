"""`App`: holds the pipelines of a team. Light to import; the store is loaded when a job is submitted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar, Unpack

from packhorse.define.introspection import definition_error
from packhorse.define.options import PipelineOptions, ScheduleOptions, check_statuses
from packhorse.define.pipelines import Pipeline
from packhorse.define.registry import Code
from packhorse.define.signature import JobDecorator, Submits
from packhorse.define.submit import JobHandle, Options, SubmitOptions
from packhorse.errors import PackhorseError

if TYPE_CHECKING:
    from packhorse.runtime import Runtime

P = TypeVar("P")


class App:
    """Holds pipelines. ``packhorse dev FILE`` finds it; ``.submit()`` writes to the store that the settings name."""

    def __init__(
        self,
        name: str,
        *,
        statuses: Mapping[str, str] | None = None,
        default_pipeline: str | None = None,
        postgres: str | None = None,
    ) -> None:
        """``statuses`` maps statuses to your own names, such as ``{"running": "processing"}``. Every job then also has
        your name, as its ``alias``. ``{"running:onnx": "ONNX"}`` names a job while its stage ``onnx`` runs.

        ``default_pipeline`` is the pipeline of a submit to ``/apps/{name}/api/v1/jobs`` that names no pipeline. An app
        with one pipeline needs none.

        ``postgres`` names an SQL file in the app's package, for views and indexes. A worker on PostgreSQL runs it with
        the store's role when it starts.
        """
        self.code = Code(name, default_pipeline, postgres)
        try:
            self._statuses, self._stage_statuses = check_statuses(statuses or {})
        except ValueError as error:
            raise definition_error(f"App {name!r}: {error}") from error
        self._runtime: Runtime | None = None

    @property
    def name(self) -> str:
        return self.code.app

    def pipeline(self, name: str, params: type[P], **options: Unpack[PipelineOptions]) -> Pipeline[P]:
        """Create a pipeline with these parameters. Add stages with ``@pipeline.stage``."""
        pipeline = Pipeline(name, params, **options)
        self._adopt(pipeline)
        return pipeline

    @property
    def job(self) -> JobDecorator:
        """``@app.job``: a pipeline of one stage from a function."""
        return JobDecorator(self._adopt)

    def schedule(
        self,
        id: str,
        pipeline: Pipeline[Any] | Submits[..., Any],
        params: object = None,
        *,
        cron: str,
        **options: Unpack[ScheduleOptions],
    ) -> None:
        """Run the pipeline with these parameters on a cron schedule. People may edit it at run time."""
        self.code.schedule(id, pipeline, params, cron, options)

    def close(self) -> None:
        """Close the store, if it was opened."""
        if self._runtime is not None:
            self._runtime.close()
            self._runtime = None

    def submit(self, pipeline: Pipeline[Any], params: object, options: Options) -> JobHandle[Any]:
        return self.runtime.submit(pipeline, params, options)

    async def a_submit(self, pipeline: Pipeline[Any], params: object, options: Options) -> JobHandle[Any]:
        return await self.runtime.a_submit(pipeline, params, options)

    def submit_many(
        self, pipeline: Pipeline[Any], jobs: Sequence[tuple[object, SubmitOptions]]
    ) -> list[JobHandle[Any] | PackhorseError]:
        return self.runtime.wait_for(self.runtime.a_submit_many(pipeline, jobs))

    async def a_submit_many(
        self, pipeline: Pipeline[Any], jobs: Sequence[tuple[object, SubmitOptions]]
    ) -> list[JobHandle[Any] | PackhorseError]:
        return await self.runtime.a_submit_many(pipeline, jobs)

    def find(self, pipeline: Pipeline[Any], job_id: str, user: str) -> JobHandle[Any]:
        return self.runtime.wait_for(self.runtime.a_find(pipeline, job_id, user))

    async def a_find(self, pipeline: Pipeline[Any], job_id: str, user: str) -> JobHandle[Any]:
        return await self.runtime.a_find(pipeline, job_id, user)

    @property
    def runtime(self) -> Runtime:
        if self._runtime is None:
            from packhorse.runtime import Runtime

            self._runtime = Runtime()
        return self._runtime

    def _adopt(self, pipeline: Pipeline[Any]) -> None:
        self.code.add(pipeline)
        pipeline.statuses = self._statuses
        pipeline.stage_statuses = self._stage_statuses
        pipeline.submitter = self
