"""What people are shown and told of a job beside its record: messages, stages, and that it has ended.

And keys that people read, written with the records that they show.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

from msgspec import Struct

from packhorse.core import json
from packhorse.core.models import Event, Job, Stage
from packhorse.core.plan import Status
from packhorse.core.records import Drop, Put
from packhorse.core.schedules import Schedule
from packhorse.errors import CorruptRecord
from packhorse.store.base import Finding
from packhorse.store.collections import workers
from packhorse.store.collections.queues import READING, READINGS_KEPT
from packhorse.store.collections.workers import FINDING, WorkerCard

ANNOUNCED = {
    "stage_started": "info", "retrying": "info", "cancelling": "info", "cancelled": "info",
    "stage_completed": "complete", "completed": "complete", "stage_failed": "error", "failed": "error",
}  # fmt: skip
"""Events that live watchers of Pub/Sub hear of, and as what."""


class Announced(Struct, frozen=True):
    """The data of a message."""

    message: str
    current: float | None
    total: float | None


class Announcement(Struct, frozen=True):
    """What is published on ``progress:{id}``."""

    type: str
    processor: str
    timestamp: float
    data: Announced


def announcement(sort: str, processor: str, at: float, message: str, current: float | None, total: float | None) -> str:
    return json.encode(Announcement(sort, processor, at, Announced(message, current, total))).decode()


def message(sort: str, event: Event, job: Job) -> str:
    said = event.data.get("message") or event.type.replace("_", " ")
    stage = str(event.data.get("stage", ""))
    return announcement(sort, stage, event.at, str(said), *_done(job, stage))


def _done(job: Job, stage: str) -> tuple[int, int]:
    """Tasks of the stage that are finished, and all; of the whole job where it is about no stage in particular."""
    done = total = 0
    for each in (job.stage(stage),) if stage in job.plan.index else job.stages:
        for task in each.tasks or ():
            done += task.status is Status.COMPLETED
            total += 1
    return done, total


def stage(stage: Stage, has_elements: bool, at: float) -> list[str]:
    """The fields of its hash: names and values in turn."""
    tasks = stage.tasks or ()
    found = ["status", stage.status.value, "updated_at", str(at)]
    started = [task.started_at for task in tasks if task.started_at is not None]
    if started:
        found += ("started_at", str(min(started)))
    if has_elements:
        done = sum(task.status is Status.COMPLETED for task in tasks)
        found += ("elements", str(len(tasks)), "current", str(done), "total", str(len(tasks)))
        found += ("progress", f"{100 * done / len(tasks):.0f}")
    elif stage.status is Status.COMPLETED:
        found += ("progress", "100")
    return found


def ended(job: Job) -> str:
    """Its item in ``queue:done``."""
    return json.encode({"job_id": job.id, "status": job.status.value, "pipeline": job.plan.pipeline}).decode()


def show_schedules(writes: Sequence[Put | Drop]) -> list[list[str]]:
    """``config:{tenant}/{schedule}``: a hash with what people edit."""
    commands = []
    for write in writes:
        if isinstance(write, Drop):
            commands.append(["DEL", f"config:{write.id}"])
            continue
        with suppress(CorruptRecord):  # who asks for it is told
            schedule = json.record(write.body, Schedule)
            terms = schedule.terms
            fields = {
                "job_id": schedule.id,
                "active": "1" if terms.active else "0",
                "pipeline": terms.pipeline,
                "cron": terms.cron,
                "zone": terms.zone,
                "params": terms.parameters.decode(),
                "version": str(schedule.version),
                "updated_at": repr(schedule.updated_at),
                "next_at": "" if schedule.next_at is None else repr(schedule.next_at),
            }
            commands.append(["HSET", f"config:{write.id}", *(text for pair in fields.items() for text in pair)])
    return commands


def show_records(writes: Sequence[Put | Drop]) -> list[list[str]]:
    """Commands for the keys that people read, to be carried out in the step that makes these writes."""
    shown = [kind for kind in dict.fromkeys(write.kind for write in writes) if kind in RECORD_VIEWS]
    return [
        command for kind in shown for command in RECORD_VIEWS[kind]([write for write in writes if write.kind == kind])
    ]


HEALTH = "60"
"""Seconds after which a finding, or what a worker says of itself, is not shown as current any more."""
MACHINE = "10"
"""Seconds for which what a host uses is shown as current."""
DAY = 86_400


def _show_workers(writes: Sequence[Put | Drop]) -> list[list[str]]:
    shown: list[list[str]] = []
    for write in writes:
        key = f"health:{write.id}"
        if isinstance(write, Drop):
            shown.append(["DEL", key])
            continue
        shown.append(["SET", key, write.body.decode(), "EX", HEALTH])
        machine = json.record(write.body, WorkerCard).machine
        if machine is not None:  # of the host that was heard of last; each worker's is in its own
            shown.append(["SET", "stats:cpu:current", f"{100 * machine.cpu:.1f}", "EX", MACHINE])
            shown.append(["SET", "stats:memory:current", str(machine.memory), "EX", MACHINE])
    return shown


def _show_findings(writes: Sequence[Put | Drop]) -> list[list[str]]:
    """Each part in a field, and whether all is well in a key of its own, for who reads nothing else."""
    found = [json.record(write.body, Finding) for write in writes if isinstance(write, Put)]
    worst = next((each for each in found if not each.is_ok), None)
    current = {"status": "ok" if worst is None else "bad", "part": "" if worst is None else worst.part}
    at = max((each.measured_at or 0.0 for each in found), default=0.0)
    return [
        *(["HSET", "health:services", each.part, json.encode(each).decode()] for each in found),
        ["EXPIRE", "health:services", HEALTH],
        ["SET", "health:current", json.encode({**current, "measured_at": at}).decode(), "EX", HEALTH],
    ]


def _show_lost(writes: Sequence[Put | Drop]) -> list[list[str]]:
    shown = [
        ["HSET", "workers:lost", write.id, write.body.decode()]
        if isinstance(write, Put)
        else ["HDEL", "workers:lost", write.id]
        for write in writes
    ]
    return [*shown, ["EXPIRE", "workers:lost", str(DAY)]]


def _show_readings(writes: Sequence[Put | Drop]) -> list[list[str]]:
    """A hash per day, so that it can expire as a whole."""
    shown: list[list[str]] = []
    for write in writes:
        if isinstance(write, Put):
            key = f"stats:readings:{time.strftime('%Y-%m-%d', time.gmtime(int(write.id)))}"
            shown.append(["HSET", key, write.id, write.body.decode()])
            shown.append(["EXPIRE", key, str(READINGS_KEPT + DAY)])
    return shown


RECORD_VIEWS: Mapping[str, Callable[[Sequence[Put | Drop]], list[list[str]]]] = {
    "schedule": show_schedules,
    workers.WORKER: _show_workers,
    workers.LOST: _show_lost,
    FINDING: _show_findings,
    READING: _show_readings,
}
"""By kind of record: the commands, keys without the prefix, that show people the writes of one `put`."""
