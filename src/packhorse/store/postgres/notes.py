"""Progress, log and samples: what changes often and is not history."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import count

from packhorse.store.base import Line, Report, Sample
from packhorse.store.postgres.connection import Session
from packhorse.store.postgres.rows import clean, ids, is_id

# The peak is the furthest point of this run, so that the whole never goes backwards when an attempt starts over.
# Locked, the lease cannot end while its progress is written: what a superseded attempt still had to say is dropped.
REPORT = """
WITH held AS MATERIALIZED (
    SELECT n.* FROM unnest($1::uuid[], $2::text[], $3::int4[], $4::text[], $5::int4[], $6::float8[], $7::float8[],
        $8::float8[], $9::text[], $10::float8[])
        AS n (job_id, stage, element, token, run, at, current, total, message, peak)
    JOIN @leases AS l USING (job_id, stage, element, token)
    ORDER BY l.job_id, l.stage, l.element FOR KEY SHARE OF l
), kept AS (
    INSERT INTO @progress AS p (job_id, stage, element, run, at, current, total, message, peak)
    SELECT job_id, stage, element, run, at, current, total, message, peak FROM held
    ON CONFLICT (job_id, stage, element) DO UPDATE SET run = excluded.run, at = excluded.at,
        current = excluded.current, total = excluded.total, message = excluded.message,
        peak = CASE WHEN p.run = excluded.run THEN greatest(p.peak, excluded.peak) ELSE excluded.peak END
)
INSERT INTO @feed SELECT pg_current_xact_id(), array_agg(DISTINCT job_id) FROM held HAVING count(*) > 0
"""

# What comes after the purge must not bring anything back: a job that is locked is not erased meanwhile.
SIZES = """
WITH there AS MATERIALIZED (
    SELECT n.* FROM unnest($1::uuid[], $2::int8[], $3::int8[]) AS n (job_id, lines, bytes)
    JOIN @jobs AS job ON job.id = n.job_id ORDER BY job.id FOR KEY SHARE OF job
)
INSERT INTO @log_size AS size (job_id, last, bytes) SELECT * FROM there ORDER BY job_id
ON CONFLICT (job_id) DO UPDATE SET last = size.last + excluded.last, bytes = size.bytes + excluded.bytes
RETURNING job_id, last, bytes
"""

LINES = """
WITH told AS (INSERT INTO @feed VALUES (pg_current_xact_id(), $1::uuid[]))
INSERT INTO @log SELECT * FROM unnest($2::uuid[], $3::int8[], $4::text[], $5::int4[], $6::int4[], $7::float8[],
    $8::text[]) AS n
"""

LEAST = 1
"""Bytes that a line counts for at least: empty ones would be kept without end."""

# Whole lines from the front, until at least what is too much is gone. Step by step, for the log may be long.
OLDEST = f"""
WITH RECURSIVE dropped AS (
    SELECT job_id, 0::int8 AS n, 0::int8 AS bytes, excess FROM unnest($1::uuid[], $2::int8[]) AS n (job_id, excess)
    UNION ALL
    SELECT d.job_id, line.n, d.bytes + line.bytes, d.excess FROM dropped AS d CROSS JOIN LATERAL (
        SELECT n, greatest({LEAST}, octet_length(text)) AS bytes FROM @log WHERE job_id = d.job_id AND n > d.n
        ORDER BY n LIMIT 1
    ) AS line WHERE d.bytes < d.excess
), last AS MATERIALIZED (
    SELECT job_id, max(n) AS n, max(bytes) AS bytes FROM dropped GROUP BY job_id
), gone AS (
    DELETE FROM @log AS l USING last WHERE l.job_id = last.job_id AND l.n <= last.n
)
UPDATE @log_size AS size SET bytes = size.bytes - last.bytes FROM last WHERE size.job_id = last.job_id
"""

SAMPLES = """
WITH there AS MATERIALIZED (
    SELECT n.* FROM unnest($1::uuid[], $2::float8[], $3::text[], $4::int4[], $5::float8[], $6::int8[])
        AS n (job_id, at, stage, element, cpu, memory)
    JOIN @jobs AS job ON job.id = n.job_id ORDER BY job.id FOR KEY SHARE OF job
)
INSERT INTO @samples SELECT * FROM there
ON CONFLICT (job_id, at, stage, element) DO UPDATE SET cpu = excluded.cpu, memory = excluded.memory
"""

# By the whole key: parallel tasks are sampled at one time, and going by time alone would drop all of them.
OLD_SAMPLES = """
DELETE FROM @samples AS s USING unnest($1::uuid[]) AS n (job_id) CROSS JOIN LATERAL (
    SELECT at, stage, element FROM @samples WHERE job_id = n.job_id
    ORDER BY at DESC, stage DESC, element DESC LIMIT 1 OFFSET $2
) AS oldest
WHERE s.job_id = n.job_id AND (s.at, s.stage, s.element) <= (oldest.at, oldest.stage, oldest.element)
"""


async def report(session: Session, reports: Sequence[Report]) -> None:
    latest: dict[tuple[str, str, int, str], Report] = {}
    peaks: dict[tuple[str, str, int, str, int], float] = {}
    for r in reports:
        if is_id(r.job_id):
            at = (r.job_id, *r.task, r.token)
            latest[at] = r
            peaks[*at, r.run] = max(r.fraction, peaks.get((*at, r.run), 0.0))
    if latest:
        values = (
            (*at, r.run, r.at, r.current, r.total, clean(r.message), peaks[*at, r.run]) for at, r in latest.items()
        )
        await session.fetch(REPORT, *_columns(values))


async def log(session: Session, lines: Sequence[Line], keep: int) -> None:
    texts: dict[str, list[tuple[Line, str]]] = {}
    for line in lines:
        if is_id(line.job_id):
            texts.setdefault(line.job_id, []).append((line, clean(line.text)))
    sizes = {id: sum(max(LEAST, len(text.encode())) for _, text in found) for id, found in texts.items()}
    if not texts:
        return
    asked = (list(texts), [len(found) for found in texts.values()], list(sizes.values()))
    there = {str(id): (last, size) for id, last, size in await session.fetch(SIZES, *asked)}
    if not there:
        return
    values = (
        (id, n, *line.task, line.attempt, line.at, text)
        for id, (last, _) in there.items()
        for n, (line, text) in zip(count(last - len(texts[id]) + 1), texts[id], strict=False)
    )
    await session.fetch(LINES, list(there), *_columns(values))
    excess = {id: size - keep for id, (_, size) in there.items() if size > keep}
    if excess:
        await session.fetch(OLDEST, list(excess), list(excess.values()))


async def sample(session: Session, samples: Sequence[Sample], keep: int) -> None:
    latest = {(s.job_id, s.at, *s.task): (s.cpu, s.memory) for s in samples if is_id(s.job_id)}
    if latest:
        await session.fetch(SAMPLES, *_columns((*at, *found) for at, found in latest.items()))
        await session.fetch(OLD_SAMPLES, ids({at[0] for at in latest}), keep)


def _columns(found: Iterable[Sequence[object]]) -> list[Sequence[object]]:
    return list(zip(*found, strict=True))
