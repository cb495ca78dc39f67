-- Purpose: leases over time, the sweeps that look for jobs that need something, and the purge.
-- Callers: store/postgres/maintenance.py
-- Tables:  leases, jobs, due, and all that a job has

-- name: renew
-- Locked in the order of their keys, like everybody's: a commit that ends some of them does not wait for us in turn.
WITH held AS MATERIALIZED (
    SELECT l.job_id, l.stage, l.element, l.token
    FROM unnest($1::uuid[], $2::text[], $3::int4[], $4::text[]) AS n (job_id, stage, element, token)
    JOIN @leases AS l USING (job_id, stage, element, token)
    ORDER BY l.job_id, l.stage, l.element FOR NO KEY UPDATE OF l
), moved AS (
    UPDATE @leases AS l SET until = coalesce($5, @now()) + $6 FROM held
    WHERE (l.job_id, l.stage, l.element) = (held.job_id, held.stage, held.element)
)
SELECT l.job_id, l.stage, l.element, l.token, job.is_stopping, @now() AS now
FROM held AS l JOIN @jobs AS job ON job.id = l.job_id;

-- name: standing
SELECT l.job_id, l.stage, l.element, l.token, job.is_stopping
FROM unnest($1::uuid[], $2::text[], $3::int4[], $4::text[]) AS n (job_id, stage, element, token)
JOIN @leases AS l USING (job_id, stage, element, token)
JOIN @jobs AS job ON job.id = l.job_id;

-- name: overdue
SELECT job.id, job.tenant, job.user_id, job.client, job.plan, job.priority, job.trace_id, job.slot, job.status,
    job.version, job.is_purging, job.has_litter, job.state, l.stage, l.element
FROM @leases AS l JOIN @jobs AS job ON job.id = l.job_id
WHERE until <= coalesce($1, @now()) ORDER BY l.until LIMIT $2;

-- name: held_by
SELECT job.id, job.tenant, job.user_id, job.client, job.plan, job.priority, job.trace_id, job.slot, job.status,
    job.version, job.is_purging, job.has_litter, job.state, l.stage, l.element
FROM @leases AS l JOIN @jobs AS job ON job.id = l.job_id
WHERE worker = $1::text ORDER BY l.until LIMIT $2;

-- name: expired
-- Two walks, each of its own index: jobs that wait, and jobs that run and are not being stopped yet. The time asked for
-- once: a condition that may change from row to row is looked at row by row, in the whole index.
SELECT * FROM (
    (SELECT id, tenant, user_id, client, plan, priority, trace_id, slot, status, version, is_purging, has_litter, state,
        deadline_at
    FROM @jobs WHERE status = 'pending' AND deadline_at <= (SELECT @moment(coalesce($1, @now())))
    ORDER BY deadline_at LIMIT $2)
    UNION ALL
    (SELECT id, tenant, user_id, client, plan, priority, trace_id, slot, status, version, is_purging, has_litter, state,
        deadline_at
    FROM @jobs WHERE status = 'running' AND NOT is_stopping AND deadline_at <= (SELECT @moment(coalesce($1, @now())))
    ORDER BY deadline_at LIMIT $2)
) AS job ORDER BY deadline_at LIMIT $2;

-- name: purging
SELECT id, tenant, user_id, client, plan, priority, trace_id, slot, status, version, is_purging, has_litter, state
FROM @jobs WHERE is_purging AND $1::float8 IS NULL ORDER BY id LIMIT $2;

-- name: purgeable
SELECT id, tenant, user_id, client, plan, priority, trace_id, slot, status, version, is_purging, has_litter, state
FROM @jobs WHERE purge_at <= (SELECT @moment(coalesce($1, @now()))) AND NOT is_purging ORDER BY purge_at LIMIT $2;

-- name: littered
SELECT id, tenant, user_id, client, plan, priority, trace_id, slot, status, version, is_purging, has_litter, state
FROM @jobs WHERE has_litter AND completed_at IS NOT NULL AND NOT is_purging AND $1::float8 IS NULL ORDER BY id LIMIT $2;

-- name: ready
SELECT k.queue, sum(n.count)::int8 AS count FROM unnest($1::text[], $2::text[]) AS k (queue, kind)
CROSS JOIN LATERAL (
    SELECT count(*) FROM (SELECT FROM @due AS d WHERE d.queue = k.queue AND d.kind = k.kind LIMIT $3) AS few
) AS n
GROUP BY k.queue;

-- name: known
SELECT id FROM @jobs WHERE id = ANY($1::uuid[]);

-- name: erase_job
DELETE FROM @jobs WHERE id = $1 AND is_purging RETURNING id;

-- name: erase_key
-- Statements of their own: what was written while we waited for the job is seen, and goes too.
DELETE FROM @idempotency WHERE key = (SELECT idempotency_key FROM @specs WHERE job_id = $1);

-- name: erase_rest
WITH
    specs AS (DELETE FROM @specs WHERE job_id = $1),
    results AS (DELETE FROM @results WHERE job_id = $1),
    events AS (DELETE FROM @events WHERE job_id = $1),
    leases AS (DELETE FROM @leases WHERE job_id = $1),
    progress AS (DELETE FROM @progress WHERE job_id = $1),
    log AS (DELETE FROM @log WHERE job_id = $1),
    log_size AS (DELETE FROM @log_size WHERE job_id = $1),
    samples AS (DELETE FROM @samples WHERE job_id = $1)
SELECT 1;
