"""What a group of changes is judged by, read under locks, and what it leaves, row by row, until it is sent."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from packhorse.core import changes
from packhorse.core import json as wire
from packhorse.core.changes import Change
from packhorse.core.limits import LimitUse, Share
from packhorse.core.models import Job, TaskId
from packhorse.core.plan import Status
from packhorse.core.records import Ref
from packhorse.errors import CorruptRecord
from packhorse.store import sql_files
from packhorse.store.counters import Usage
from packhorse.store.postgres import failures, limits, reads, records
from packhorse.store.postgres.connection import Clock, Session
from packhorse.store.postgres.records import RecordEffect
from packhorse.store.postgres.session import Parts, columns, ids, write_parts
from packhorse.store.postgres.watch import Notice
from packhorse.store.rows import Entry, Plans, due_entry, entry, kept_due, plan_row, split_due

SQL = sql_files.load(__package__, "lookups")

Key = tuple[str, str, int]
"""Job, stage, element."""


Version = tuple[int, int]
"""Version and lineage."""


def version_of(job: Job) -> Version:
    return job.version, job.lineage


class Facts:
    def __init__(self) -> None:
        self.versions: dict[str, Version] = {}
        self.leases: dict[Key, tuple[str, bool]] = {}
        """Token, and whether its time is over."""
        self.waiting: set[Entry] = set()
        self.heads: dict[tuple[str, tuple[str, ...]], tuple[int, str]] = {}
        """By queue and kinds, rank and job of what is most urgent there."""
        self.slots: dict[str, str] = {}
        self.keys: dict[str, tuple[str, str]] = {}
        self.stored_slots: dict[str, str] = {}
        self.stored_keys: dict[str, tuple[str, str]] = {}
        """What the rows that we hold say; by the end they have to say what the facts say."""
        self.lines: dict[str, list[tuple[str, bytes]]] = {}
        """By slot whose row we hold, the first jobs that wait for it, with what they make due: as many as the group
        can take away."""
        self.marked_slots: set[str] = set()
        """Slots whose rows say that they may have a line."""
        self.records: dict[Ref, int] = {}
        """The stamp; 0 for one that is not there."""
        self.usage: dict[str, Usage] = {}
        """Of tenants whose rows we hold."""
        self.used: dict[str, tuple[int, int | None]] = {}
        """By key of a limit how many are counted, and what an operator has set."""
        self.is_counted = False
        """Whether the claim counted limits and turns when it chose the tasks."""
        self.trusted: dict[Key, str] = {}
        """Tokens that nobody has looked at: the statement that drops the lease has to find them there."""

    async def look(self, session: Session, group: Sequence[Change], clock: Clock, *, is_trusting: bool) -> None:
        """Read what these changes need.

        ``is_trusting`` takes it that jobs to be added are not there, that the others are at the version they were
        decided on, and that leases to be ended are held: what is written finds out, and two questions less are asked.
        """
        lined = _lined_slots(group, is_trusting=is_trusting)
        if is_trusting:
            self._trust(group)
        await self._look_at_limits(session, group, clock)
        # A handover locks its job first, as a group that looks before writing does.
        await self._look_at_jobs(session, group, is_trusting=is_trusting and not lined)
        await self._look_at_leases(session, group, clock)
        await self._look_at_queues(session, group)
        await self._look_at_heads(session, group, clock)
        await self._look_at_keys(session, group)
        await self._look_at_slots(session, group, lined)
        await self._look_at_records(session, group)
        if not is_trusting:
            await self._look_at_usage(session, group)

    def is_full(self, use: LimitUse) -> bool:
        used, most = self.used[use.key]
        return used >= (use.most if most is None else most)

    def count(self, uses: Iterable[LimitUse]) -> None:
        for use in uses:
            used, most = self.used[use.key]
            self.used[use.key] = used + 1, most

    def cover(self, change: Change) -> bool:
        """Whether nothing is left to be looked at for this change."""
        return (
            change.after.id in self.versions
            and all(
                (isinstance(g, changes.Waiting) and entry(change.after, g.task) in self.waiting)
                or (isinstance(g, changes.WithinLimits) and self.is_counted)
                for g in change.guards
            )
            and not any(isinstance(effect, changes.TakeSlot | changes.RememberKey) for effect in change.effects)
        )

    def _trust(self, group: Sequence[Change]) -> None:
        added = {change.after.id for change in group if change.before is None}
        for change in group:
            if change.before is not None and change.after.id not in added:
                self.versions.setdefault(change.after.id, version_of(change.before))
            ended = {effect.task for effect in change.effects if isinstance(effect, changes.EndLease)}
            for guard in change.guards:
                if isinstance(guard, changes.Holds) and guard.task in ended:
                    self.trusted.setdefault((change.after.id, *guard.task), guard.token)
        self.leases |= {key: (token, False) for key, token in self.trusted.items()}

    def _is_trusted(self, change: Change, guard: changes.Holds | changes.Overdue) -> bool:
        return isinstance(guard, changes.Holds) and self.trusted.get((change.after.id, *guard.task)) == guard.token

    async def _look_at_jobs(self, session: Session, group: Iterable[Change], *, is_trusting: bool) -> None:
        asked = set() if is_trusting else {change.after.id for change in group} - self.versions.keys()
        if asked:
            self.versions |= {
                str(id): (version, lineage)
                for id, version, lineage in await session.fetch(SQL.lock_jobs, ids(sorted(asked)))
            }

    async def _look_at_leases(self, session: Session, group: Iterable[Change], clock: Clock) -> None:
        asked = {
            (c.after.id, *guard.task)
            for c in group
            for guard in c.guards
            if isinstance(guard, changes.Holds | changes.Overdue) and not self._is_trusted(c, guard)
        }
        if asked:
            for id, *task, token, is_over in await session.fetch(
                SQL.lock_leases, *zip(*asked, strict=True), clock.parameter()
            ):
                self.leases[(str(id), *task)] = (token, is_over)

    async def _look_at_queues(self, session: Session, group: Iterable[Change]) -> None:
        guarded = {
            entry(c.after, guard.task): c.after.plan.stage(guard.task.stage).is_regulated
            for c in group
            for guard in c.guards
            if isinstance(guard, changes.Waiting)
        }
        missing = guarded.keys() - self.waiting
        turns = {each for each in missing if guarded[each]}
        if turns:
            await self._look_at_turns(session, turns)
        asked = missing - turns
        if asked:
            for queue, kind, rank, id, *task in await session.fetch(SQL.lock_entries, *zip(*asked, strict=True)):
                self.waiting.add((queue, kind, rank, str(id), *task))

    async def _look_at_limits(self, session: Session, group: Iterable[Change], clock: Clock) -> None:
        """Before anything else is locked: claims count under the same lock."""
        asked = [guard for c in group for guard in c.guards if isinstance(guard, changes.WithinLimits)]
        if asked and not self.is_counted:
            await session.fetch(limits.SQL.lock)
            keys = sorted({use.key for guard in asked for use in guard.limits})
            for key, used, most in await session.fetch(limits.SQL.used, keys, clock.parameter()):
                self.used[key] = used, most

    async def _look_at_turns(self, session: Session, asked: Iterable[Entry]) -> None:
        found = {each[3:]: each for each in asked}
        for id, *task in await session.fetch(limits.SQL.lock_waiting, *columns(found)):
            self.waiting.add(found[str(id), task[0], task[1]])

    async def _look_at_heads(self, session: Session, group: Iterable[Change], clock: Clock) -> None:
        asked = {
            (entry(change.after, guard.task)[0], guard.kinds)
            for change in group
            for guard in change.guards
            if isinstance(guard, changes.Foremost)
        }
        for queue, kinds in asked:
            for head in await session.look(SQL.heads, queue, kinds, clock.parameter()):
                self.heads[queue, kinds] = (head["rank"], str(head["job_id"]))

    async def _look_at_keys(self, session: Session, group: Iterable[Change]) -> None:
        asked: dict[str, tuple[str, str]] = {}
        for change in group:
            for effect in change.effects:
                if isinstance(effect, changes.RememberKey):
                    asked.setdefault(effect.key, (change.after.id, effect.fingerprint))
            for guard in change.guards:
                if isinstance(guard, changes.KeyUnused):
                    asked.setdefault(guard.key, (change.after.id, ""))
        if asked:
            values = (list(asked), [id for id, _ in asked.values()], [said for _, said in asked.values()])
            for row in await session.fetch(SQL.take_keys, *values):
                self.stored_keys[row["key"]] = (str(row["job_id"]), row["fingerprint"])
                if not row["was_free"]:
                    self.keys[row["key"]] = self.stored_keys[row["key"]]

    async def _look_at_slots(self, session: Session, group: Sequence[Change], lined: Mapping[str, str]) -> None:
        asked = dict(lined)
        for change in group:
            for part in (*change.effects, *change.guards):
                if isinstance(part, changes.TakeSlot | changes.SlotFree):
                    asked.setdefault(part.slot, change.after.id)
        if asked:
            for row in await session.fetch(SQL.take_slots, list(asked), list(asked.values())):
                self.stored_slots[row["slot"]] = str(row["job_id"])
                if not row["was_free"]:
                    self.slots[row["slot"]] = self.stored_slots[row["slot"]]
                if row["has_line"]:
                    self.marked_slots.add(row["slot"])
                    self.lines[row["slot"]] = []
        if wanted := [slot for slot in self.lines if slot in lined]:
            for slot, id, due in await session.fetch(SQL.lines, wanted, len(group)):  # each takes at most one away
                self.lines[slot].append((str(id), due))

    async def _look_at_records(self, session: Session, group: Iterable[Change]) -> None:
        asked = {guard for change in group for guard in change.guards if isinstance(guard, changes.RecordIs)}
        if asked:
            missing = {guard.ref for guard in asked if guard.stamp == 0}
            self.records |= await records.lock(session, {guard.ref for guard in asked}, missing)

    async def _look_at_usage(self, session: Session, group: Iterable[Change]) -> None:
        """Last, behind the jobs: a transaction that holds the row of a tenant waits for no job."""
        asked = {e.tenant for change in group for e in change.effects if isinstance(e, changes.CountUsage)}
        if asked:
            for tenant, jobs, size in await session.fetch(SQL.lock_usage, sorted(asked)):
                self.usage[tenant] = Usage(jobs, size)


def _lined_slots(group: Sequence[Change], *, is_trusting: bool) -> dict[str, str]:
    """Slots to be released that others may wait for, with a job that releases each.

    ``is_trusting``: of pipelines whose jobs are refused, it takes it that there are none, unless the group also takes
    the slot.
    """
    taken = {
        part.slot
        for change in group
        for part in (*change.effects, *change.guards)
        if isinstance(part, changes.TakeSlot | changes.SlotFree)
    }
    return {
        effect.slot: change.after.id
        for change in group
        for effect in change.effects
        if isinstance(effect, changes.ReleaseSlot)
        and (not is_trusting or change.after.plan.on_conflict != "refuse" or effect.slot in taken)
    }


class Batch:
    """Rows by their key, so that several changes of one job leave one row, and no row is written twice."""

    def __init__(self, plans: Plans) -> None:
        self._plans = plans
        self.plans: dict[str, bytes] = {}
        self.added: dict[str, Job] = {}
        self.moved: dict[str, tuple[Version, Job]] = {}
        """With the version that the row has now."""
        self.completed: set[str] = set()
        self.specs: dict[str, tuple[str | None, bytes, bytes]] = {}
        self.events: list[tuple[str, int, int, str, bytes]] = []
        self.results: dict[Key, tuple[bytes, bytes]] = {}
        """The record, and the value in it."""
        self.due: dict[Entry, tuple[float, float, str | None]] = {}
        """When it is due, when it was queued, and its start, if that was prepared."""
        self.leases: dict[Key, tuple[str, str, float]] = {}
        self.turns: dict[Key, tuple[Any, ...]] = {}
        """Due tasks with limits or turns, in the order of the part `turn_entries`."""
        self.counted: list[tuple[Any, ...]] = []
        """Starts to be counted, in the order of the part `counted`."""
        self.waiting_drops: set[Key] = set()
        self.hold_drops: set[Key] = set()
        self.room: dict[str, None] = {}
        """Keys of limits that may have room again."""
        self.due_drops: set[Entry] = set()
        self.delayed_drops: set[tuple[Any, ...]] = set()
        self.lease_drops: dict[Key, str | None] = {}
        """With the token that must be on it; None where it was looked at."""
        self.free_slots: set[tuple[str, str]] = set()
        """To be released by who has not looked whether anybody waits for them."""
        self.line_puts: dict[tuple[str, str], bytes] = {}
        self.line_drops: set[tuple[str, str]] = set()
        self.handed: set[str] = set()
        """Jobs that were handed a slot."""
        self.stage_drops: set[tuple[str, str]] = set()
        self.failures: list[tuple[str, changes.RecordFailure | changes.SettleFailures]] = []
        self.records: list[RecordEffect] = []
        self.usage: dict[str, Usage] = {}
        """What is added, by tenant."""
        self.quotas: dict[str, tuple[int, int]] = {}
        """By tenant, what must hold afterwards where nobody has looked."""

    def job(self, change: Change) -> None:
        job = change.after
        if change.before is None or job.id in self.added:
            self.added[job.id] = job
        else:
            was, _ = self.moved.get(job.id, (version_of(change.before), job))
            self.moved[job.id] = (was, job)
        if change.before is None and job.plan.fingerprint not in self._plans.stored:
            self.plans.update([plan_row(job.plan)])
            self._plans.known.setdefault(job.plan.fingerprint, job.plan)
        if job.status is Status.COMPLETED and (change.before is None or change.before.status is not job.status):
            self.completed.add(job.id)

    def history(self, change: Change, events: bytes) -> None:
        job = change.after
        if change.events:
            self.events.append((job.id, change.events[0].n, change.events[-1].n, change.id, events))
        elif change.id:  # nothing to tell, but whether it was made may be asked: a number that no event has
            self.events.append((job.id, -job.version, 0, change.id, events))

    def take_back(self, change: Change, at: TaskId, *, is_due: bool) -> None:
        key = entry(change.after, at)
        self.due.pop(key, None)
        self.due_drops.add(key)
        task = change.before.task(at) if change.before is not None and not is_due else None
        if task is not None and task.ready_at is not None:
            self.delayed_drops.add((task.ready_at, *key))

    def make_due(self, job_id: str, effect: changes.MakeDue, start: str | None = None) -> Entry:
        key = due_entry(job_id, effect)
        if effect.limits or effect.share is not None:
            share, uses = effect.share or Share("", rank=-effect.priority), wire.encode(effect.limits).decode()
            times = effect.not_before, effect.not_before - effect.delay
            self.turns[key[3:]] = (*key, *times, share.name, share.cost, share.rank, uses)
            return key
        self.due[key] = effect.not_before, effect.not_before - effect.delay, start
        return key

    def join_line(self, change: Change, slot: str, facts: Facts) -> bool:
        """Whether another job holds the slot. Then the change takes no slot, and nothing of it is due."""
        job_id = change.after.id
        if facts.slots.get(slot, job_id) == job_id:
            return False
        self.line_puts[slot, job_id] = body = wire.encode(split_due(change)[0])
        facts.lines.setdefault(slot, []).append((job_id, body))
        return True

    def leave_line(self, slot: str, job_id: str) -> None:
        if self.line_puts.pop((slot, job_id), None) is None:
            self.line_drops.add((slot, job_id))

    def release(self, slot: str, job_id: str, facts: Facts) -> None:
        """Hand the slot over to the first who waits, if this job holds it; else it waits no longer."""
        line = facts.lines.get(slot, [])
        if facts.slots.get(slot) != job_id:
            self.leave_line(slot, job_id)
            facts.lines[slot] = [each for each in line if each[0] != job_id]
        elif not line:
            del facts.slots[slot]
        else:
            following, due = line.pop(0)
            self.leave_line(slot, following)
            facts.slots[slot] = following
            self.handed.add(following)
            for effect in kept_due(due, following):
                self.make_due(following, effect)

    def let_go(self, job_id: str, task: TaskId, uses: Iterable[LimitUse]) -> None:
        """A lease ends that was counted."""
        self.hold_drops.add((job_id, *task))
        self.room |= {use.key: None for use in uses if not use.window}

    def count(self, job: Job, effect: changes.Grant) -> None:
        share, uses = effect.share or Share(""), wire.encode(effect.limits).decode()
        queue = job.plan.stage(effect.task.stage).queue
        self.counted.append((job.id, *effect.task, queue, share.name, share.cost, uses))

    def drop_stages(self, job_id: str, stages: Iterable[str]) -> None:
        self.stage_drops |= {(job_id, stage) for stage in stages}
        self.results = {at: kept for at, kept in self.results.items() if at[:2] not in self.stage_drops}

    async def send(
        self, session: Session, facts: Facts, clock: Clock, notice: Notice, *, is_trusting: bool,
        is_claim: bool = False,
    ) -> None:  # fmt: skip
        """Raises `Outdated` if a job is not at the version, or a lease not under the token, that was trusted in.

        ``is_trusting``: records that somebody else writes at the same time are found out about, not waited for.
        ``is_claim``: the entries to be dropped were only looked at, and must be there with nobody else at them.
        """
        if self.delayed_drops:
            # By a statement of its own: it waits for a claim that is just making the entry due, and what comes after
            # it finds the entry there.
            await write_parts(session, {"delayed_drops": columns(self.delayed_drops)}, clock)
        drops, puts = self._drops(facts), await self._puts(session, facts, clock)
        counts: dict[str, int] = {}
        if self.lease_drops:
            counts["lease_drops"] = sum(token is not None for token in self.lease_drops.values())
        if self.free_slots:
            counts["free_slots"] = len(self.free_slots)
        if is_claim and self.due_drops:
            drops |= {"free_jobs": [list(self.moved)], "free_entries": drops.pop("due_drops"), "free_drops": []}
            counts = {"free_jobs": len(self.moved), "free_entries": len(self.due_drops), **counts}
        is_anew = bool(self.leases.keys() & self.lease_drops.keys() or self.due.keys() & self.due_drops)
        is_anew = is_anew or not self.line_drops.isdisjoint(self.line_puts)
        is_anew = is_anew or not self.waiting_drops.isdisjoint(self.turns)
        if is_anew or (self.results and self.stage_drops):
            await write_parts(session, drops, clock, counts)  # one statement cannot drop a row and write it anew
            drops, counts = {}, {}
        if self.moved:
            counts["moved"] = len(self.moved)
        if self.usage:
            added = sorted(self.usage.items())
            puts["usage_locks"] = [[tenant for tenant, _ in added]]
            puts["usage"] = columns((tenant, *used, *self.quotas.get(tenant, (0, 0))) for tenant, used in added)
            counts["usage"] = len(added)
        if puts and (words := notice.words()) is not None:
            puts["told"] = words
        jobs, late = {*self.added, *self.moved}, self.records
        if late and is_trusting and (simple := records.parts_of(late, jobs)) is not None:
            late = []
            puts |= simple[0]
            counts |= simple[1]
        await write_parts(session, drops | puts, clock, counts, is_last=not self.failures and not late)
        if late:
            await records.apply(session, late, jobs, clock)
        if self.failures:  # behind the jobs: a transaction that holds a group waits for no job
            alerts = await failures.write(session, self.failures)
            if alerts:
                await records.apply(session, alerts, (), clock)

    def _drops(self, facts: Facts) -> Parts:
        """What is to go, and names that were only taken to see whether they could be."""
        slots = {(slot, id) for slot, id in facts.stored_slots.items() if slot not in facts.slots}
        keys = [key for key in facts.stored_keys if key not in facts.keys]
        return _drop_empty(
            due_drops=columns(self.due_drops),
            lease_drops=columns((*at, token) for at, token in self.lease_drops.items()),
            waiting_drops=columns(self.waiting_drops),
            hold_drops=columns(self.hold_drops),
            free_slots=columns(self.free_slots),
            slot_drops=columns(slots),
            line_drops=columns(self.line_drops),
            key_drops=[keys] if keys else [],
            result_drops=columns(self.stage_drops),
            progress_drops=columns(self.stage_drops),
        )

    async def _puts(self, session: Session, facts: Facts, clock: Clock) -> Parts:
        values = await self._values(session)
        moved = sorted(self.moved.items())  # locked in the order of ids, like everywhere
        touched = [*self.added, *self.moved, *(self.handed - self.added.keys() - self.moved.keys())]
        lined = {slot for slot, _ in self.line_puts} - facts.marked_slots
        puts = _drop_empty(
            plans=columns(sorted(self.plans.items())),
            added=columns(
                (id, *reads.fixed_columns(job), *reads.moving_columns(job),
                 _text(self.specs[id][2]) if id in self.specs else None, values.get(id))
                for id, job in self.added.items()
            ),
            moved=columns((id, *was, *reads.moving_columns(job), values.get(id)) for id, (was, job) in moved),
            specs=columns((id, key, body) for id, (key, body, _) in self.specs.items()),
            events=columns(self.events),
            results=columns((*at, body) for at, (body, _) in self.results.items()),
            leases=columns((*at, *lease) for at, lease in self.leases.items()),
            entries=columns((*key, *times) for key, times in self.due.items()),
            turn_entries=columns(self.turns.values()),
            counted=columns(self.counted),
            room_news=[list(self.room)] if self.room else [],
            slots=columns(
                (s, id, s in lined) for s, id in facts.slots.items() if facts.stored_slots.get(s) != id or s in lined
            ),
            line_puts=columns((*at, due) for at, due in self.line_puts.items()),
            keys=columns((key, *kept) for key, kept in facts.keys.items() if facts.stored_keys.get(key) != kept),
            feed=[touched] if touched else [],
        )  # fmt: skip
        for timed in ("leases", "entries", "turn_entries", "counted"):
            if timed in puts:
                puts[timed] = [clock.parameter(), *puts[timed]]
        if "entries" in puts:
            puts |= {"due": [], "delayed": []}
        if "turn_entries" in puts:
            puts |= {"turns": [], "turn_news": [], "turn_delayed": []}
        return puts

    async def _values(self, session: Session) -> dict[str, str | None]:
        """What the jobs that have completed resulted in, as JSON."""
        ended = [job for job in (*self.added.values(), *(job for _, job in self.moved.values()))
                 if job.id in self.completed and job.status is Status.COMPLETED]  # fmt: skip
        kept = {at: value for at, (_, value) in self.results.items()}
        missing = [
            (job.id, sink.name)
            for job in ended
            for sink in job.plan.sinks
            if not all((job.id, sink.name, n) in kept for n in range(len(job.stage(sink.name).tasks or ())))
        ]
        if missing:
            for id, stage, element, body in await session.fetch(reads.SQL.stage_results, *columns(missing)):
                with suppress(CorruptRecord):  # it is null in the copy; a read of the record raises
                    kept.setdefault((str(id), stage, element), wire.result_from(body, str(id)).value)
        return {job.id: _text(_value(job, kept)) for job in ended}


def _value(job: Job, kept: dict[Key, bytes]) -> bytes:
    """The value of the only last stage, else an object by last stage."""
    by_sink = {
        sink.name: [kept.get((job.id, sink.name, n), b"null") for n in range(len(job.stage(sink.name).tasks or ()))]
        for sink in job.plan.sinks
    }
    written = {
        name: b"[%b]" % b",".join(found) if job.plan.stage(name).over is not None else (*found, b"null")[0]
        for name, found in by_sink.items()
    }
    if len(written) == 1:
        return next(iter(written.values()))
    return b"{%b}" % b",".join(b"%b:%b" % (wire.encode(name), value) for name, value in written.items())


def _text(json: bytes) -> str | None:
    """JSON on its way to a column: a copy, which is left out where it cannot be text."""
    try:
        return json.decode()
    except UnicodeDecodeError:
        return None


def _drop_empty(**parts: Sequence[Any]) -> Parts:
    return {name: given for name, given in parts.items() if given}
