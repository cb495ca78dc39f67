"""What a group of changes leaves, row by row, and the one statement that writes it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from functools import cache
from types import MappingProxyType
from typing import Any

import asyncpg

from packhorse.core import json as wire
from packhorse.core.changes import Change, MarkRun, Notify, RecordFailure, SettleFailures
from packhorse.core.models import Job, TaskId
from packhorse.core.plan import Status
from packhorse.errors import CorruptRecord
from packhorse.store.postgres import failures, rows
from packhorse.store.postgres.connection import NOW, Clock, Session
from packhorse.store.postgres.lookups import Entry, Facts, Key, entry
from packhorse.store.postgres.rows import FIXED, MOVING, Plans, arrays, values
from packhorse.store.postgres.watch import Notice
from packhorse.store.webhooks import delivery_id

ENTRY = "queue, kind, rank, job_id, stage, element"
ENTRIES = "%::text[], %::text[], %::int4[], %::uuid[], %::text[], %::int4[]"
TASKS = "%::uuid[], %::text[], %::int4[]"

# In a part, % stands for the next parameter: a list with a value for each row.

INSERT = f"""
INSERT INTO @jobs (id, {", ".join([*FIXED, *MOVING])}, parameters, result)
SELECT n.id, {", ".join(values(FIXED | MOVING, "n"))}, @as_json(n.parameters), @as_json(n.result)
FROM unnest(%::uuid[], {arrays(FIXED)}, {arrays(MOVING)}, %::text[], %::text[])
    AS n (id, {", ".join([*FIXED, *MOVING])}, parameters, result)
"""

# The version in the WHERE is the one door of the house: who decided on an older job writes nothing.
UPDATE = f"""
UPDATE @jobs AS job SET ({", ".join(MOVING)}, result) =
    ROW({", ".join(values(MOVING, "n"))},
        CASE WHEN n.status = 'completed' THEN coalesce(@as_json(n.result), job.result) END)
