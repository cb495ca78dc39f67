"""The code of one app: its pipelines, and which function runs which kind of stage."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from packhorse.core.plan import Definition
from packhorse.define.introspection import caller, checked_name, refusal
from packhorse.define.pipelines import Pipeline
from packhorse.define.stages import Stage

if TYPE_CHECKING:
    from packhorse.core.schedules import Declared


class Code:
    def __init__(self, app: str) -> None:
        try:
            self.app = checked_name(app)
        except ValueError as error:
            raise refusal(f"App: {error}", caller()[0]) from error
        self._pipelines: dict[str, Pipeline[Any]] = {}
        self._schedules: dict[str, Declared] = {}

    @property
    def pipelines(self) -> Mapping[str, Pipeline[Any]]:
        return self._pipelines

    def add(self, pipeline: Pipeline[Any]) -> None:
        """Its stages may follow later. Names that differ only in case would be one folder on some machines."""
        twin = next((p for p in self._pipelines.values() if p.name.lower() == pipeline.name.lower()), None)
        if twin is not None and twin is not pipeline:
            raise refusal(f"Pipeline {pipeline.name!r} has the name of {twin.name!r} at {twin.place}", pipeline.place)
        self._pipelines[pipeline.name] = pipeline

    @property
    def schedules(self) -> Sequence[Declared]:
        return list(self._schedules.values())

    def plan(self, schedule: Declared) -> None:
        if schedule.id in self._schedules:
            raise refusal(f"There are two schedules {schedule.id!r}", caller()[0])
        if schedule.terms.pipeline not in self._pipelines:
            raise refusal(f"Schedule {schedule.id!r} is for a pipeline of another app", caller()[0])
        self._schedules[schedule.id] = schedule

    @property
    def by_kind(self) -> Mapping[str, tuple[Pipeline[Any], Stage[..., Any]]]:
        return {
            stage.plan.kind: (pipeline, stage)
            for pipeline in self._pipelines.values()
            for stage in pipeline.stages.values()
        }

    def definitions(self) -> list[Definition]:
        return [pipeline.definition(self.app) for pipeline in self._pipelines.values()]
