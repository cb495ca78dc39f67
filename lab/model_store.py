"""A store in memory that is simple enough to be read as a specification. The contract suite holds it to every rule.

`State` is the server: plain dictionaries, and one method per operation that takes the server's time. An operation runs
whole, so there is nothing to lock and nothing to roll back. `ModelStore` is a handle on it for tests; the simulation
has a handle of its own, with a network in between.
"""

from __future__ import annotations

import asyncio
import copy
import sys
import threading
import time
from bisect import insort
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, cast

from msgspec.structs import replace

from packhorse.core import changes, json
from packhorse.core import failures as rules
from packhorse.core.changes import Change
from packhorse.core.limits import LONGEST, LimitUse, Share, name_of, window_of
from packhorse.core.models import Event, FailedRun, Job, Result, Settled, Spec, TaskId
from packhorse.core.records import Drop, IndexEntry, LogEntry, Put, Record, Ref
from packhorse.errors import (
    AlreadySubmitted,
    Conflict,
    JobNotFound,
    LeaseLost,
    PackhorseError,
    SlotTaken,
    StoreError,
    StoreUnavailable,
)
from packhorse.store import counters
from packhorse.store.base import (
    Claim,
    Count,
    Decide,
    Filter,
    Finding,
    Holder,
    Lease,
    LimitState,
    Line,
    OverdueTasks,
    Progress,
    Renewal,
    Report,
    Sample,
    Snapshot,
    Store,
)
from packhorse.store.counters import Buckets, Charge, Counts, Head, Spent, Tally
from packhorse.store.failures import FailureFilter, FailureGroup, Ledger, Recent
from packhorse.store.limits import HOLDERS, MOST_PARKED

MOST_PRIORITY = 1_000  # of any task; the rank of one with aging is a time
FEED = 10_000
"""Commits that the feed keeps for watchers."""

Key = tuple[str, TaskId]
"""Job and task."""


class Held(NamedTuple):
    """A lease as the server has it."""

    token: str
    worker: str
    until: float


class Queued(NamedTuple):
    """A task in its queue. Its order is that of its rank, job, stage and element."""

    rank: int
    job_id: str
    task: TaskId
    queue: str
    kind: str
    not_before: float
    queued_at: float
    limits: tuple[LimitUse, ...] = ()
    share: Share | None = None


class Row(NamedTuple):
    """A record with what it is found by."""

    record: Record
    entries: tuple[IndexEntry, ...]
    lane: str
    job_id: str | None


Watcher = Callable[[Change, float], None]
"""Is told of every change that was made, and when by the server's clock."""


