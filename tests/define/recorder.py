"""A submitter that remembers what it was asked for."""

from __future__ import annotations

from typing import Any, NamedTuple, cast

from packhorse.define import JobHandle, Options, Pipeline


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

    def find(self, pipeline: Pipeline[Any], job_id: str, user: str | None) -> JobHandle[Any]:
        raise NotImplementedError

    async def a_find(self, pipeline: Pipeline[Any], job_id: str, user: str | None) -> JobHandle[Any]:
        raise NotImplementedError
