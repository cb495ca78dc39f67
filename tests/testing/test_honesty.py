"""A bench and a real worker, with its processes, tell the same story of the same job."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator, Sized
from typing import Any, TypeVar

import pytest

from packhorse.define import Function, Options, Pipeline
from packhorse.runtime import Runtime
from packhorse.settings import load
from packhorse.store.base import Store
from packhorse.testing import Bench
from tests.testing import pipelines
from tests.testing.pipelines import Convert, Split, a_endless, convert, endless, flaky, poll, split

C = TypeVar("C", bound=Sized)

WORKER = """
import asyncio, signal
from packhorse.worker.pool import describe
from packhorse.worker.worker import Worker
from packhorse.settings import load
from packhorse.factory import open_both

async def main():
    settings = load().settings
    store, blobs = await open_both(settings)
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    await Worker(store, blobs, settings, await describe(settings.app)).run(stop)

asyncio.run(main())
"""

PASSING = {"worker", "at"}
"""Facts that are others in every run."""

Story = tuple[list[tuple[str, dict[str, Any]]], Any, list[str], list[str]]


@pytest.fixture(scope="module")
def runtime(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runtime]:
    """A store with a worker on it, which has one slot per queue."""
    folder = tmp_path_factory.mktemp("real")
    given = {
        "app": pipelines.__file__,
        "store": f"sqlite://{folder}/store.db",
        "blobs": f"file://{folder}/blobs",
        "scratch": f"{folder}/scratch",
        "slots": "1",
    }
    env = {name: value for name, value in os.environ.items() if not name.startswith("PACKHORSE_")}
    env |= {f"PACKHORSE_{name.upper()}": value for name, value in given.items()}
    log = folder / "worker.log"
    with log.open("wb") as output:
        worker = subprocess.Popen([sys.executable, "-c", WORKER], env=env, cwd=folder, stdout=output, stderr=output)
    runtime = Runtime(load(given, env={}, folder=folder).settings)
    yield runtime
    worker.send_signal(signal.SIGTERM)
    assert worker.wait(30) == 0, log.read_text()
    runtime.close()


def told_by_a_worker(
    runtime: Runtime, pipeline: Pipeline[Any], params: object, *, lines: int, cancel: bool = False
) -> Story:
    """With that many lines of log, which may come in a moment after the end."""
    handle = runtime.submit(pipeline, params, Options())
    if cancel:
        runtime.wait_for(until(runtime, lambda store: store.progress([handle.id])))
        handle.cancel()
    ended = handle.wait(timeout=60)
    assert ended.status.is_terminal, "the worker did not finish the job"  # else its events would never end
    events = [(event.type, dict(event.data)) for event in handle.events()]

    async def kept() -> tuple[list[str], list[str]]:
        store, _ = await runtime.open()
        results = (await store.results([handle.id])).get(handle.id, {})
        names = [artifact.name for result in results.values() for artifact in result.artifacts]
        found = await until(runtime, lambda store: store.lines(handle.id), lines)
        return [line.text for line in found], names

    return events, ended.value, *runtime.wait_for(kept())


async def until(runtime: Runtime, question: Callable[[Store], Awaitable[C]], size: int = 1) -> C:
    """The answer when it has that many parts, or after a few seconds as it is."""
    store, _ = await runtime.open()
    mark: int | None = None
    deadline = time.monotonic() + 10
    while len(answer := await question(store)) < size and time.monotonic() < deadline:
        mark = await store.wait_for_change(mark, 0.5)
    return answer


def told_by_a_bench(bench: Bench, pipeline: Pipeline[Any], params: object, *, cancel: bool = False) -> Story:
    if cancel:
        bench.during(pipeline.stages[pipeline.name], lambda job: job.cancel())
    job = bench.run(pipeline, params)
    events = [(event.type, dict(event.data)) for event in job.events]
    return events, job.result if job.status == "completed" else None, job.log, list(job.artifacts)


def comparable(story: Story) -> list[object]:
    """Sorted, because a worker begins the next task while the last one is still being recorded."""
    events, value, lines, names = story
    kept = [(type, sorted((k, v) for k, v in data.items() if k not in PASSING)) for type, data in events]
    content = value.read_bytes() if hasattr(value, "read_bytes") else value
    return [sorted(kept), content, sorted(lines), sorted(names)]


@pytest.mark.parametrize("which", ["convert", "split", "flaky", "flaky for good", "gone"])
def test_a_bench_and_a_worker_tell_the_same_story(runtime: Runtime, packhorse: Bench, which: str) -> None:
    asked: dict[str, tuple[Pipeline[Any], object]] = {
        "convert": (convert, Convert(model=packhorse.file("m.onnx", b"model"))),
        "split": (split, Split(text="a bb ccc")),
        "flaky": (flaky.pipeline, flaky.params_from(2)),
        "flaky for good": (flaky.pipeline, flaky.params_from(9)),
        "gone": (poll.pipeline, poll.params_from("http://gone")),
    }

    inline = told_by_a_bench(packhorse, *asked[which])
    real = told_by_a_worker(runtime, *asked[which], lines=len(inline[2]))

    assert comparable(inline) == comparable(real)
    assert len(inline[0]) == len(real[0]) >= 4


@pytest.mark.parametrize("job", [endless, a_endless], ids=["sync", "async"])
def test_a_cancelled_stage_can_tidy_up_on_a_bench_as_in_a_worker(
    runtime: Runtime, packhorse: Bench, job: Function[..., [], Any]
) -> None:
    inline = told_by_a_bench(packhorse, job.pipeline, job.params_from(), cancel=True)
    real = told_by_a_worker(runtime, job.pipeline, job.params_from(), lines=1, cancel=True)

    assert inline[2] == ["cancelled: True"]
    assert comparable(inline) == comparable(real)
