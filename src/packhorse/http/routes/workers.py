"""Workers: who is there, what each has in hand, how its host is, and what became of what lost ones had in hand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from litestar import get
from litestar.di import NamedDependency

from packhorse.background.health import MACHINE_FRESH
from packhorse.core.models import Job
from packhorse.errors import CorruptRecord, SchemaTooNew
from packhorse.http.openapi import refusing
from packhorse.http.services import Tools
from packhorse.jobs.explain import is_live
from packhorse.schemas.operations import (
    LossDocument,
    MachineDocument,
    WorkDocument,
    WorkerDocument,
    WorkersPage,
)
from packhorse.schemas.timestamps import iso
from packhorse.store.collections import workers
from packhorse.store.collections.workers import Lost, Machine, Work, WorkerCard


@get("/workers", scope="operate", shared=True, responses=refusing())
async def list_workers(tools: NamedDependency[Tools]) -> WorkersPage:
    """The workers that are there, and for a day those that were lost, with what became of what they had in hand."""
    now, cards = tools.store.now(), await workers.list_all(tools.store)
    lost = {each.id: each for each in await workers.list_lost(tools.store)}
    shown = [_there(card, lost.pop(card.id, None), now, tools.settings.lease) for card in cards]
    jobs = await _jobs(tools, [work.job_id for each in lost.values() for work in each.work])
    return {"items": [*shown, *(_gone(each, jobs) for each in lost.values())], "next": None}


def _there(card: WorkerCard, lost: Lost | None, now: float, lease: float) -> WorkerDocument:
    is_here = is_live(card, now, lease)
    missed = lost is not None and not is_here
    return {
        "worker_id": card.id,
        "state": "lost" if missed else "silent" if not is_here else "draining" if card.is_draining else "alive",
        "host": card.host,
        "pid": card.pid,
        "version": card.version,
        "started_at": iso(card.started_at) if card.started_at else None,
        "seen_at": iso(card.seen_at),
        "queues": {queue: {"slots": slots, "busy": card.busy.get(queue, 0)} for queue, slots in card.queues.items()},
        "kinds": list(card.kinds),
        "work": [_work(work, None) for work in card.work],
        "machine": None if card.machine is None else _machine(card.machine, now),
        "lost": _loss(lost, {}) if missed and lost is not None else None,
    }


def _gone(lost: Lost, jobs: Mapping[str, Job]) -> WorkerDocument:
    return {
        "worker_id": lost.id,
        "state": "lost",
        "host": lost.host,
        "pid": lost.pid,
        "version": lost.version,
        "started_at": None,
        "seen_at": iso(lost.seen_at),
        "queues": {},
        "kinds": [],
        "work": [],
        "machine": None,
        "lost": _loss(lost, jobs),
    }


def _loss(lost: Lost, jobs: Mapping[str, Job]) -> LossDocument:
    return {
        "missed_at": iso(lost.missed_at),
        "noticed_by": lost.by,
        "tasks": lost.tasks,
        "work": [_work(work, jobs.get(work.job_id)) for work in lost.work],
    }


def _work(work: Work, job: Job | None) -> WorkDocument:
    return {
        "job_id": work.job_id,
        "stage": work.task.stage,
        "element": work.task.element,
        "since": iso(work.since),
        "status": None if job is None else job.status,
    }


def _machine(machine: Machine, now: float) -> MachineDocument:
    return {
        "measured_at": iso(machine.at),
        "is_fresh": now - machine.at <= MACHINE_FRESH,
        "cpu": round(machine.cpu, 3),
        "cores": machine.cores,
        "memory_bytes": machine.memory,
        "memory_total_bytes": machine.memory_total,
    }


async def _jobs(tools: Tools, job_ids: Sequence[str]) -> dict[str, Job]:
    """What is left of them; one that nobody can read must not hide the workers."""
    try:
        return {job.id: job for job in await tools.store.get(list(dict.fromkeys(job_ids))) if job is not None}
    except (CorruptRecord, SchemaTooNew):
        return {}
