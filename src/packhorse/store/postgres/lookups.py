"""What the guards of a group are about: read under locks, and kept up while one change after the other is judged."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from packhorse.core.changes import (
    Change,
    EndLease,
    Foremost,
    Holds,
    KeyUnused,
    Overdue,
    RecordIs,
    RememberKey,
    SlotFree,
    TakeSlot,
    Waiting,
)
from packhorse.core.models import Job, TaskId
from packhorse.core.records import Ref
from packhorse.store import sql_files
from packhorse.store.postgres import records, rows
from packhorse.store.postgres.connection import Clock, Session

SQL = sql_files.load(__package__, "lookups")


Key = tuple[str, str, int]
"""Job, stage, element."""
Entry = tuple[str, str, int, str, str, int]
"""Queue, kind, rank, job, stage, element: the key of a task in its queue."""


def entry(job: Job, at: TaskId) -> Entry:
    """Rank is the negated priority, so that urgent comes first in key order."""
    stage = job.plan.stage(at.stage)
    return (stage.queue, stage.kind, -job.priority, job.id, at.stage, at.element)


class Facts:
    def __init__(self) -> None:
        self.versions: dict[str, int] = {}
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
        self.records: dict[Ref, int] = {}
        """The stamp; 0 for one that is not there."""
        self.trusted: dict[Key, str] = {}
        """Tokens that nobody has looked at: the statement that drops the lease has to find them there."""

    async def look(self, session: Session, changes: Sequence[Change], clock: Clock, *, is_trusting: bool) -> None:
        """Read what these changes need.

        ``is_trusting`` takes it that jobs to be added are not there, that the others are at the version they were
        decided on, and that leases to be ended are held: what is written finds out, and two questions less are asked.
        """
        if is_trusting:
            self._trust(changes)
        await self._look_at_jobs(session, changes, is_trusting=is_trusting)
        await self._look_at_leases(session, changes, clock)
        await self._look_at_queues(session, changes)
        await self._look_at_heads(session, changes, clock)
        await self._look_at_keys(session, changes)
        await self._look_at_slots(session, changes)
        await self._look_at_records(session, changes)

    def cover(self, change: Change) -> bool:
        """Whether nothing is left to be looked at for this change."""
        return (
            change.after.id in self.versions
            and all(isinstance(g, Waiting) and entry(change.after, g.task) in self.waiting for g in change.guards)
            and not any(isinstance(effect, TakeSlot | RememberKey) for effect in change.effects)
        )

    def _trust(self, changes: Sequence[Change]) -> None:
        added = {change.after.id for change in changes if change.before is None}
        for change in changes:
            if change.before is not None and change.after.id not in added:
                self.versions.setdefault(change.after.id, change.before.version)
            ended = {effect.task for effect in change.effects if isinstance(effect, EndLease)}
            for guard in change.guards:
                if isinstance(guard, Holds) and guard.task in ended:
                    self.trusted.setdefault((change.after.id, *guard.task), guard.token)
        self.leases |= {key: (token, False) for key, token in self.trusted.items()}

    def _is_trusted(self, change: Change, guard: Holds | Overdue) -> bool:
        return isinstance(guard, Holds) and self.trusted.get((change.after.id, *guard.task)) == guard.token

    async def _look_at_jobs(self, session: Session, changes: Iterable[Change], *, is_trusting: bool) -> None:
        asked = set() if is_trusting else {change.after.id for change in changes} - self.versions.keys()
        if asked:
            self.versions |= {
                str(row["id"]): row["version"] for row in await session.fetch(SQL.lock_jobs, rows.ids(sorted(asked)))
            }

    async def _look_at_leases(self, session: Session, changes: Iterable[Change], clock: Clock) -> None:
        asked = {
            (c.after.id, *guard.task)
            for c in changes
            for guard in c.guards
            if isinstance(guard, Holds | Overdue) and not self._is_trusted(c, guard)
        }
        if asked:
            for id, *task, token, is_over in await session.fetch(
                SQL.lock_leases, *zip(*asked, strict=True), clock.parameter()
            ):
                self.leases[(str(id), *task)] = (token, is_over)

    async def _look_at_queues(self, session: Session, changes: Iterable[Change]) -> None:
        guarded = {entry(c.after, guard.task) for c in changes for guard in c.guards if isinstance(guard, Waiting)}
        asked = guarded - self.waiting
        if asked:
            for queue, kind, rank, id, *task in await session.fetch(SQL.lock_entries, *zip(*asked, strict=True)):
                self.waiting.add((queue, kind, rank, str(id), *task))

    async def _look_at_heads(self, session: Session, changes: Iterable[Change], clock: Clock) -> None:
        asked = {
            (entry(change.after, guard.task)[0], guard.kinds)
            for change in changes
            for guard in change.guards
            if isinstance(guard, Foremost)
        }
        for queue, kinds in asked:
            for head in await session.look(SQL.heads, queue, kinds, clock.parameter()):
                self.heads[queue, kinds] = (head["rank"], str(head["job_id"]))

    async def _look_at_keys(self, session: Session, changes: Iterable[Change]) -> None:
        asked: dict[str, tuple[str, str]] = {}
        for change in changes:
            for effect in change.effects:
                if isinstance(effect, RememberKey):
                    asked.setdefault(effect.key, (change.after.id, effect.fingerprint))
            for guard in change.guards:
                if isinstance(guard, KeyUnused):
                    asked.setdefault(guard.key, (change.after.id, ""))
        if asked:
            values = (list(asked), [id for id, _ in asked.values()], [said for _, said in asked.values()])
            for row in await session.fetch(SQL.take_keys, *values):
                self.stored_keys[row["key"]] = (str(row["job_id"]), row["fingerprint"])
                if not row["was_free"]:
                    self.keys[row["key"]] = self.stored_keys[row["key"]]

    async def _look_at_slots(self, session: Session, changes: Iterable[Change]) -> None:
        asked: dict[str, str] = {}
        for change in changes:
            for part in (*change.effects, *change.guards):
                if isinstance(part, TakeSlot | SlotFree):
                    asked.setdefault(part.slot, change.after.id)
        if asked:
            for row in await session.fetch(SQL.take_slots, list(asked), list(asked.values())):
                self.stored_slots[row["slot"]] = str(row["job_id"])
                if not row["was_free"]:
                    self.slots[row["slot"]] = self.stored_slots[row["slot"]]

    async def _look_at_records(self, session: Session, changes: Iterable[Change]) -> None:
        asked = {guard for change in changes for guard in change.guards if isinstance(guard, RecordIs)}
        if asked:
            missing = {guard.ref for guard in asked if guard.stamp == 0}
            self.records |= await records.lock(session, {guard.ref for guard in asked}, missing)
