"""The parts that a write is put together from, and the one statement that makes them all or none."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from types import MappingProxyType
from typing import Any

import asyncpg

from packhorse.store.postgres.connection import NOW, Clock, Row, Session
from packhorse.store.postgres.rows import FIXED, MOVING, arrays, values

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

RECORD = "kind, id, body, note, stamp, lane, due_at, attempts, job_id"
INDEX = "kind, name, place, id"

# A record is written at the stamp that this statement's snapshot shows, or not at all: index entries that another
# transaction adds meanwhile would otherwise stay. (A, B) IN (...) IS TRUE is hashed; a plain IN would be a nested loop.
RECORD_PARTS = {
    "record_jobs": "SELECT FROM @jobs WHERE id = ANY(%::uuid[]) FOR KEY SHARE",
    "record_needs": """
        SELECT r.kind, r.id FROM unnest(%::text[], %::text[]) AS n (kind, id) JOIN @records AS r USING (kind, id)
        FOR SHARE OF r""",
    "record_leases": "SELECT FROM @leases WHERE worker = ANY(%::text[]) LIMIT 1",
    "record_news": """
        SELECT n.kind, n.id, n.body, ''::bytea AS note, coalesce(r.stamp, 0) + 1 AS stamp, n.lane, n.due_at,
            coalesce(n.attempts, r.attempts, 0) AS attempts, n.job_id
        FROM unnest(%::text[], %::text[], %::bytea[], %::int8[], %::text[], %::float8[], %::int4[], %::uuid[])
            AS n (kind, id, body, was, lane, due_at, attempts, job_id)
        LEFT JOIN @records AS r ON (r.kind, r.id) = (n.kind, n.id)
        WHERE n.was IS NULL OR n.was = coalesce(r.stamp, 0)""",
    "record_puts": f"""
        INSERT INTO @records AS r ({RECORD}) SELECT {RECORD} FROM record_news
        ON CONFLICT (kind, id) DO UPDATE SET (body, note, stamp, lane, due_at, attempts, job_id)
            = ROW(excluded.body, excluded.note, excluded.stamp, excluded.lane, excluded.due_at, excluded.attempts,
                  excluded.job_id)
        WHERE r.stamp = excluded.stamp - 1
        RETURNING r.kind, r.id, r.stamp""",
    "record_gone": """
        SELECT n.kind, n.id, n.was, r.stamp FROM unnest(%::text[], %::text[], %::int8[]) AS n (kind, id, was)
        JOIN @records AS r USING (kind, id) WHERE n.was IS NULL OR n.was = r.stamp""",
    "record_drops": """
        DELETE FROM @records AS r USING record_gone AS n WHERE (r.kind, r.id, r.stamp) = (n.kind, n.id, n.stamp)
        RETURNING 1""",
    "index_news": f"SELECT * FROM unnest(%::text[], %::text[], %::text[], %::text[]) AS n ({INDEX})",
    "index_drops": f"""
        DELETE FROM @record_index AS e USING unnest(%::text[], %::text[]) AS n (kind, id)
        WHERE (e.kind, e.id) = (n.kind, n.id)
        AND (e.kind, e.name, e.place, e.id) NOT IN (SELECT {INDEX} FROM index_news)""",
    "index_puts": f"INSERT INTO @record_index ({INDEX}) SELECT {INDEX} FROM index_news ON CONFLICT DO NOTHING",
    # New records of a commit: what is there already, or lacks the record it needs, is left out.
    "add_needs": """
        SELECT r.kind, r.id FROM unnest(%::text[], %::text[]) AS n (kind, id) JOIN @records AS r USING (kind, id)
        FOR SHARE OF r""",
    "record_adds": f"""
        INSERT INTO @records ({RECORD})
        SELECT n.kind, n.id, n.body, '', 1, n.lane, n.due_at, coalesce(n.attempts, 0), n.job_id
        FROM unnest(%::text[], %::text[], %::bytea[], %::text[], %::float8[], %::int4[], %::uuid[], %::text[],
            %::text[]) AS n (kind, id, body, lane, due_at, attempts, job_id, need_kind, need_id)
        WHERE n.need_id IS NULL OR ((n.need_kind, n.need_id) IN (SELECT kind, id FROM add_needs)) IS TRUE
        ON CONFLICT DO NOTHING RETURNING kind, id""",
    "add_entries": f"""
        INSERT INTO @record_index ({INDEX})
        SELECT {INDEX} FROM unnest(%::text[], %::text[], %::text[], %::text[]) AS n ({INDEX})
        WHERE ((n.kind, n.id) IN (SELECT kind, id FROM record_adds)) IS TRUE ON CONFLICT DO NOTHING""",
    "record_noted": """
        SELECT n.kind, n.id, n.note, r.stamp FROM unnest(%::text[], %::text[], %::bytea[]) AS n (kind, id, note)
        JOIN @records AS r USING (kind, id)""",
    "record_notes": """
        UPDATE @records AS r SET note = n.note, due_at = NULL, stamp = r.stamp + 1 FROM record_noted AS n
        WHERE (r.kind, r.id, r.stamp) = (n.kind, n.id, n.stamp)
        RETURNING 1""",
    "note_news": f"SELECT * FROM unnest(%::text[], %::text[], %::text[], %::text[]) AS n ({INDEX})",
    "note_drops": f"""
        DELETE FROM @record_index AS e USING record_noted AS n WHERE (e.kind, e.id) = (n.kind, n.id)
        AND (e.kind, e.name, e.place, e.id) NOT IN (SELECT {INDEX} FROM note_news)""",
    "note_puts": f"""
        INSERT INTO @record_index ({INDEX}) SELECT {INDEX} FROM note_news AS n
        WHERE ((n.kind, n.id) IN (SELECT kind, id FROM record_noted)) IS TRUE ON CONFLICT DO NOTHING""",
    # Nothing about any job, but who waits for anything at all is woken.
    "woken": "INSERT INTO @feed VALUES (pg_current_xact_id(), '{}')",
}

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
    **RECORD_PARTS,
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

Parts = dict[str, Sequence[Any]]
"""By name, the values of each part."""


class Outdated(Exception):
    """What was taken for granted does not hold: the group is rolled back, and looks before it writes."""


def columns(found: Iterable[Sequence[Any]]) -> list[Sequence[Any]]:
    return list(zip(*found, strict=True))


async def write(
    session: Session, parts: Parts, clock: Clock, counts: Mapping[str, int] = MappingProxyType({}), *,
    is_last: bool = False,
) -> Row | None:  # fmt: skip
    """Write the parts in one statement, if of each in ``counts`` so many rows are found. Raises `Outdated` if not."""
    if not parts:
        return None
    values = (each for given in parts.values() for each in given)
    ask = session.whole if is_last else session.fetch
    try:
        [found] = await ask(_statement(tuple(parts), tuple(counts)), *values, *counts.values())
    except asyncpg.RaiseError as error:
        raise Outdated from error
    clock.heard(found["now"])
    return found


@cache
def _statement(names: tuple[str, ...], counted: tuple[str, ...]) -> str:
    """Where a count is not what it must be, `expect` raises, and the server takes back the whole statement."""
    parts = ", ".join(f"{name} AS ({PARTS[name]})" for name in names)
    answers = "".join(f", ({ANSWERS[name]}) AS {name}" for name in names if name in ANSWERS)
    conditions = " AND ".join(f"({COUNTED[name]}) = %::int8" for name in counted) or "true"
    pieces = f"WITH {parts} SELECT {NOW} AS now, @expect({conditions}){answers}".split("%")
    return "".join(piece if n == 0 else f"${n}{piece}" for n, piece in enumerate(pieces))


ANSWERS = {
    "told": "SELECT told FROM told",
    "record_puts": "SELECT array_agg(stamp ORDER BY kind, id) FROM record_puts",
}
"""Parts of which something is returned. A notification goes out only if somebody asks for its row."""

COUNTED = {
    "free_jobs": "SELECT count(*) FROM free_jobs",
    "free_entries": "SELECT count(*) FROM free_entries",
    "moved": "SELECT count(*) FROM moved",
    "lease_drops": "SELECT count(token) FROM lease_drops",
    "record_jobs": "SELECT count(*) FROM record_jobs",
    "record_needs": "SELECT count(*) FROM record_needs",
    "record_leases": "SELECT count(*) FROM record_leases",
    "record_puts": "SELECT count(*) FROM record_puts",
    # Those without an expected stamp may be missing.
    "record_drops": "(SELECT count(*) FROM record_drops) - (SELECT count(*) FROM record_gone WHERE was IS NULL)",
    "record_notes": "(SELECT count(*) FROM record_notes) - (SELECT count(*) FROM record_noted)",
}
"""Where the number of rows tells whether the state is the expected one. The first that differs ends the statement: what
comes after has not waited for anybody."""