class State:
    """The server. Every method is one atomic operation at the time ``now`` of the server."""

    def __init__(self) -> None:
        self.jobs: dict[str, Job] = {}
        self.specs: dict[str, Spec] = {}
        self.results: dict[str, dict[TaskId, Result]] = {}
        self.history: dict[str, list[Event]] = {}
        self.made_changes: set[tuple[str, str]] = set()
        self.keys: dict[str, tuple[str, str]] = {}
        self.slots: dict[str, str] = {}
        self.slot_lines: dict[str, dict[str, list[changes.MakeDue]]] = {}
        """By slot and job that waits for it, what it makes due when its turn comes."""
        self.usage: dict[str, counters.Usage] = {}
        self.queue: dict[Key, Queued] = {}
        self.locked: set[str] = set()
        """Jobs that a claim has read and not started yet: other claims skip them, as SKIP LOCKED does."""
        self.leases: dict[Key, Held] = {}
        self.limits: dict[str, int] = {}
        self.holds: dict[str, dict[Key, float]] = {}
        """By key of a limit: the leases that are counted under it, and since when."""
        self.starts: dict[str, list[float]] = {}
        self.turns: dict[tuple[str, str], float] = {}
        """By queue and share: when its next start ends in virtual time."""
        self.time: dict[str, float] = {}
        """Virtual time by queue."""
        self.active: set[tuple[str, str]] = set()
        """Shares with a task that is due."""
        self.reports: dict[str, dict[TaskId, Progress]] = {}
        self.text: dict[str, list[Line]] = {}
        self.last_line: Counter[str] = Counter()
        self.measured: dict[str, dict[tuple[float, TaskId], Sample]] = {}
        self.records: dict[Ref, Row] = {}
        self.logs: dict[str, list[LogEntry]] = {}
        self.last_entry: Counter[str] = Counter()
        self.spent: dict[counters.Counter, Buckets] = {}
        self.tallies: Counter[Tally] = Counter()
        self.failed: dict[str, tuple[FailedRun, bool]] = {}
        self.groups: dict[tuple[str, str], FailureGroup] = {}
        self.failed_users: Counter[tuple[str, str, str]] = Counter()
        self.feed: list[frozenset[str]] = []
        self.feed_start = 0
        """Commits that the feed no longer has."""
        self.mark = 0
        """Writes so far."""

    def copy(self) -> State:
        """The state as a replica has it: values are never changed in place, only the collections are."""
        twin = State()
        for name, value in vars(self).items():
            if name in (
                "results",
                "history",
                "reports",
                "text",
                "measured",
                "logs",
                "spent",
                "holds",
                "starts",
                "slot_lines",
            ):
                value = type(value)((key, copy.copy(each)) for key, each in value.items())
            setattr(twin, name, copy.copy(value))
        return twin

    # Jobs.

    def commit(
        self, wanted: Sequence[Change], *, now: float, made: Watcher | None = None
    ) -> list[PackhorseError | None]:
        outcomes: list[PackhorseError | None] = []
        refused: set[str] = set()
        for change in wanted:
            outcome: PackhorseError | None = None
            if change.after.id in refused:
                outcome = Conflict(job_id=change.after.id)
            else:
                try:
                    self.make(change, now)
                except PackhorseError as error:
                    outcome = error
            if outcome is not None:
                refused.add(change.after.id)
            elif made is not None:
                made(change, now)
            outcomes.append(outcome)
        return outcomes

    def make(self, change: Change, now: float) -> None:
        """Check everything, then write everything."""
        job = change.after
        _check_writable(change)
        for guard in change.guards:
            self._check(guard, job, now)
        found = self.jobs.get(job.id)
        if change.before is None and found is not None:
            raise Conflict(f"There is a job {job.id} already.", job_id=job.id)
        if change.before is not None and (
            found is None or (found.version, found.lineage) != (change.before.version, change.before.lineage)
        ):
            raise Conflict(job_id=job.id)
        for effect in change.effects:
            if isinstance(effect, changes.EndLease):
                task = None if change.before is None else change.before.task(effect.task)
                held = self.leases.get((job.id, effect.task))
                token = None if task is None else task.token  # None: whatever is left there is dropped
                if held is None or token not in (None, held.token):
                    raise LeaseLost(job_id=job.id, stage=effect.task.stage)
        self.jobs[job.id] = job
        for effect in self._effects(change):
            self._apply(effect, change, now)
        self._begin_turns(now)
        self.history.setdefault(job.id, []).extend(change.events)
        if change.id:
            self.made_changes.add((job.id, change.id))
        self._touch({job.id})

    def _check(self, guard: changes.Guard, job: Job, now: float) -> None:
        match guard:
            case changes.Holds(task, token):
                held = self.leases.get((job.id, task))
                if held is None or held.token != token:
                    raise LeaseLost(job_id=job.id, stage=task.stage)
            case changes.Overdue(task, token):
                held = self.leases.get((job.id, task))
                if held is None or held.token != token or held.until > now:
                    raise Conflict(f"The lease of {task.stage} was renewed in the meantime.", job_id=job.id)
            case changes.Waiting(task):
                if (job.id, task) not in self.queue:
                    raise Conflict(f"{task.stage} is not waiting any more.", job_id=job.id)
            case changes.Foremost(task, kinds):
                mine = (-job.priority, job.id)
                queue = job.plan.stage(task.stage).queue
                if any(each[:2] < mine for each in self._ready(queue, kinds, now)):
                    raise Conflict(f"Something more urgent than {task.stage} is waiting.", job_id=job.id)
            case changes.WithinLimits(task, uses):
                if not self._has_room(uses, now):
                    raise Conflict(f"{task.stage} would exceed a limit.", job_id=job.id)
            case changes.KeyUnused(key):
                if key in self.keys:
                    first, fingerprint = self.keys[key]
                    raise AlreadySubmitted(job_id=first, fingerprint=fingerprint)
            case changes.SlotFree(slot):
                holder = self.slots.get(slot, job.id)
                if holder != job.id:
                    raise SlotTaken(active_job_id=holder)
            case changes.HasRoom(tenant):
                refusal = counters.refuse_usage(self.usage.get(tenant, counters.Usage()), guard)
                if refusal is not None:
                    raise refusal
            case changes.RecordIs(ref, stamp):
                if self._stamp(ref) != stamp:
                    raise Conflict(f"The {ref.kind} {ref.id} has changed.", kind=ref.kind, id=ref.id, job_id=job.id)

    def _apply(self, effect: changes.Effect, change: Change, now: float) -> None:
        job = change.after
        match effect:
            case changes.MakeDue():
                self._make_due(job.id, effect)
            case changes.TakeBack(task):
                self.queue.pop((job.id, task), None)
            case changes.Grant(task, token, worker, seconds, limits, share):
                self.leases[job.id, task] = Held(token, worker, now + seconds)
                for use in limits:
                    if use.window:
                        self.starts.setdefault(use.key, []).append(now)
                    else:
                        self.holds.setdefault(use.key, {})[job.id, task] = now
                if share is not None:
                    self._charge(job.plan.stage(task.stage).queue, share)
            case changes.EndLease(task, limits):
                del self.leases[job.id, task]
                for use in limits:
                    self.holds.get(use.key, {}).pop((job.id, task), None)
            case changes.TakeSlot(slot):
                self.slots[slot] = job.id
            case changes.ReleaseSlot(slot):
                self._release(slot, job.id)
            case changes.CountUsage(tenant, jobs, size):
                used = self.usage.get(tenant, counters.Usage())
                self.usage[tenant] = counters.Usage(used.jobs + jobs, used.bytes + size)
            case changes.KeepSpec(spec):
                self.specs[job.id] = spec
            case changes.RememberKey(key, fingerprint):
                self.keys[key] = (job.id, fingerprint)
            case changes.KeepResult(task, result):
                self.results.setdefault(job.id, {})[task] = result
            case changes.DropStages(stages):
                for kept in (self.results.get(job.id, {}), self.reports.get(job.id, {})):
                    for task in [task for task in kept if task.stage in stages]:
                        del kept[task]
            case changes.RecordFailure(failure):
                ledger = self._ledger([(failure, False)])
                ledger.record(failure)
                self._keep(ledger)
            case changes.SettleFailures(was):
                of_job = [each for each in self.failed.values() if each[0].job_id == job.id and each[0].status is was]
                ledger = self._ledger(of_job)
                ledger.settle(job.id, effect)
                self._keep(ledger)
            case changes.PutRecord(put):
                if self._refusal(put) is None:
                    self._put(put)
            case changes.NoteRecord(ref, note, index):
                if (row := self.records.get(ref)) is not None:
                    noted = replace(row.record, note=note, stamp=row.record.stamp + 1, due_at=None)
                    self.records[ref] = Row(noted, index, row.lane, row.job_id)
            case changes.DropRecord(ref):
                self.records.pop(ref, None)

    def _effects(self, change: Change) -> Sequence[changes.Effect]:
        """What is made now: a job that waits for its slot has nothing due, and does not take it."""
        slot, job_id = changes.slot_to_wait_for(change), change.after.id
        if slot is None or self.slots.get(slot, job_id) == job_id:
            return change.effects
        due = [each for each in change.effects if isinstance(each, changes.MakeDue)]
        self.slot_lines.setdefault(slot, {})[job_id] = due
        return [each for each in change.effects if not isinstance(each, changes.MakeDue | changes.TakeSlot)]

    def _release(self, slot: str, job_id: str) -> None:
        line = self.slot_lines.get(slot, {})
        if self.slots.get(slot) != job_id:
            line.pop(job_id, None)
        elif not line:
            del self.slots[slot]
        else:
            following = self.slots[slot] = next(iter(line))
            for due in line.pop(following):
                self._make_due(following, due)
            self._touch({following})

    def _make_due(self, job_id: str, due: changes.MakeDue) -> None:
        at = due.not_before
        self.queue[job_id, due.task] = Queued(
            -due.priority, job_id, due.task, due.queue, due.kind, at, at - due.delay, due.limits, due.share
        )

    def get(self, job_ids: Sequence[str], *, now: float) -> list[Job | None]:
        return [self.jobs.get(job_id) for job_id in job_ids]

    def find(self, filter: Filter, *, now: float, before: str | None = None, limit: int = 50) -> list[Job]:
        found = [job for job in self.jobs.values() if _fits(filter, job) and (before is None or job.id < before)]
        return sorted(found, key=lambda job: job.id, reverse=True)[:limit]

    def count(self, filters: Sequence[Filter], *, now: float, most: int) -> list[Count]:
        return [self._count(each, most) for each in filters]

    def _count(self, filter: Filter, most: int) -> Count:
        """No more jobs are looked at than agreed: the time, and a user's jobs of one pipeline, are in no index."""
        indexed = replace(filter, created_from=None, created_until=None)
        if filter.user is not None:
            indexed = replace(indexed, pipeline=None)
        low, high = filter.ids()
        found = [job for job in self.jobs.values() if _fits(indexed, job)]
        found = [job for job in found if (low is None or job.id >= low) and (high is None or job.id < high)]
        is_oldest_first = filter.created_from is None and filter.created_until is not None
        found.sort(key=lambda job: job.id, reverse=not is_oldest_first)
        looks = filter.looks(most)
        number = sum(_fits(filter, job) and not job.is_purging for job in found[:looks])
        return Count(min(number, most), number <= most and len(found) < looks)

    def snapshot(
        self, job_id: str, *, now: float, events: int, lines: int, stage: str | None = None
    ) -> Snapshot | None:
        job = self.jobs.get(job_id)
        if job is None:
            return None
        return Snapshot(
            job,
            self.specs.get(job_id),
            dict(self.results.get(job_id, {})),
            dict(self.reports.get(job_id, {})),
            self.events(job_id, now=now, after=max(0, job.events - events), limit=events),
            self.lines(job_id, now=now, limit=lines, stage=stage, newest=True),
            self.last_line[job_id] if self.text.get(job_id) else 0,
            self.samples(job_id, now=now),
        )

    def get_specs(self, job_ids: Sequence[str], *, now: float) -> dict[str, Spec]:
        return {job_id: self.specs[job_id] for job_id in job_ids if job_id in self.specs}

    def get_results(self, job_ids: Sequence[str], *, now: float) -> dict[str, dict[TaskId, Result]]:
        return {job_id: dict(sorted(self.results[job_id].items())) for job_id in job_ids if self.results.get(job_id)}

    def events(self, job_id: str, *, now: float, after: int = 0, limit: int = 1000) -> list[Event]:
        return [event for event in self.history.get(job_id, []) if event.n > after][:limit]

    def has_change(self, job_id: str, change_id: str, *, now: float) -> bool:
        return (job_id, change_id) in self.made_changes

    def find_by_key(self, key: str, *, now: float) -> tuple[str, str] | None:
        return self.keys.get(key)

    def holder(self, slot: str, *, now: float) -> str | None:
        return self.slots.get(slot)

    def line(self, slot: str, *, now: float, limit: int) -> list[str]:
        held = [self.slots[slot]] if slot in self.slots else []
        return [*held, *self.slot_lines.get(slot, {})][:limit]

    # The queue.

    def _ready(self, queue: str, kinds: Collection[str], now: float) -> list[Queued]:
        """The most urgent first."""
        found = [each for each in self.queue.values() if self._is_ready(each, queue, kinds, now)]
        return sorted(found, key=lambda each: each[:3])

    def has_ready(self, queue: str, kinds: Collection[str], now: float) -> bool:
        return any(self._is_ready(each, queue, kinds, now) for each in self.queue.values())

    def _is_ready(self, each: Queued, queue: str, kinds: Collection[str], now: float) -> bool:
        is_due = each.queue == queue and each.not_before <= now and each.kind in kinds
        return is_due and each.job_id not in self.locked and self._has_room(each.limits, now)

    def pick(self, wants: Mapping[str, int], kinds: Collection[str], decide: Decide, now: float) -> list[Change | Key]:
        """The first half of a claim: what to start, or the entries to remove because nothing will start them."""
        picked: list[Change | Key] = []
        jobs: dict[str, Job] = {}
        self._begin_turns(now)
        for queue, limit in wants.items():
            for entry in self._choose(self._ready(queue, kinds, now), max(0, limit), now):
                job = jobs.get(entry.job_id) or self.jobs.get(entry.job_id)
                change = None
                if job is not None:
                    try:
                        change = decide(job, entry.task)
                    except PackhorseError:
                        change = None
                if change is None:
                    picked.append((entry.job_id, entry.task))
                else:
                    jobs[entry.job_id] = change.after
                    picked.append(change)
        return picked

    def _choose(self, found: list[Queued], limit: int, now: float) -> Iterator[Queued]:
        """What starts next, as if what was chosen before had started."""
        if all(not each.limits and each.share is None for each in found):
            yield from found[:limit]
            return
        chosen: Counter[str] = Counter()
        turns, time = dict(self.turns), dict(self.time)
        for _ in range(limit):
            free = [each for each in found if self._has_room(each.limits, now, chosen)]
            if not free:
                return
            entry = min(free, key=lambda each: each[:3])
            if entry.share is not None or any(each.share is not None for each in free):
                entry = self._next(free, turns)
            if entry.share is not None:
                _pay(turns, time, entry.queue, entry.share)
            chosen.update(use.key for use in entry.limits)
            found.remove(entry)
            yield entry

    @staticmethod
    def _next(free: list[Queued], turns: Mapping[tuple[str, str], float]) -> Queued:
        """The most urgent task of the share whose turn it is, or a more urgent one without a share."""
        shared = [(turns[each.queue, each.share.name], each.share, each) for each in free if each.share is not None]
        _, _, first = min(shared, key=lambda found: (found[0], found[1].name, found[1].rank, *found[2][1:3]))
        assert first.share is not None
        rank = first.share.rank if abs(first.share.rank) <= MOST_PRIORITY else 0
        plain = [each for each in free if each.share is None and each[:2] < (rank, first.job_id)]
        return min(plain, key=lambda each: each[:3], default=first)

    # Limits.

    def _used(self, key: str, now: float) -> int:
        window = window_of(name_of(key))
        if not window:
            return len(self.holds.get(key, {}))
        kept = self.starts[key] = [min(at, now) for at in self.starts.get(key, [])]
        return sum(at >= now - window for at in kept)

    def _has_room(self, uses: Sequence[LimitUse], now: float, more: Mapping[str, int] | None = None) -> bool:
        return all(
            self._used(use.key, now) + (more or {}).get(use.key, 0) < self.limits.get(use.name, use.most)
            for use in uses
        )

    def _charge(self, queue: str, share: Share) -> None:
        if (queue, share.name) not in self.turns:
            self.turns[queue, share.name] = self.time.get(queue, 0.0) + share.cost
        _pay(self.turns, self.time, queue, share)

    def _begin_turns(self, now: float) -> None:
        """A share that was idle begins at the time of its queue."""
        due: dict[tuple[str, str], Share] = {}
        for each in self.queue.values():
            if each.share is not None and each.not_before <= now:
                due.setdefault((each.queue, each.share.name), each.share)
        for place, share in due.items():
            if place not in self.active:
                begin = self.time.get(place[0], 0.0) + share.cost
                self.turns[place] = max(begin, self.turns.get(place, 0.0))
        self.active = {*due}

    def set_limit(self, name: str, most: int | None, *, now: float) -> None:
        if most is None:
            self.limits.pop(name, None)
        else:
            self.limits[name] = most
        self.mark += 1

    def limit_states(
        self, keys: Sequence[str] | None = None, *, now: float, name: str = "", after: str = "", limit: int = 100
    ) -> list[LimitState]:
        if keys is None:
            parked = {use.key for each in self.queue.values() for use in each.limits if self._is_parked(each, now)}
            used = {key for key, held in (*self.holds.items(), *self.starts.items()) if held}
            found = sorted(key for key in {*parked, *used} if key > after and name in ("", name_of(key)))
            keys = found[:limit]
        return [self._limit_state(key, now) for key in keys]

    def _is_parked(self, each: Queued, now: float) -> bool:
        return each.not_before <= now and not self._has_room(each.limits, now)

    def _limit_state(self, key: str, now: float) -> LimitState:
        window, held = window_of(name_of(key)), self.holds.get(key, {})
        ordered = sorted(held.items(), key=lambda each: (each[1], each[0]))
        holders = [Holder(*place, self.leases[place].worker, since) for place, since in ordered]
        recent = [at for at in self.starts.get(key, []) if at >= now - window] if window else []
        parked = sum(
            self._is_parked(each, now) and key == next(u.key for u in each.limits if not self._has_room([u], now))
            for each in self.queue.values()
        )
        return LimitState(
            key, self.limits.get(name_of(key)), len(recent) if window else len(held), tuple(holders[:HOLDERS]),
            min(parked, MOST_PARKED), min(recent) + window if recent else None,
        )  # fmt: skip

    def start(self, picked: Sequence[Change | Key], now: float, made: Watcher | None = None) -> list[Claim]:
        """The second half of a claim: make what was decided, where it still can be."""
        for each in picked:
            if not isinstance(each, Change):
                self.queue.pop(each, None)
        wanted = [each for each in picked if isinstance(each, Change)]
        outcomes = self.commit(wanted, now=now, made=made)
        started = [change for change, outcome in zip(wanted, outcomes, strict=True) if outcome is None]
        return [self._claim(change) for change in started]

    def claim(
        self,
        wants: Mapping[str, int],
        kinds: Collection[str],
        decide: Decide,
        *,
        now: float,
        made: Watcher | None = None,
    ) -> list[Claim]:
        return self.start(self.pick(wants, kinds, decide, now), now, made)

    def _claim(self, change: Change) -> Claim:
        job = self.jobs[change.after.id]
        [task] = [effect.task for effect in change.effects if isinstance(effect, changes.Grant)]
        kept = self.results.get(job.id, {})
        needed = {
            need.stage: tuple(kept[at] for at in sorted(kept) if at.stage == need.stage)
            for need in job.plan.stage(task.stage).needs
        }
        return Claim(job, task, self.specs[job.id], needed)

    def renew(self, leases: Sequence[Lease], seconds: float | None, *, now: float) -> Renewal:
        lost, stopping = set(), set()
        for lease in leases:
            held = self.leases.get((lease.job_id, lease.task))
            if held is None or held.token != lease.token:
                lost.add(lease)
                continue
            if seconds is not None:
                self.leases[lease.job_id, lease.task] = held._replace(until=now + seconds)
                self.mark += 1
            if self.jobs[lease.job_id].stopping is not None:
                stopping.add(lease)
        return Renewal(frozenset(lost), frozenset(stopping))

    def overdue(
        self, limit: int, *, now: float, queued_after: float | None = None, leased_after: float | None = None
    ) -> OverdueTasks:
        if leased_after is not None:
            return OverdueTasks(now, self._leased(sys.maxsize, lambda held: held.until > leased_after)[::-1][:limit])
        if queued_after is not None:
            late = [each for each in self.queue.values() if each.queued_at > queued_after]
            late.sort(key=lambda each: each.queued_at, reverse=True)
            return OverdueTasks(now, [(self.jobs[each.job_id], each.task) for each in late[:limit]])
        return OverdueTasks(now, self._leased(limit, lambda held: held.until <= now))

    def held_by(self, worker: str, limit: int, *, now: float) -> list[tuple[Job, TaskId]]:
        return self._leased(limit, lambda held: held.worker == worker)

    def _leased(self, limit: int, fits: Callable[[Held], bool]) -> list[tuple[Job, TaskId]]:
        found = sorted((held.until, key) for key, held in self.leases.items() if fits(held))
        return [(self.jobs[job_id], task) for _, (job_id, task) in found[:limit]]

    def expired(self, limit: int, *, now: float) -> list[Job]:
        found = [
            job
            for job in self.jobs.values()
            if job.deadline_at is not None and job.deadline_at <= now and job.stopping is None
        ]
        return sorted(found, key=lambda job: job.deadline_at or 0.0)[:limit]

    def ahead(self, job: Job, task: TaskId, *, now: float, limit: int = 1000) -> int:
        queue = job.plan.stage(task.stage).queue
        mine = (-job.priority, job.id, task)
        ready = (each for each in self.queue.values() if each.queue == queue and each.not_before <= now)
        return min(limit, sum(each[:3] < mine for each in ready))

    def ready(self, kinds: Mapping[str, Collection[str]], *, now: float, limit: int = 1000) -> dict[str, int]:
        return {queue: min(limit, len(self._ready(queue, names, now))) for queue, names in kinds.items()}

    # Notes.

    def report(self, reports: Sequence[Report], *, now: float) -> None:
        for each in reports:
            held = self.leases.get((each.job_id, each.task))
            if held is None or held.token != each.token:
                continue
            kept = self.reports.setdefault(each.job_id, {})
            before = kept.get(each.task)
            peak = max(before.peak, each.fraction) if before is not None and before.run == each.run else each.fraction
            kept[each.task] = Progress(each.task, each.run, each.at, each.current, each.total, each.message, peak)
            self._touch({each.job_id})

    def log(self, lines: Sequence[Line], *, now: float, keep: int) -> None:
        for line in lines:
            if line.job_id in self.jobs:
                self.last_line[line.job_id] += 1
                kept = self.text.setdefault(line.job_id, [])
                kept.append(replace(line, n=self.last_line[line.job_id]))
        for job_id in {line.job_id for line in lines} & self.jobs.keys():
            kept = self.text[job_id]
            while sum(max(1, len(line.text.encode())) for line in kept) > keep:
                del kept[0]
            self._touch({job_id})

    def sample(self, samples: Sequence[Sample], *, now: float, keep: int) -> None:
        for each in samples:
            if each.job_id in self.jobs:
                kept = self.measured.setdefault(each.job_id, {})
                kept[each.at, each.task] = each
                for old in sorted(kept)[: max(0, len(kept) - keep)]:
                    del kept[old]
        self.mark += 1

    def progress(self, job_ids: Sequence[str], *, now: float) -> dict[str, dict[TaskId, Progress]]:
        return {job_id: dict(self.reports[job_id]) for job_id in job_ids if self.reports.get(job_id)}

    def lines(
        self,
        job_id: str,
        *,
        now: float,
        after: int = 0,
        limit: int = 1000,
        stage: str | None = None,
        newest: bool = False,
    ) -> list[Line]:
        found = [
            line for line in self.text.get(job_id, []) if line.n > after and (stage is None or line.task.stage == stage)
        ]
        return found[max(0, len(found) - limit) :] if newest else found[:limit]

    def samples(self, job_id: str, *, now: float) -> list[Sample]:
        kept = self.measured.get(job_id, {})
        return [kept[key] for key in sorted(kept)]

    # Watchers.

    def _touch(self, job_ids: Iterable[str]) -> None:
        self.mark += 1
        self.feed.append(frozenset(job_ids))

    def changed_jobs(self, since: int | None, *, now: float) -> tuple[int, Collection[str] | None]:
        last = self.feed_start + len(self.feed)
        if since is None or since < self.feed_start:
            return last, None
        return last, set().union(*self.feed[since - self.feed_start :])

    # Upkeep.

    def purgeable(self, limit: int, *, now: float) -> list[Job]:
        begun = sorted((job for job in self.jobs.values() if job.is_purging), key=lambda job: job.id)
        due = [job for job in self.jobs.values() if job.purge_at is not None and job.purge_at <= now]
        due = sorted((job for job in due if not job.is_purging), key=lambda job: job.purge_at or 0.0)
        return (begun + due)[:limit]

    def jobs_with_litter(self, limit: int, *, now: float) -> list[Job]:
        found = [
            job for job in self.jobs.values() if job.has_litter and job.completed_at is not None and not job.is_purging
        ]
        return sorted(found, key=lambda job: job.id)[:limit]

    def erase(self, job_id: str, *, now: float) -> None:
        job = self.jobs.get(job_id)
        if job is None or not job.is_purging:
            return
        kept: tuple[dict[str, Any], ...] = (
            self.jobs, self.specs, self.results, self.history, self.reports, self.text, self.last_line, self.measured,
        )  # fmt: skip
        for each in kept:
            each.pop(job_id, None)
        self.keys = {key: value for key, value in self.keys.items() if value[0] != job_id}
        self.made_changes = {each for each in self.made_changes if each[0] != job_id}
        self.leases = {key: held for key, held in self.leases.items() if key[0] != job_id}
        self.holds = {
            key: {place: since for place, since in held.items() if place[0] != job_id}
            for key, held in self.holds.items()
        }
        self.records = {ref: row for ref, row in self.records.items() if row.job_id != job_id}
        self.mark += 1

    def existing_ids(self, job_ids: Sequence[str], *, now: float) -> set[str]:
        return self.jobs.keys() & set(job_ids)

    def trim(self, *, now: float) -> None:
        extra = max(0, len(self.feed) - FEED)
        self.feed_start += extra
        del self.feed[:extra]
        for each in [each for each in self.tallies if each.at < now - counters.KEPT[each.step] - each.step]:
            del self.tallies[each]
        for counter in [each for each, kept in self.spent.items() if counters.until(each[1], kept) <= now]:
            del self.spent[counter]
        for key, kept in self.starts.items():
            self.starts[key] = [at for at in kept if at >= now - LONGEST]

    # Records.

    def _stamp(self, ref: Ref) -> int:
        row = self.records.get(ref)
        return 0 if row is None else row.record.stamp

    def _refusal(self, each: Put | Drop) -> PackhorseError | None:
        if isinstance(each, Put):
            if each.job_id is not None and each.job_id not in self.jobs:
                return JobNotFound(job_id=each.job_id)
            if each.needs is not None and each.needs not in self.records:
                return Conflict(f"There is no {each.needs.kind} {each.needs.id}.", kind=each.kind, id=each.id)
        elif each.leaseless and any(held.worker == each.leaseless for held in self.leases.values()):
            return Conflict(f"The worker {each.leaseless} still holds a lease.", kind=each.kind, id=each.id)
        found = self._stamp(Ref(each.kind, each.id))
        if each.stamp is None or each.stamp == found:
            return None
        return Conflict(f"The {each.kind} {each.id} has stamp {found}, not {each.stamp}.", kind=each.kind, id=each.id)

    def _put(self, each: Put) -> int:
        ref = Ref(each.kind, each.id)
        before = self.records.get(ref)
        attempts = each.attempts
        if attempts is None:
            attempts = 0 if before is None else before.record.attempts
        stamp = 1 if before is None else before.record.stamp + 1
        record = Record(each.kind, each.id, each.body, b"", stamp, each.due_at, attempts)
        self.records[ref] = Row(record, each.index, each.lane, each.job_id)
        return stamp

    def put(self, writes: Sequence[Put | Drop], *, now: float, quiet: bool = False) -> list[int]:
        before, stamps = dict(self.records), []
        for each in writes:
            if (refusal := self._refusal(each)) is not None:
                self.records = before
                raise refusal
            if isinstance(each, Put):
                stamps.append(self._put(each))
            else:
                self.records.pop(Ref(each.kind, each.id), None)
                stamps.append(0)
        self.mark += not quiet
        return stamps

    def fetch(self, kind: str, ids: Sequence[str], *, now: float) -> list[Record | None]:
        rows = [self.records.get(Ref(kind, id)) for id in ids]
        return [None if row is None else row.record for row in rows]

    def scan(
        self,
        kind: str,
        index: str,
        *,
        now: float,
        after: str = "",
        before: str | None = None,
        limit: int = 50,
        newest: bool = False,
    ) -> list[Record]:
        low, high = after.encode(), None if before is None else before.encode()
        found: list[tuple[bytes, str]] = []
        for ref, row in self.records.items():
            if ref.kind != kind:
                continue
            for entry in row.entries:
                place = entry.place.encode()
                if entry.name == index and place > low and (high is None or place < high):
                    insort(found, (place, ref.id))
        return [self.records[Ref(kind, id)].record for _, id in (found[::-1] if newest else found)[:limit]]

    def take(self, kind: str, lane: str, limit: int, seconds: float, *, now: float) -> list[Record]:
        due = [
            (row.record.due_at, ref)
            for ref, row in self.records.items()
            if ref.kind == kind and row.lane == lane and row.record.due_at is not None and row.record.due_at <= now
        ]
        taken = []
        for _, ref in sorted(due)[:limit]:
            row = self.records[ref]
            record = replace(
                row.record, stamp=row.record.stamp + 1, attempts=row.record.attempts + 1, due_at=now + seconds
            )
            self.records[ref] = row._replace(record=record)
            taken.append(record)
        return taken

    def append(self, log: str, entries: Sequence[LogEntry], *, now: float, keep: int, since: float = 0.0) -> None:
        kept = self.logs.setdefault(log, [])
        for entry in entries:
            self.last_entry[log] += 1
            kept.append(entry._replace(n=self.last_entry[log]))
        window = len(entries) + 100
        for topic in {entry.topic for entry in entries}:
            mine = [entry for entry in kept if entry.topic == topic]
            gone = set(mine[: min(window, max(0, len(mine) - keep))])
            kept[:] = [entry for entry in kept if entry not in gone]
        kept[:] = [entry for place, entry in enumerate(kept) if entry.at >= since or place >= window]
        self.mark += 1

    def tail(
        self, log: str, *, now: float, topic: str = "", before: int | None = None, limit: int = 50
    ) -> list[LogEntry]:
        found = [
            entry
            for entry in reversed(self.logs.get(log, []))
            if (before is None or entry.n < before) and (not topic or entry.topic == topic)
        ]
        return found[:limit]

    # Counters and statistics.

    def spend(self, charges: Sequence[Charge], *, now: float) -> Spent:
        return counters.spend(self.spent, charges, now)

    def refund(self, charges: Sequence[Charge], at: float, *, now: float) -> None:
        counters.refund(self.spent, charges, at)

    def tally(self, counts: Mapping[Tally, int], *, now: float) -> None:
        self.tallies.update(counts)

    def list_tallies(
        self, step: int, since: float, *, now: float, queue: str | None = None, pipeline: str | None = None
    ) -> list[tuple[Tally, int]]:
        first = counters.first(step, since, now)
        return sorted(
            (each, count)
            for each, count in self.tallies.items()
            if each.step == step
            and each.at >= first
            and queue in (None, each.queue)
            and pipeline in (None, each.pipeline)
        )

    def heads(self, kinds: Mapping[str, Collection[str]], *, now: float) -> list[Head]:
        found: list[Head] = []
        for queue, names in kinds.items():
            for kind in names:
                first: dict[int, Queued] = {}
                for each in self._ready(queue, [kind], now):
                    first.setdefault(each.rank, each)
                ranked = [first[rank] for rank in sorted(first)[: counters.MOST_RANKS]]
                found += [Head(queue, each.job_id, each.task) for each in ranked]
        return found

    def count_by_status(self, most: int, *, now: float, tenant: str | None = None) -> Counts:
        if tenant is not None:
            used = self.usage.get(tenant, counters.Usage())
            return Counts(active=used.jobs, bytes=used.bytes)
        return counters.capped(Counter(job.status.value for job in self.jobs.values()), most, is_all=True)

    # Failures.

    def _ledger(self, found: Iterable[tuple[FailedRun, bool]]) -> Ledger:
        """These failures, with their groups and users."""
        ledger = Ledger()
        for failure, is_counted in found:
            key = (failure.tenant, failure.fingerprint)
            ledger.failures[failure.id] = (failure, is_counted)
            ledger.groups[key] = self.groups.get(key)
            ledger.users[*key, failure.user] = self.failed_users[*key, failure.user]
        return ledger

    def _keep(self, ledger: Ledger) -> None:
        for id in (*ledger.added, *ledger.moved):
            self.failed[id] = ledger.failures[id]
        for id in ledger.gone:
            del self.failed[id]
        self.failed_users.update({user: count - self.failed_users[user] for user, count in ledger.users.items()})
        for key, group in ledger.groups.items():
            if group is None:
                self.groups.pop(key, None)
            else:
                self.groups[key] = group
        for alert in ledger.alerts:
            if self._refusal(alert) is None:
                self._put(alert)
        self.mark += 1

    def failures(
        self, wanted: FailureFilter | Sequence[str], *, now: float, before: str | None = None, limit: int = 50
    ) -> list[FailedRun]:
        if not isinstance(wanted, FailureFilter):
            return [self.failed[id][0] for id in wanted if id in self.failed]
        found = [
            each for each, _ in self.failed.values() if _matches(wanted, each) and (before is None or each.id < before)
        ]
        return sorted(found, key=lambda each: each.id, reverse=True)[:limit]

    def failure_groups(
        self,
        tenant: str,
        *,
        now: float,
        fingerprints: Sequence[str] | None = None,
        before: str | None = None,
        limit: int = 50,
        recent: Recent | None = None,
    ) -> list[FailureGroup]:
        if fingerprints is not None:
            found = [self.groups[tenant, name] for name in fingerprints if (tenant, name) in self.groups]
        else:
            mine = [each for (owner, _), each in self.groups.items() if owner == tenant]
            mine = [each for each in mine if before is None or each.seen < before]
            found = sorted(mine, key=lambda each: each.seen, reverse=True)[:limit]
        return found if recent is None else [replace(each, times=self._times(each, recent)) for each in found]

    def _times(self, group: FailureGroup, recent: Recent) -> tuple[float, ...]:
        ids = [
            id
            for id, (each, _) in self.failed.items()
            if (each.tenant, each.fingerprint) == (group.tenant, group.fingerprint)
            and id >= rules.first_id(recent.since)
        ]
        return tuple(rules.time_of(id) for id in sorted(ids, reverse=True)[: recent.limit])

    def dismiss_failures(
        self, ids: Sequence[str], settled: Settled, *, now: float, group: tuple[str, str] | None = None
    ) -> list[str]:
        ledger = self._ledger(self.failed[id] for id in dict.fromkeys(ids) if id in self.failed)
        done = ledger.dismiss(settled)
        if group is not None:
            held = ledger.groups.get(group) or self.groups.get(group)
            if held is not None:
                ledger.groups[group] = replace(held, dismissal=settled)
        self._keep(ledger)
        return [id for id in dict.fromkeys(ids) if id in done]

    def forget_failures(self, until: float, limit: int, *, now: float) -> int:
        old = sorted(id for id in self.failed if id < rules.first_id(until))[:limit]
        ledger = self._ledger(self.failed[id] for id in old)
        count = ledger.forget()
        self._keep(ledger)
        return count

    def check(self, *, now: float) -> list[Finding]:
        return [Finding("model", True, "in memory", "nothing of it survives the process")]


