"""Three days of jobs and statistics for screenshots, written by the verbs themselves as if they had run then."""

from __future__ import annotations

import math
import random
import secrets
from collections.abc import Iterator, Mapping
from typing import NamedTuple
from uuid import UUID

from msgspec.structs import replace

from packhorse.core import json, lifecycle
from packhorse.core.changes import Change, MakeDue, TakeBack
from packhorse.core.models import Failure, Input, Job, Result, Spec, Stored, Task, TaskId
from packhorse.core.plan import Definition, Plan, TaskStatus
from packhorse.store.base import Store
from packhorse.store.counters import MINUTE, QUARTER, Tally, duration_bucket
from tests.web import gallery

SEED = 7  # the same pictures every time
UNSUPPORTED = f"package:UNSUPPORTED:{gallery.UNSUPPORTED}"
SILENT = "recognize:NO_SPEECH:The recording has no speech in language en."
DAYS = 3 * 86_400
WIDTH = 24  # elements of each fan-out


class Past(NamedTuple):
    """A job that ran some time ago."""

    pipeline: str
    user: str
    file: str
    minutes: float
    """Ago."""
    seconds: float
    """For each of its stages."""
    fails: str = ""
    """The stage, and what is wrong."""


PAST = (
    Past("convert", "ann@example.com", "yolov8n-roads.onnx", 14, 21),
    Past("transcribe", "bob@example.com", "Interview Müller 2026-11-18.wav", 22, 48),
    Past("convert", "فاطمة", "نموذج-التعرف-على-الصور-الإصدار-٣.onnx", 37, 17),
    Past("album", "cleo@example.com", "Wedding Sarah & Tom – all photos, selected, final (2).zip", 55, 70),
    Past(
        "transcribe",
        "דנה",
        "הקלטה מהישיבה השבועית.m4a",
        71,
        52,
        SILENT,
    ),
    Past(
        "convert",
        "eve@example.com",
        "resnet50-v2-7.onnx",
        96,
        19,
        UNSUPPORTED,
    ),
    Past(
        "render",
        "ann@example.com",
        "shot_042_final_FINAL_v17_colour-graded_with-a-name-of-this-length.blend",
        128,
        240,
    ),
    Past(
        "convert",
        "gus@example.com",
        "mobilenet_v3.onnx",
        190,
        15,
        UNSUPPORTED,
    ),
    Past(
        "convert",
        "hal@example.com",
        "efficientdet-d0.onnx",
        260,
        16,
        UNSUPPORTED,
    ),
    Past("report", "cron", "", 420, 3),
    Past("transcribe", "ivy@example.com", "Podcast 118.mp3", 610, 90),
    Past("convert", "ivy@example.com", "segformer-b2.onnx", 1500, 25),
)


async def add_history(store: Store, definitions: list[Definition], now: float) -> None:
    plans = {each.pipeline: json.decode(each.plan, Plan) for each in definitions}
    for past in PAST:
        for change in _life(plans[past.pipeline], past, now - 60 * past.minutes):
            [refused] = await store.commit([change])
            if refused is not None:
                raise refused
    await store.tally(_counts(now))


def _life(plan: Plan, past: Past, at: float) -> Iterator[Change]:
    failing, _, error = past.fails.partition(":")
    code, _, message = error.partition(":")
    name = plan.primary or "source"
    inputs = (_input(name, past.file),) if past.file else ()
    parameters = json.encode({name: {"$file": 0}} if inputs else {})
    change = lifecycle.submit(plan, Spec(parameters, inputs), job_id=_id(at), user=past.user, trace_id="0" * 32, now=at)
    yield change
    at += 1.5
    due = _due(change)
    while due:
        task = due.pop(0)
        token = secrets.token_hex(8)
        change = lifecycle.start(change.after, task, token=token, worker="studio-1", lease=60.0, now=at)
        yield change
        at += past.seconds / (WIDTH if task.element else 1)
        if task.stage == failing:
            failure = Failure(code, message, permanent=True)
            change = lifecycle.fail(change.after, task, token=token, error=failure, luck=0.0, now=at)
            due.clear()
        else:
            result = Result(json.encode(list(range(WIDTH))))
            change = lifecycle.finish(change.after, task, token=token, result=result, width=WIDTH, now=at)
        yield change
        due += _due(change) if task.stage != failing else []


