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
from packhorse.store.postgres import records, rows
from packhorse.store.postgres.connection import NOW, Clock, Session

Key = tuple[str, str, int]
"""Job, stage, element."""
Entry = tuple[str, str, int, str, str, int]
"""Queue, kind, rank, job, stage, element: the key of a task in its queue."""

# In the order of ids, like everybody: whoever waits for a lock holds none that a holder of it waits for.
# The key is not locked, for it never changes: who appends to the log of a job need not wait for us.
JOBS = "SELECT id, version FROM @jobs WHERE id = ANY($1::uuid[]) ORDER BY id FOR NO KEY UPDATE"

LEASES = f"""
SELECT lease.job_id, lease.stage, lease.element, lease.token, lease.until <= coalesce($4, {NOW}) AS is_over
FROM unnest($1::uuid[], $2::text[], $3::int4[]) AS asked (job_id, stage, element)
JOIN @leases AS lease USING (job_id, stage, element)
ORDER BY lease.job_id, lease.stage, lease.element FOR UPDATE OF lease
"""

WAITING = """
SELECT queue, kind, rank, job_id, stage, element
FROM unnest($1::text[], $2::text[], $3::int4[], $4::uuid[], $5::text[], $6::int4[])
    AS asked (queue, kind, rank, job_id, stage, element)
JOIN @due AS due USING (queue, kind, rank, job_id, stage, element)
ORDER BY job_id, stage, element FOR UPDATE OF due
"""

# The most urgent of each kind that is ready, and of what was delayed until now. Nothing is locked: it is for fairness.
HEADS = f"""
SELECT rank, job_id FROM unnest($2::text[]) AS k (kind)
CROSS JOIN LATERAL (
    SELECT rank, job_id FROM @due WHERE queue = $1 AND kind = k.kind ORDER BY rank, job_id LIMIT 1
) AS head
UNION ALL (
    SELECT rank, job_id FROM (
        SELECT * FROM @delayed WHERE not_before <= (SELECT coalesce($3, {NOW})) ORDER BY not_before LIMIT 1000
    ) AS over
    WHERE queue = $1 AND kind = ANY($2::text[])
)
ORDER BY rank, job_id LIMIT 1
"""

# A name that is free cannot be locked. It is taken, which waits for whoever is just taking it, and given back if the
# change is refused. Of one that is taken the update changes nothing: it is locked, and its holder told.
SLOTS = """
INSERT INTO @slots AS held (slot, job_id) SELECT * FROM unnest($1::text[], $2::uuid[]) AS asked ORDER BY 1
ON CONFLICT (slot) DO UPDATE SET job_id = held.job_id
RETURNING slot, job_id, xmax = 0 AS was_free
"""

KEYS = """
INSERT INTO @idempotency AS used (key, job_id, fingerprint)
SELECT * FROM unnest($1::text[], $2::uuid[], $3::text[]) AS asked ORDER BY 1
ON CONFLICT (key) DO UPDATE SET job_id = used.job_id
RETURNING key, job_id, fingerprint, xmax = 0 AS was_free
"""


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
                str(row["id"]): row["version"] for row in await session.fetch(JOBS, rows.ids(sorted(asked)))
            }

    async def _look_at_leases(self, session: Session, changes: Iterable[Change], clock: Clock) -> None:
        asked = {
            (c.after.id, *guard.task)
            for c in changes
            for guard in c.guards
            if isinstance(guard, Holds | Overdue) and not self._is_trusted(c, guard)
        }
        if asked:
            for id, *task, token, is_over in await session.fetch(LEASES, *zip(*asked, strict=True), clock.parameter()):
                self.leases[(str(id), *task)] = (token, is_over)

    async def _look_at_queues(self, session: Session, changes: Iterable[Change]) -> None:
        guarded = {entry(c.after, guard.task) for c in changes for guard in c.guards if isinstance(guard, Waiting)}
        asked = guarded - self.waiting
        if asked:
            for queue, kind, rank, id, *task in await session.fetch(WAITING, *zip(*asked, strict=True)):
                self.waiting.add((queue, kind, rank, str(id), *task))

    async def _look_at_heads(self, session: Session, changes: Iterable[Change], clock: Clock) -> None:
        asked = {
            (entry(change.after, guard.task)[0], guard.kinds)
            for change in changes
            for guard in change.guards
            if isinstance(guard, Foremost)
        }
        for queue, kinds in asked:
            for head in await session.look(HEADS, queue, kinds, clock.parameter()):
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
            for row in await session.fetch(KEYS, *values):
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
            for row in await session.fetch(SLOTS, list(asked), list(asked.values())):
                self.stored_slots[row["slot"]] = str(row["job_id"])
                if not row["was_free"]:
                    self.slots[row["slot"]] = self.stored_slots[row["slot"]]

    async def _look_at_records(self, session: Session, changes: Iterable[Change]) -> None:
        asked = {guard for change in changes for guard in change.guards if isinstance(guard, RecordIs)}
        if asked:
            missing = {guard.ref for guard in asked if guard.stamp == 0}
            self.records |= await records.lock(session, {guard.ref for guard in asked}, missing)
