"""A submitter that remembers what it was asked for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, cast

from packhorse.define import JobHandle, Options, Pipeline
from packhorse.define.submit import SubmitOptions, options_from
from packhorse.errors import PackhorseError


class Call(NamedTuple):
    pipeline: Pipeline[Any]
    params: object
    options: Options


class Recorder:
    def __init__(self) -> None:
        self.calls: list[Call] = []

    def submit(self, pipeline: Pipeline[Any], params: object, options: Options) -> JobHandle[Any]:
        self.calls.append(Call(pipeline, params, options))
        return cast(JobHandle[Any], "handle")

    async def a_submit(self, pipeline: Pipeline[Any], params: object, options: Options) -> JobHandle[Any]:
        return self.submit(pipeline, params, options)

    def submit_many(
        self, pipeline: Pipeline[Any], jobs: Sequence[tuple[object, SubmitOptions]]
    ) -> list[JobHandle[Any] | PackhorseError]:
        return [self.submit(pipeline, params, options_from(**options)) for params, options in jobs]

    async def a_submit_many(
        self, pipeline: Pipeline[Any], jobs: Sequence[tuple[object, SubmitOptions]]
    ) -> list[JobHandle[Any] | PackhorseError]:
        return self.submit_many(pipeline, jobs)

    def find(self, pipeline: Pipeline[Any], job_id: str, user: str | None) -> JobHandle[Any]:
        raise NotImplementedError

    async def a_find(self, pipeline: Pipeline[Any], job_id: str, user: str | None) -> JobHandle[Any]:
        raise NotImplementedError
