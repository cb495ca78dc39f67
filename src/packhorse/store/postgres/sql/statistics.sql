-- Purpose: counts over time, and of the jobs there are.
-- Callers: store/postgres/counters.py
-- Tables:  tallies; reads due, waiting, lanes and jobs

-- name: add
-- In the order of keys, like everybody: two who add at one time wait for each other one way only.
INSERT INTO @tallies AS t (step, at, queue, pipeline, name, count)
SELECT * FROM unnest($1::int4[], $2::int8[], $3::text[], $4::text[], $5::text[], $6::int8[])
    AS n (step, at, queue, pipeline, name, count)
ORDER BY step, at, queue COLLATE "C", pipeline COLLATE "C", name COLLATE "C"
ON CONFLICT (step, at, queue, pipeline, name) DO UPDATE SET count = t.count + excluded.count;

-- name: counts
SELECT at, pipeline, queue, name, count FROM @tallies WHERE step = $1 AND at >= $2
    AND ($3::text IS NULL OR queue = $3) AND ($4::text IS NULL OR pipeline = $4) ORDER BY at;

-- name: heads
SELECT k.queue, k.kind, d.rank, d.job_id, d.stage, d.element
FROM unnest($1::text[], $2::text[], $3::int8[]) AS k (queue, kind, above)
CROSS JOIN LATERAL (
    SELECT rank, job_id, stage, element FROM @due AS d
    WHERE d.queue = k.queue AND d.kind = k.kind AND d.rank > k.above ORDER BY rank, job_id, stage, element LIMIT 1
) AS d;

-- name: turns
-- The first task of each of the shares that are next.
SELECT k.queue, w.job_id, w.stage, w.element
FROM unnest($1::text[], $2::text[]) AS k (queue, kind)
CROSS JOIN LATERAL (
    SELECT share FROM @lanes AS l WHERE l.key = '' AND l.most = 0 AND l.queue = k.queue AND l.kind = k.kind
    ORDER BY pass, share LIMIT $3
) AS l
CROSS JOIN LATERAL (
    SELECT job_id, stage, element FROM @waiting AS w
    WHERE w.key = '' AND w.most = 0 AND w.queue = k.queue AND w.kind = k.kind AND w.share = l.share
    ORDER BY rank, job_id, stage, element LIMIT 1
) AS w;

-- name: pairs
-- From each pair of tenant and pipeline straight to the next. The LIMIT outside is what ends the count.
WITH RECURSIVE pairs AS (
    (SELECT tenant, pipeline FROM @jobs ORDER BY tenant, pipeline LIMIT 1)
    UNION ALL
    SELECT n.tenant, n.pipeline FROM pairs AS p CROSS JOIN LATERAL (
        SELECT tenant, pipeline FROM @jobs WHERE (tenant, pipeline) > (p.tenant, p.pipeline)
        ORDER BY tenant, pipeline LIMIT 1
    ) AS n
)
SELECT tenant, pipeline FROM pairs LIMIT $1;

-- name: count
SELECT count(*) FROM (
    SELECT FROM unnest($1::text[], $2::text[]) AS p (tenant, pipeline) CROSS JOIN LATERAL (
        SELECT FROM @jobs AS j WHERE j.tenant = p.tenant AND j.pipeline = p.pipeline AND j.status = $3 LIMIT $4
    ) AS one LIMIT $4
) AS few;

-- name: usage
SELECT jobs, bytes FROM @usage WHERE tenant = $1;

-- name: trim
-- $2 has the lengths of what is counted in, $3 how long each is kept.
WITH now AS MATERIALIZED (SELECT coalesce($1, @now()) AS now)
DELETE FROM @tallies AS t USING now, unnest($2::int4[], $3::float8[]) AS n (step, kept)
WHERE t.step = n.step AND t.at < now - n.kept;
