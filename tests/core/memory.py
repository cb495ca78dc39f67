"""What a store promises about a commit, in memory and small enough to be seen to be right."""

from __future__ import annotations

from typing import NamedTuple

from msgspec.structs import replace

from packhorse.core import json
from packhorse.core.changes import (
    Change,
    DropStages,
    Effect,
    EndLease,
    Foremost,
    Grant,
    Guard,
    Holds,
    KeepResult,
    KeepSpec,
    KeyUnused,
    MakeDue,
    Overdue,
    PutRecord,
    RecordFailure,
    ReleaseSlot,
    RememberKey,
    SettleFailures,
    SlotFree,
    TakeBack,
    TakeSlot,
    Waiting,
    slot_to_wait_for,
)
from packhorse.core.models import Event, FailedRun, Job, Result, Spec, TaskId
from packhorse.core.webhooks import DELIVERY, Delivery
from packhorse.errors import AlreadySubmitted, Conflict, LeaseLost, SlotTaken


class Entry(NamedTuple):
    """A task of a job: what is due, and what is leased."""

    job_id: str
    task: TaskId


class Lease(NamedTuple):
    token: str
    until: float


class Memory:
    """Stricter than a store need be: an effect on something that is not there is a mistake of whoever decided it."""

    def __init__(self) -> None:
        self.now = 0.0
        self.jobs: dict[str, Job] = {}
        self.specs: dict[str, Spec] = {}
        self.results: dict[str, dict[TaskId, Result]] = {}
        self.events: dict[str, list[Event]] = {}
        self.due: dict[Entry, MakeDue] = {}
        self.leases: dict[Entry, Lease] = {}
        self.slots: dict[str, str] = {}
        self.lines: dict[str, dict[str, list[MakeDue]]] = {}
        self.keys: dict[str, str] = {}
        self.deliveries: set[tuple[str, int, str]] = set()
        """Job, run and endpoint; every endpoint is there."""
        self.failures: dict[str, FailedRun] = {}

    def commit(self, change: Change) -> None:
        job_id = change.after.id
        stored = self.jobs.get(job_id)
        if (stored and stored.version) != (change.before and change.before.version):
            raise Conflict
        for guard in change.guards:
            self._check(job_id, guard)
        for effect in self._join_line(change):
            self._apply(job_id, effect)
        self.events.setdefault(job_id, []).extend(change.events)
        self.jobs[job_id] = change.after

    def renew(self, at: Entry, seconds: float) -> None:
        self.leases[at] = self.leases[at]._replace(until=self.now + seconds)

    def erase(self, job_id: str) -> None:
        assert self.jobs.pop(job_id).is_purging
        del self.events[job_id], self.specs[job_id]
        self.results.pop(job_id, None)
        self.keys = {key: owner for key, owner in self.keys.items() if owner != job_id}
        self.deliveries = {each for each in self.deliveries if each[0] != job_id}

    def _check(self, job_id: str, guard: Guard) -> None:
        match guard:
            case Holds(task, token):
                lease = self.leases.get(Entry(job_id, task))
                if lease is None or lease.token != token:
                    raise LeaseLost
            case Overdue(task, token):
                lease = self.leases.get(Entry(job_id, task))
                if lease is None or lease.token != token:
                    raise LeaseLost
                if lease.until > self.now:
                    raise Conflict
            case Waiting(task):
                if Entry(job_id, task) not in self.due:
                    raise Conflict
            case Foremost(task, kinds):
                ready = [at for at, e in self.due.items() if e.kind in kinds and e.not_before <= self.now]
                if any(self._is_before(at, job_id, task) for at in ready):
                    raise Conflict
            case SlotFree(slot):
                if self.slots.get(slot, job_id) != job_id:
                    raise SlotTaken(active_job_id=self.slots[slot])
            case KeyUnused(key):
                if key in self.keys:
                    raise AlreadySubmitted(job_id=self.keys[key])

    def _is_before(self, at: Entry, job_id: str, task: TaskId) -> bool:
        other, job = self.jobs[at.job_id], self.jobs[job_id]
        is_same_queue = other.plan.stage(at.task.stage).queue == job.plan.stage(task.stage).queue
        return is_same_queue and (-other.priority, other.id) < (-job.priority, job.id)

    @property
    def waiting(self) -> set[str]:
        """Jobs that wait for their slot."""
        return {job_id for line in self.lines.values() for job_id in line}

    def _join_line(self, change: Change) -> list[Effect]:
        slot, job_id = slot_to_wait_for(change), change.after.id
        if slot is None or self.slots.get(slot, job_id) == job_id:
            return list(change.effects)
        self.lines.setdefault(slot, {})[job_id] = [each for each in change.effects if isinstance(each, MakeDue)]
        return [each for each in change.effects if not isinstance(each, MakeDue | TakeSlot)]

    def _release(self, slot: str, job_id: str) -> None:
        line = self.lines.get(slot, {})
        if self.slots[slot] != job_id:
            del line[job_id]
            return
        del self.slots[slot]
        if line:
            following = self.slots[slot] = next(iter(line))
            for due in line.pop(following):
                self._apply(following, due)

    def _apply(self, job_id: str, effect: Effect) -> None:
        match effect:
            case MakeDue(task):
                assert Entry(job_id, task) not in self.due
                self.due[Entry(job_id, task)] = effect
            case TakeBack(task):
                if job_id not in self.waiting:
                    del self.due[Entry(job_id, task)]
            case Grant(task, token, _, seconds):
                assert Entry(job_id, task) not in self.leases
                self.leases[Entry(job_id, task)] = Lease(token, self.now + seconds)
            case EndLease(task):
                del self.leases[Entry(job_id, task)]
            case TakeSlot(slot):
                self.slots[slot] = job_id
            case ReleaseSlot(slot):
                self._release(slot, job_id)
            case KeepSpec(spec):
                self.specs[job_id] = spec
            case RememberKey(key):
                self.keys[key] = job_id
            case KeepResult(task, result):
                self.results.setdefault(job_id, {})[task] = result
            case DropStages(stages):
                kept = self.results.get(job_id, {})
                self.results[job_id] = {task: result for task, result in kept.items() if task.stage not in stages}
            case PutRecord(put) if put.kind == DELIVERY:
                delivery = json.record(put.body, Delivery)
                told = (job_id, delivery.run, delivery.endpoint)
                assert told not in self.deliveries
                self.deliveries.add(told)
            case RecordFailure(failure):
                assert failure.id not in self.failures
                self.failures[failure.id] = failure
            case SettleFailures(was, status, settled):
                for each in [each for each in self.failures.values() if each.job_id == job_id and each.status is was]:
                    self.failures[each.id] = replace(each, status=status, settled=settled or each.settled)
