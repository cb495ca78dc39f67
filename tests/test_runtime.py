"""A store belongs to the event loop in which it was opened: whoever calls from another gets one of its own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from packhorse import App, Context
from packhorse.core import json
from packhorse.define.pipelines import Pipeline
from packhorse.define.submit import JobHandle, Options, SubmitOptions
from packhorse.errors import InvalidInput, JobNotFound, PackhorseError
from packhorse.runtime import Runtime
from packhorse.settings import Settings, load
from packhorse.store.base import Store
from tests.contract.builders import claim_one, report
from tests.journey.places import PLACES

app = App("runtime")


@app.job()
def double(n: int) -> int:
    return 2 * n


@pytest.fixture(params=PLACES)
def settings(tmp_path: Path, request: pytest.FixtureRequest) -> Settings:
    return load(PLACES[request.param](tmp_path), env={}, folder=tmp_path).settings


@pytest.mark.parametrize("settings", ["sqlite"], indirect=True)  # tests/http/test_feed.py has every store
def test_all_who_watch_share_one_reader_and_see_progress(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    runtime = Runtime(settings)

    async def watch() -> tuple[list[list[float]], int]:
        job = await runtime.a_submit(double.pipeline, double.pipeline.params(n=1), Options(user="ann"))
        store, _ = await runtime.open()
        readers: set[asyncio.Task[Any] | None] = set()
        wait = store.wait_for_change

        async def note_reader(mark: int | None, timeout: float) -> int:
            readers.add(asyncio.current_task())
            return await wait(mark, timeout)

        monkeypatch.setattr(store, "wait_for_change", note_reader)
        watchers = [job.a_watch() for _ in range(3)]
        seen = [[(await anext(each)).progress] for each in watchers]

        async def watch_to_half(watcher: AsyncIterator[Any], mine: list[float]) -> None:
            while mine[-1] < 50.0:
                mine.append((await anext(watcher)).progress)

        half = [asyncio.create_task(watch_to_half(*each)) for each in zip(watchers, seen, strict=True)]
        claimed = await claim_one(store, kinds=(double.pipeline.plan().stages[0].kind,))
        await store.report([report(claimed, 5.0, 10.0)])
        await asyncio.gather(*half)
        return seen, len(readers)

    try:
        seen, readers = asyncio.run(asyncio.wait_for(watch(), 60))
        assert [each[-1] for each in seen] == [50.0] * 3
        assert readers == 1
    finally:
        runtime.close()


async def submitted(runtime: Runtime) -> str:
    pipeline = double.pipeline
    return (await runtime.a_submit(pipeline, pipeline.params(n=1), Options(user="ann"))).id


@pytest.mark.every_store
def test_many_are_submitted_in_their_order_each_with_its_own_outcome(settings: Settings) -> None:
    runtime = Runtime(settings)
    params = double.pipeline.params
    mine = SubmitOptions(user="ann")
    jobs: list[tuple[object, SubmitOptions]] = [(params(n=n), mine) for n in range(1001)]
    jobs[3:6] = [(params(n=3), {**mine, "key": "k"}), (params(n="x"), mine), (params(n=3), {**mine, "key": "k"})]
    jobs[6] = (params(n=6), {"user": ""})

    async def submit_again() -> list[JobHandle[Any] | PackhorseError]:
        return await runtime.a_submit_many(double.pipeline, jobs[3:4])

    async def read(ids: list[str]) -> list[Any]:
        store, _ = await runtime.open()
        specs = await store.specs(ids)
        return [json.decode(specs[each].parameters)["n"] for each in ids]

    try:
        found = runtime.wait_for(runtime.a_submit_many(double.pipeline, jobs))
        [again] = asyncio.run(submit_again())
        handles = [each for each in found if not isinstance(each, PackhorseError)]
        assert [type(found[n]) for n in (4, 6)] == [InvalidInput] * 2
        assert runtime.wait_for(read([each.id for each in handles])) == [0, 1, 2, 3, 3, *range(7, 1001)]
        assert not isinstance(again, PackhorseError)
        assert again.id == handles[3].id == handles[4].id
    finally:
        runtime.close()


def test_with_and_without_a_loop_one_sees_the_same_jobs(settings: Settings) -> None:
    runtime = Runtime(settings)
    try:
        first = runtime.wait_for(submitted(runtime))
        second = asyncio.run(submitted(runtime))

        async def both() -> list[str]:
            store, _ = await runtime.open()
            return [job.id for job in await store.get([first, second]) if job is not None]

        assert asyncio.run(both()) == runtime.wait_for(both()) == [first, second]
    finally:
        runtime.close()


def test_loop_after_loop_leaves_nothing_open(settings: Settings) -> None:
    runtime = Runtime(settings)
    try:
        asyncio.run(submitted(runtime))
        few = threading.active_count()
        for _ in range(5):
            asyncio.run(submitted(runtime))
        assert threading.active_count() <= few
        assert runtime._opened == {}
    finally:
        runtime.close()


def test_callers_of_one_loop_share_a_store(settings: Settings) -> None:
    runtime = Runtime(settings)

    async def stores() -> list[Store]:
        return [store for store, _ in await asyncio.gather(*(runtime.open() for _ in range(5)))]

    try:
        assert len(set(map(id, asyncio.run(stores())))) == 1
    finally:
        runtime.close()


async def test_a_runtime_is_closed_from_another_thread_while_its_loop_runs(settings: Settings) -> None:
    runtime = Runtime(settings)
    await submitted(runtime)

    await asyncio.to_thread(runtime.close)

    assert runtime._opened == {}


@app.pipeline("other", double.pipeline.params).stage
def other(ctx: Context, p: object) -> int:
    return 1


def test_a_job_is_found_by_its_id_only_for_its_user_and_pipeline(settings: Settings) -> None:
    runtime = Runtime(settings)
    other_pipeline = app.code.pipelines["other"]
    try:
        id = runtime.wait_for(submitted(runtime))

        async def find(pipeline: Pipeline[Any], job_id: str, user: str) -> str:
            try:
                return (await runtime.a_find(pipeline, job_id, user)).id
            except JobNotFound as error:
                return error.message

        async def all_of_them() -> list[str]:
            wanted = (double.pipeline, id, "ann"), (double.pipeline, id, "local"), (double.pipeline, id, "bob")
            unknown = (double.pipeline, "nope", "ann"), (double.pipeline, "a\0", "ann"), (other_pipeline, id, "ann")
            return [await find(*each) for each in (*wanted, *unknown)]

        assert runtime.wait_for(all_of_them()) == [
            id, *(JobNotFound(job_id=each).message for each in (id, id, "nope", "a\0", id)),
        ]  # fmt: skip
    finally:
        runtime.close()


def test_a_watched_job_is_told_when_it_changes_until_it_has_ended(settings: Settings) -> None:
    runtime = Runtime(settings)
    try:
        job = runtime.submit(double.pipeline, double.pipeline.params(n=1), Options(user="ann"))
        watched = job.watch()
        first = next(watched)
        job.cancel()
        rest = list(watched)
        again = list(runtime.wait_for(runtime.a_find(double.pipeline, job.id, "ann")).watch())

        assert (first.id, first.status, first.progress) == (job.id, "pending", 0.0)
        assert [each.status for each in rest] == [each.status for each in again] == ["cancelled"]
    finally:
        runtime.close()
