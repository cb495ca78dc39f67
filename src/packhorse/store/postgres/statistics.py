"""Counts over time, and of the jobs there are."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from packhorse.core.models import TaskId
from packhorse.core.plan import Status
from packhorse.store import statistics
from packhorse.store.postgres.connection import NOW, Clock, Session
from packhorse.store.statistics import (
    KEPT,
    MINUTE,
    MOST_PAIRS,
    MOST_RANKS,
    QUARTER,
    Counts,
    Head,
    Tally,
)

# In the order of keys, like everybody: two who add at one time wait for each other one way only.
ADD = """
INSERT INTO @tallies AS t (step, at, queue, pipeline, name, count)
SELECT * FROM unnest($1::int4[], $2::int8[], $3::text[], $4::text[], $5::text[], $6::int8[])
    AS n (step, at, queue, pipeline, name, count)
ORDER BY step, at, queue COLLATE "C", pipeline COLLATE "C", name COLLATE "C"
ON CONFLICT (step, at, queue, pipeline, name) DO UPDATE SET count = t.count + excluded.count
"""
COUNTS = """
SELECT at, pipeline, queue, name, count FROM @tallies WHERE step = $1 AND at >= $2
    AND ($3::text IS NULL OR queue = $3) AND ($4::text IS NULL OR pipeline = $4) ORDER BY at
"""
HEADS = """
SELECT k.queue, k.kind, d.rank, d.job_id, d.stage, d.element
FROM unnest($1::text[], $2::text[], $3::int8[]) AS k (queue, kind, above)
CROSS JOIN LATERAL (
    SELECT rank, job_id, stage, element FROM @due AS d
    WHERE d.queue = k.queue AND d.kind = k.kind AND d.rank > k.above ORDER BY rank, job_id, stage, element LIMIT 1
) AS d
"""

# From each pair of tenant and pipeline straight to the next. The LIMIT outside is what ends the count.
PAIRS = """
WITH RECURSIVE pairs AS (
    (SELECT tenant, pipeline FROM @jobs ORDER BY tenant, pipeline LIMIT 1)
    UNION ALL
    SELECT n.tenant, n.pipeline FROM pairs AS p CROSS JOIN LATERAL (
        SELECT tenant, pipeline FROM @jobs WHERE (tenant, pipeline) > (p.tenant, p.pipeline)
        ORDER BY tenant, pipeline LIMIT 1
    ) AS n
)
SELECT tenant, pipeline FROM pairs LIMIT $1
"""
COUNT = """
SELECT count(*) FROM (
    SELECT FROM unnest($1::text[], $2::text[]) AS p (tenant, pipeline) CROSS JOIN LATERAL (
        SELECT FROM @jobs AS j WHERE j.tenant = p.tenant AND j.pipeline = p.pipeline AND j.status = $3 LIMIT $4
    ) AS one LIMIT $4
) AS few
"""
TRIM = f"""
WITH now AS MATERIALIZED (SELECT coalesce($1, {NOW}) AS now), minutes AS (
    DELETE FROM @tallies WHERE step = {MINUTE} AND at < (SELECT now FROM now) - {KEPT[MINUTE] + MINUTE}
)
DELETE FROM @tallies WHERE step = {QUARTER} AND at < (SELECT now FROM now) - {KEPT[QUARTER] + QUARTER}
"""


async def tally(session: Session, counts: Mapping[Tally, int]) -> None:
    if counts:
        rows = [(each.step, each.at, each.queue, each.pipeline, each.name, count) for each, count in counts.items()]
        await session.fetch(ADD, *zip(*rows, strict=True))


async def tallied(
    session: Session, step: int, at: int, queue: str | None, pipeline: str | None
) -> list[tuple[Tally, int]]:
    found = await session.fetch(COUNTS, step, at, queue, pipeline)
    return [(Tally(step, at, of, name, what), count) for at, of, name, what, count in found]


async def heads(session: Session, kinds: Mapping[str, Collection[str]]) -> list[Head]:
    """Priority by priority, for all queues at once."""
    asked = [(queue, kind, -(2**62)) for queue, names in kinds.items() for kind in names]
    found: list[Head] = []
    for _ in range(MOST_RANKS):
        if not asked:
            break
        rows = await session.fetch(HEADS, *zip(*asked, strict=True))
        found += [Head(row["queue"], str(row["job_id"]), TaskId(row["stage"], row["element"])) for row in rows]
        asked = [(row["queue"], row["kind"], row["rank"]) for row in rows]
    return found


async def counted(session: Session, most: int) -> Counts:
    pairs = await session.fetch(PAIRS, MOST_PAIRS)
    tenants, pipelines = [row["tenant"] for row in pairs], [row["pipeline"] for row in pairs]
    found = {status.value: await session.value(COUNT, tenants, pipelines, status.value, most + 1) for status in Status}
    return statistics.capped(found, most, is_all=len(pairs) < MOST_PAIRS)


async def trim(session: Session, clock: Clock) -> None:
    await session.fetch(TRIM, clock.parameter())