def _pay(turns: dict[tuple[str, str], float], time: dict[str, float], queue: str, share: Share) -> None:
    used = turns[queue, share.name]
    time[queue] = max(time.get(queue, 0.0), used)
    turns[queue, share.name] = used + share.cost


def _check_writable(change: Change) -> None:
    """The other stores keep JSON, and refuse what has none."""
    if not change.after.id:
        raise StoreError("A job needs an id.")
    try:
        json.encode(change.effects)
    except Exception as error:  # broad: whatever the encoder does not like
        raise StoreError(f"{type(error).__name__}: {error}") from error


def _fits(filter: Filter, job: Job) -> bool:
    return (
        filter.tenant in (None, job.tenant)
        and filter.user in (None, job.user)
        and filter.status in (None, job.status)
        and filter.pipeline in (None, job.plan.pipeline)
        and (filter.created_from is None or job.created_at >= filter.created_from)
        and (filter.created_until is None or job.created_at < filter.created_until)
    )


def _matches(wanted: FailureFilter, failure: FailedRun) -> bool:
    names = ("fingerprint", "job_id", "user", "pipeline", "code", "status", "schedule")
    return (
        wanted.tenant == failure.tenant
        and all(getattr(wanted, name) in (None, getattr(failure, name)) for name in names)
        and (wanted.since is None or failure.id >= rules.first_id(wanted.since))
        and (wanted.until is None or failure.id < rules.first_id(wanted.until))
    )