FROM unnest(%::uuid[], %::int4[], {arrays(MOVING)}, %::text[]) AS n (id, was, {", ".join(MOVING)}, result)
WHERE job.id = n.id AND job.version = n.was
RETURNING 1
"""

PARTS = {
    # What a claim has only looked at: whether it is there, and nobody else is at it. A claim never waits.
    "free_jobs": "SELECT FROM @jobs WHERE id = ANY(%::uuid[]) FOR NO KEY UPDATE SKIP LOCKED",
    "free_entries": f"""
        SELECT d.* FROM unnest({ENTRIES}) AS n ({ENTRY}) JOIN @due AS d USING ({ENTRY}) FOR UPDATE OF d SKIP LOCKED""",
    "free_drops": """
        DELETE FROM @due AS d USING free_entries AS n
        WHERE (d.queue, d.kind, d.rank, d.job_id, d.stage, d.element)
            = (n.queue, n.kind, n.rank, n.job_id, n.stage, n.element)""",
    "plans": "INSERT INTO @plans SELECT * FROM unnest(%::text[], %::bytea[]) AS n ON CONFLICT DO NOTHING",
    "added": INSERT,
    "moved": UPDATE,
    "specs": "INSERT INTO @specs SELECT * FROM unnest(%::uuid[], %::text[], %::bytea[]) AS n",
    "events": "INSERT INTO @events SELECT * FROM unnest(%::uuid[], %::int4[], %::int4[], %::text[], %::bytea[]) AS n",
    "results": f"""
        INSERT INTO @results SELECT * FROM unnest({TASKS}, %::bytea[]) AS n
        ON CONFLICT (job_id, stage, element) DO UPDATE SET body = excluded.body""",
    "leases": f"""
        INSERT INTO @leases SELECT n.job_id, n.stage, n.element, n.token, n.worker, coalesce(%, {NOW}) + n.seconds
        FROM unnest({TASKS}, %::text[], %::text[], %::float8[])
            AS n (job_id, stage, element, token, worker, seconds)""",
    # By the server's clock, read once: an entry is either in the one table or in the other.
    "entries": f"""
        SELECT n.*, n.not_before <= coalesce(%, {NOW}) AS is_due
        FROM unnest({ENTRIES}, %::float8[]) AS n ({ENTRY}, not_before)""",
    "due": f"INSERT INTO @due SELECT {ENTRY} FROM entries WHERE is_due ON CONFLICT DO NOTHING",
    "delayed": f"""
        INSERT INTO @delayed (not_before, {ENTRY}) SELECT not_before, {ENTRY} FROM entries WHERE NOT is_due
        ON CONFLICT DO NOTHING""",
    "slots": """
        INSERT INTO @slots SELECT * FROM unnest(%::text[], %::uuid[]) AS n
        ON CONFLICT (slot) DO UPDATE SET job_id = excluded.job_id""",
    "keys": """
        INSERT INTO @idempotency SELECT * FROM unnest(%::text[], %::uuid[], %::text[]) AS n
        ON CONFLICT (key) DO UPDATE SET job_id = excluded.job_id, fingerprint = excluded.fingerprint""",
    # An endpoint that is locked does not end meanwhile: who ends it sees what is put in here, and drops it.
    "deliveries": """
        INSERT INTO @deliveries SELECT n.id, n.endpoint, n.job_id, n.run, n.at, 0, n.at, '', ''
        FROM unnest(%::text[], %::text[], %::uuid[], %::int4[], %::float8[]) AS n (id, endpoint, job_id, run, at)
        JOIN (SELECT id FROM @endpoints WHERE id = ANY(%::text[]) AND is_open ORDER BY id FOR SHARE) AS told
            ON told.id = n.endpoint
        ON CONFLICT DO NOTHING""",
    "runs": """
        UPDATE @runs AS r SET status = n.status, message = n.message, job_id = n.job_id, trace_id = n.trace_id,
            started_at = n.started_at, ended_at = n.ended_at, due_at = NULL, stamp = r.stamp + 1
        FROM unnest(%::text[], %::text[], %::float8[], %::text[], %::text[], %::uuid[], %::text[], %::float8[],
            %::float8[])
            AS n (tenant, schedule, tick, status, message, job_id, trace_id, started_at, ended_at)
        WHERE (r.tenant, r.schedule, r.tick) = (n.tenant, n.schedule, n.tick)""",
    "feed": "INSERT INTO @feed VALUES (pg_current_xact_id(), %::uuid[])",
    "due_drops": f"""
        DELETE FROM @due AS d USING unnest({ENTRIES}) AS n ({ENTRY})
        WHERE (d.queue, d.kind, d.rank, d.job_id, d.stage, d.element)
            = (n.queue, n.kind, n.rank, n.job_id, n.stage, n.element)""",
    "delayed_drops": f"""
        DELETE FROM @delayed AS d USING unnest(%::float8[], {ENTRIES}) AS n (not_before, {ENTRY})
        WHERE (d.not_before, d.queue, d.kind, d.rank, d.job_id, d.stage, d.element)
            = (n.not_before, n.queue, n.kind, n.rank, n.job_id, n.stage, n.element)""",
    # With the token that the change was told to hold; null where the lease was looked at before.
    "lease_drops": f"""
        DELETE FROM @leases AS l USING unnest({TASKS}, %::text[]) AS n (job_id, stage, element, token)
        WHERE (l.job_id, l.stage, l.element) = (n.job_id, n.stage, n.element) AND l.token = coalesce(n.token, l.token)
        RETURNING n.token""",
    # Delivered with the commit. The number says whose, so that who listens need not look what is new.
    "told": "SELECT pg_notify(%::text, %::text || ' ' || pg_current_xact_id()::text)::text AS told",
    "slot_drops": """
        DELETE FROM @slots AS s USING unnest(%::text[], %::uuid[]) AS n (slot, job_id)
        WHERE (s.slot, s.job_id) = (n.slot, n.job_id)""",
    "key_drops": "DELETE FROM @idempotency WHERE key = ANY(%::text[])",
    "result_drops": """
        DELETE FROM @results AS r USING unnest(%::uuid[], %::text[]) AS n (job_id, stage)
        WHERE (r.job_id, r.stage) = (n.job_id, n.stage)""",
    "progress_drops": """
        DELETE FROM @progress AS p USING unnest(%::uuid[], %::text[]) AS n (job_id, stage)
        WHERE (p.job_id, p.stage) = (n.job_id, n.stage)""",
}

RESULTS = """
SELECT r.job_id, r.stage, r.element, r.body FROM unnest($1::uuid[], $2::text[]) AS asked (job_id, stage)
JOIN @results AS r USING (job_id, stage)
"""

Parts = dict[str, Sequence[Any]]
"""By name, the values of each part."""


class Outdated(Exception):
    """What was taken for granted does not hold: the group is rolled back, and looks before it writes."""


class Writing:
    """Rows by their key, so that several changes of one job leave one row, and no row is written twice."""

    def __init__(self, plans: Plans) -> None:
        self._known = plans.stored
        self.plans: dict[str, bytes] = {}
        self.added: dict[str, Job] = {}
        self.moved: dict[str, tuple[int, Job]] = {}
        """With the version that the row has now."""
        self.completed: set[str] = set()
        self.specs: dict[str, tuple[str | None, bytes, bytes]] = {}
        self.events: list[tuple[str, int, int, str, bytes]] = []
        self.results: dict[Key, tuple[bytes, bytes]] = {}
        """The record, and the value in it."""
        self.due: dict[Entry, float] = {}
        self.leases: dict[Key, tuple[str, str, float]] = {}
        self.deliveries: dict[str, tuple[str, str, int, float]] = {}
        self.runs: dict[tuple[str, str, float], tuple[Any, ...]] = {}
        self.due_drops: set[Entry] = set()
        self.delayed_drops: set[tuple[Any, ...]] = set()
        self.lease_drops: dict[Key, str | None] = {}
        """With the token that must be on it; None where it was looked at."""
        self.slot_drops: set[tuple[str, str]] = set()
        self.stage_drops: set[tuple[str, str]] = set()
        self.failures: list[tuple[str, RecordFailure | SettleFailures]] = []

    def job(self, change: Change) -> None:
        job = change.after
        if change.before is None or job.id in self.added:
            self.added[job.id] = job
        else:
            was, _ = self.moved.get(job.id, (change.before.version, job))
            self.moved[job.id] = (was, job)
        if change.before is None and job.plan.fingerprint not in self._known:
            assert job.plan.fingerprint, "a plan without a fingerprint would be taken for another one"
            self.plans[job.plan.fingerprint] = wire.encode(job.plan)
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

    def notify(self, job_id: str, effect: Notify) -> None:
        for endpoint in effect.endpoints:
            self.deliveries[delivery_id(job_id, effect.run, endpoint)] = (endpoint, job_id, effect.run, effect.at)

    def mark_run(self, job: Job, effect: MarkRun) -> None:
        said = (effect.status, rows.clean(effect.message), job.id, job.trace_id, effect.started_at, effect.ended_at)
        self.runs[job.tenant, effect.schedule, effect.tick] = said

    def drop_stages(self, job_id: str, stages: Iterable[str]) -> None:
        self.stage_drops |= {(job_id, stage) for stage in stages}
        self.results = {at: kept for at, kept in self.results.items() if at[:2] not in self.stage_drops}

    async def send(
        self, session: Session, facts: Facts, clock: Clock, notice: Notice, *, is_claim: bool = False,
    ) -> None:  # fmt: skip
        """Raises `Outdated` if a job is not at the version, or a lease not under the token, that was trusted in.

        ``is_claim``: the entries to be dropped were only looked at, and must be there with nobody else at them.
        """
        if self.delayed_drops:
            # By a statement of its own: it waits for a claim that is just making the entry due, and what comes after
            # it finds the entry there.
            await _write(session, {"delayed_drops": _columns(self.delayed_drops)}, clock)
        drops, puts = self._drops(facts), await self._puts(session, facts, clock)
        counts: dict[str, int] = {}
        if self.lease_drops:
            counts["lease_drops"] = sum(token is not None for token in self.lease_drops.values())
        if is_claim and self.due_drops:
            drops |= {"free_jobs": [list(self.moved)], "free_entries": drops.pop("due_drops"), "free_drops": []}
            counts = {"free_jobs": len(self.moved), "free_entries": len(self.due_drops), **counts}
        is_anew = self.leases.keys() & self.lease_drops.keys() or self.due.keys() & self.due_drops
        if is_anew or (self.results and self.stage_drops):
            await _write(session, drops, clock, counts)  # one statement cannot drop a row and write it anew
            drops, counts = {}, {}
        if self.moved:
            counts["moved"] = len(self.moved)
        if puts and (words := notice.words()) is not None:
            puts["told"] = words
        await _write(session, drops | puts, clock, counts, is_last=not self.failures)
        if self.failures:  # behind the jobs: whoever holds a group waits for no job
            await failures.write(session, self.failures)

    def _drops(self, facts: Facts) -> Parts:
        """What is to go, and names that were only taken to see whether they could be."""
        slots = {(slot, id) for slot, id in facts.stored_slots.items() if slot not in facts.slots}
        keys = [key for key in facts.stored_keys if key not in facts.keys]
        return _filled(
            due_drops=_columns(self.due_drops),
            lease_drops=_columns((*at, token) for at, token in self.lease_drops.items()),
            slot_drops=_columns(self.slot_drops | slots),
            key_drops=[keys] if keys else [],
            result_drops=_columns(self.stage_drops),
            progress_drops=_columns(self.stage_drops),
        )

    async def _puts(self, session: Session, facts: Facts, clock: Clock) -> Parts:
        values = await self._values(session)
        moved = sorted(self.moved.items())  # locked in the order of ids, like everywhere
        touched = [*self.added, *self.moved]
        puts = _filled(
            plans=_columns(sorted(self.plans.items())),
            added=_columns(
                (id, *rows.fixed(job), *rows.moving(job), _text(self.specs[id][2]) if id in self.specs else None,
                 values.get(id))
                for id, job in self.added.items()
            ),
            moved=_columns((id, was, *rows.moving(job), values.get(id)) for id, (was, job) in moved),
            specs=_columns((id, key, body) for id, (key, body, _) in self.specs.items()),
            events=_columns(self.events),
            results=_columns((*at, body) for at, (body, _) in self.results.items()),
            leases=_columns((*at, *lease) for at, lease in self.leases.items()),
            entries=_columns((*key, not_before) for key, not_before in self.due.items()),
            slots=_columns((s, id) for s, id in facts.slots.items() if facts.stored_slots.get(s) != id),
            keys=_columns((key, *kept) for key, kept in facts.keys.items() if facts.stored_keys.get(key) != kept),
            deliveries=_columns((id, *rest) for id, rest in self.deliveries.items()),
            runs=_columns((*at, *said) for at, said in sorted(self.runs.items(), key=lambda item: item[0])),
            feed=[touched] if touched else [],
        )  # fmt: skip
        if "deliveries" in puts:
            puts["deliveries"] = [*puts["deliveries"], sorted({endpoint for endpoint, *_ in self.deliveries.values()})]
        for timed in ("leases", "entries"):
            if timed in puts:
                puts[timed] = [clock.parameter(), *puts[timed]]
        return puts | {"due": [], "delayed": []} if "entries" in puts else puts

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
            for id, stage, element, body in await session.fetch(RESULTS, *_columns(missing)):
                with suppress(CorruptRecord):  # it is null in the copy; who asks for the record is told
                    kept.setdefault((str(id), stage, element), wire.result_from(body, str(id)).value)
        return {job.id: _text(_value(job, kept)) for job in ended}


def _value(job: Job, kept: dict[Key, bytes]) -> bytes:
    """The value of the only last stage, else an object by last stage."""
    by_sink = {
        sink.name: [kept.get((job.id, sink.name, n), b"null") for n in range(len(job.stage(sink.name).tasks or ()))]
        for sink in job.plan.sinks
    }
    written = {
        name: b"[%b]" % b",".join(found) if job.plan.stage(name).over is not None else found[0]
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


def _columns(found: Iterable[Sequence[Any]]) -> list[Sequence[Any]]:
    return list(zip(*found, strict=True))


def _filled(**parts: Sequence[Any]) -> Parts:
    return {name: given for name, given in parts.items() if given}


async def _write(
    session: Session, parts: Parts, clock: Clock, counts: Mapping[str, int] = MappingProxyType({}), *,
    is_last: bool = False,
) -> None:  # fmt: skip
    """Write the parts in one statement, if of each in ``counts`` so many rows are found."""
    if not parts:
        return
    values = (each for given in parts.values() for each in given)
    ask = session.whole if is_last else session.fetch
    try:
        [said] = await ask(_statement(tuple(parts), tuple(counts)), *values, *counts.values())
    except asyncpg.DivisionByZeroError as error:
        raise Outdated from error
    clock.heard(said["now"])


@cache
def _statement(names: tuple[str, ...], counted: tuple[str, ...]) -> str:
    """A count that is not as it should be divides by zero: the server takes back the statement by itself."""
    parts = ", ".join(f"{name} AS ({PARTS[name]})" for name in names)
    told = ", (SELECT told FROM told)" if "told" in names else ""
    are_so = " AND ".join(f"({COUNTED[name]}) = %::int8" for name in counted) or "true"
    pieces = f"WITH {parts} SELECT {NOW} AS now, 1 / ({are_so})::int4 AS is_so{told}".split("%")
    return "".join(piece if n == 0 else f"${n}{piece}" for n, piece in enumerate(pieces))


COUNTED = {
    "free_jobs": "SELECT count(*) FROM free_jobs",
    "free_entries": "SELECT count(*) FROM free_entries",
    "moved": "SELECT count(*) FROM moved",
    "lease_drops": "SELECT count(token) FROM lease_drops",
}
"""Where the number of rows tells whether all is as it was thought to be. The first that is not so ends it: what comes
after has not waited for anybody."""
