-- Purpose: progress, log and samples of jobs: what changes often and is not history.
-- Callers: store/postgres/reads.py
-- Tables:  progress, log, log_size, samples, feed; reads leases and jobs

-- name: report
-- The peak is the furthest point of this run, so that the whole never goes backwards when an attempt starts over.
-- Locked, the lease cannot end while its progress is written: what a superseded attempt still had to say is dropped.
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
INSERT INTO @feed SELECT pg_current_xact_id(), array_agg(DISTINCT job_id) FROM held HAVING count(*) > 0;

-- name: count_lines
-- What comes after the purge must not bring anything back: a job that is locked is not erased meanwhile.
WITH there AS MATERIALIZED (
    SELECT n.* FROM unnest($1::uuid[], $2::int8[], $3::int8[]) AS n (job_id, lines, bytes)
    JOIN @jobs AS job ON job.id = n.job_id ORDER BY job.id FOR KEY SHARE OF job
)
INSERT INTO @log_size AS size (job_id, last, bytes) SELECT * FROM there ORDER BY job_id
ON CONFLICT (job_id) DO UPDATE SET last = size.last + excluded.last, bytes = size.bytes + excluded.bytes
RETURNING job_id, last, bytes;

-- name: add_lines
WITH told AS (INSERT INTO @feed VALUES (pg_current_xact_id(), $1::uuid[]))
INSERT INTO @log SELECT * FROM unnest($2::uuid[], $3::int8[], $4::text[], $5::int4[], $6::int4[], $7::float8[],
    $8::text[]) AS n;

-- name: drop_lines
-- Whole lines from the front, until at least what is too much is gone. Step by step, for the log may be long.
WITH RECURSIVE dropped AS (
    SELECT job_id, 0::int8 AS n, 0::int8 AS bytes, excess FROM unnest($1::uuid[], $2::int8[]) AS n (job_id, excess)
    UNION ALL
    SELECT d.job_id, line.n, d.bytes + line.bytes, d.excess FROM dropped AS d CROSS JOIN LATERAL (
        SELECT n, greatest(1, octet_length(text)) AS bytes FROM @log WHERE job_id = d.job_id AND n > d.n
        ORDER BY n LIMIT 1
    ) AS line WHERE d.bytes < d.excess
), last AS MATERIALIZED (
    SELECT job_id, max(n) AS n, max(bytes) AS bytes FROM dropped GROUP BY job_id
), gone AS (
    DELETE FROM @log AS l USING last WHERE l.job_id = last.job_id AND l.n <= last.n
)
UPDATE @log_size AS size SET bytes = size.bytes - last.bytes FROM last WHERE size.job_id = last.job_id;

-- name: add_samples
WITH there AS MATERIALIZED (
    SELECT n.* FROM unnest($1::uuid[], $2::float8[], $3::text[], $4::int4[], $5::float8[], $6::int8[])
        AS n (job_id, at, stage, element, cpu, memory)
    JOIN @jobs AS job ON job.id = n.job_id ORDER BY job.id FOR KEY SHARE OF job
)
INSERT INTO @samples SELECT * FROM there
ON CONFLICT (job_id, at, stage, element) DO UPDATE SET cpu = excluded.cpu, memory = excluded.memory;

-- name: drop_samples
-- By the whole key: parallel tasks are sampled at one time, and going by time alone would drop all of them.
DELETE FROM @samples AS s USING unnest($1::uuid[]) AS n (job_id) CROSS JOIN LATERAL (
    SELECT at, stage, element FROM @samples WHERE job_id = n.job_id
    ORDER BY at DESC, stage DESC, element DESC LIMIT 1 OFFSET $2
) AS oldest
WHERE s.job_id = n.job_id AND (s.at, s.stage, s.element) <= (oldest.at, oldest.stage, oldest.element);

-- name: progress
SELECT job_id, stage, element, run, at, current, total, message, peak FROM @progress WHERE job_id = ANY($1::uuid[]);

-- name: lines
SELECT n, stage, element, attempt, at, text FROM @log WHERE job_id = $1 AND n > $2 AND ($4::text IS NULL OR stage = $4)
ORDER BY n LIMIT $3;

-- name: newest_lines
SELECT n, stage, element, attempt, at, text FROM @log WHERE job_id = $1 AND n > $2 AND ($4::text IS NULL OR stage = $4)
ORDER BY n DESC LIMIT $3;

-- name: samples
SELECT stage, element, at, cpu, memory FROM @samples WHERE job_id = ANY($1::uuid[]) ORDER BY at;