METHODS = {
    name: name
    for name in (
        "commit", "get", "find", "count", "snapshot", "events", "has_change", "find_by_key", "holder", "line",
        "claim",
        "renew", "overdue", "held_by", "expired", "ahead", "ready", "report", "log", "sample", "progress", "lines",
        "samples", "changed_jobs", "purgeable", "jobs_with_litter", "erase", "existing_ids", "trim", "put", "fetch",
        "scan", "take", "append", "tail", "spend", "refund", "tally", "list_tallies", "heads", "count_by_status",
        "failures", "failure_groups", "dismiss_failures", "forget_failures", "check", "set_limit", "limit_states",
    )
} | {"specs": "get_specs", "results": "get_results"}  # fmt: skip
"""The methods of the contract that are one operation of the server, with the name that it has there.

The others are `now` and `close`, which do not ask the server, and `wait_for_change`, which waits.
"""


class ModelStore:
    """A handle on the state, for callers that use nothing but the contract: see `open_model`."""

    def __init__(self, state: State, clock: Callable[[], float]) -> None:
        self.now = clock
        self._state = state
        self._is_closed = False

    def __getattr__(self, name: str) -> Any:
        if name not in METHODS:
            raise AttributeError(name)
        operation = getattr(self._state, METHODS[name])

        async def method(*args: Any, **kwargs: Any) -> Any:
            if self._is_closed:
                raise StoreUnavailable("The store is closed.")
            with LOCK:  # a test may use handles from several threads
                return operation(*args, now=self.now(), **kwargs)

        return method

    async def wait_for_change(self, mark: int | None, timeout: float, *, is_working: bool = False) -> int:
        if self._is_closed:
            raise StoreUnavailable("The store is closed.")
        deadline = time.monotonic() + timeout
        while self._state.mark == mark and time.monotonic() < deadline:
            await asyncio.sleep(LOOK)
        return self._state.mark

    async def close(self) -> None:
        self._is_closed = True


LOCK = threading.Lock()
LOOK = 0.002
"""Seconds between looks of a watcher."""


def open_model(state: State, clock: Callable[[], float] = time.time) -> Store:
    return cast(Store, ModelStore(state, clock))