async def add_fan_out(
    store: Store, definitions: list[Definition], *, user: str, file: str, width: int, done: int, running: int
) -> str:
    """A job with so many elements, each 997th of which failed. No worker may serve its queue; returns its id."""
    [plan] = [plan for each in definitions if (plan := json.decode(each.plan, Plan)).pipeline == "simulate"]
    now = store.now()
    begun = now - 840
    spec = Spec(b'{"source":{"$file":0}}', (_input("source", file),))
    change = lifecycle.submit(plan, spec, job_id=_id(begun), user=user, trace_id="0" * 32, now=begun)
    changes = [change]

    def run(task: TaskId, at: float, seconds: float, result: bytes, width: int | None = None) -> None:
        token = secrets.token_hex(8)
        job = changes[-1].after
        changes.append(lifecycle.start(job, task, token=token, worker="studio-1", lease=3600.0, now=at))
        if seconds:
            job, done = changes[-1].after, Result(result)
            changes.append(lifecycle.finish(job, task, token=token, result=done, width=width, now=at + seconds))

    run(TaskId("mesh"), begun + 2, 9.0, json.encode(list(range(width))), width)
    changes.append(_with_elements(changes[-1].after, done, begun + 12, now))
    for element in range(done, done + running):
        run(TaskId("cell", element), now - 1.5, 0, b"")
    if done + 1 == width:
        run(TaskId("cell", done), now - 1.5, 1.0, b"1")
        run(TaskId("drag"), now - 0.4, 0.4, b'{"drag":0.2841,"lift":-0.0127}')
    for each in changes:
        [refused] = await store.commit([each])
        if refused is not None:
            raise refused
    return change.after.id


def _with_elements(job: Job, done: int, begun: float, now: float) -> Change:
    """The first elements have ended, eight at a time: one change instead of two for each of them."""
    mesh, cells, drag = job.stages
    step = (now - begun) / (done + 1)
    tasks = list(cells.tasks or ())
    for n in range(done):
        start = begun + n * step
        ended = min(now, start + 8 * step * (0.6 + 0.4 * math.sin(n / 400)))
        failure = Failure("DIVERGED", f"Cell {n} diverged after 500 iterations", "cell", n, permanent=True)
        error = failure if n % 997 == 99 else None
        status = TaskStatus.COMPLETED if error is None else TaskStatus.FAILED
        tasks[n] = Task(status, 1, None, start, ended, begun, error)
    after = replace(job, version=job.version + 1, stages=(mesh, replace(cells, tasks=tuple(tasks)), drag))
    return Change(job, after, effects=tuple(TakeBack(TaskId("cell", n)) for n in range(done)), id=secrets.token_hex(8))


def _input(parameter: str, file: str) -> Input:
    return Input(parameter, 0, Stored("x", file, 4_812_000, "0" * 64, "application/octet-stream"))


def _due(change: Change) -> list[TaskId]:
    return [each.task for each in change.effects if isinstance(each, MakeDue)]


def _id(at: float) -> str:
    """A UUID of that time, as jobs have."""
    bits = int(at * 1000) << 80 | 7 << 76 | secrets.randbits(12) << 64 | 2 << 62 | secrets.randbits(62)
    return str(UUID(int=bits))


def _counts(now: float) -> Mapping[Tally, int]:
    """More by day than by night, some failures, and an hour in which the disk was full."""
    luck = random.Random(SEED)
    found: dict[Tally, int] = {}

    def add(step: int, at: int, name: str, count: int) -> None:
        if count:
            key = Tally(step, at // step * step, "convert", "", name)
            found[key] = found.get(key, 0) + count

    for at in range(int(now) - DAYS, int(now), MINUTE):
        day = 0.35 + 0.65 * max(0.0, math.sin((at % 86_400) / 86_400 * math.pi))
        is_broken = 95 < (now - at) / 60 < 150
        jobs = round(12 * day * luck.uniform(0.7, 1.3))
        failed = sum(luck.random() < (0.4 if is_broken else 0.02) for _ in range(jobs))
        counts = {"completed": jobs - failed, "failed": failed, "cancelled": luck.random() < 0.05}
        for step in (MINUTE, QUARTER):
            for name, count in counts.items():
                add(step, at, name, int(count))
            for _ in range(jobs):
                add(step, at, f"wait:{duration_bucket(luck.lognormvariate(0.4 + 2 * is_broken, 0.7))}", 1)
                add(step, at, f"run:{duration_bucket(luck.lognormvariate(3.2, 0.6))}", 1)
    return found
