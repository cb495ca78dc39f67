-- Purpose: questions about jobs, sweeps and the purge. No question reads more rows than it returns, give or take a few.
-- Callers: store/postgres/reads.py, batch.py (stage_results)
-- Tables:  jobs, plans, specs, results, events, idempotency, slots, slot_line; the purge: all that a job has

-- name: plans
SELECT fingerprint, body FROM @plans WHERE fingerprint = ANY($1::text[]);

-- name: by_id
SELECT id, tenant, user_id, client, plan, priority, trace_id, slot, status, version, is_purging, has_litter, state
FROM @jobs WHERE id = ANY($1::uuid[]);

-- name: find_all
-- Bounds that are null bound nothing.
SELECT id, tenant, user_id, client, plan, priority, trace_id, slot, status, version, is_purging, has_litter, state
FROM @jobs
WHERE TRUE
    AND id < coalesce($1::uuid, 'ffffffff-ffff-ffff-ffff-ffffffffffff')
    AND id >= coalesce($2::uuid, '00000000-0000-0000-0000-000000000000')
    AND id < coalesce($3::uuid, 'ffffffff-ffff-ffff-ffff-ffffffffffff')
    AND ($4::float8 IS NULL OR created_at >= @moment($4)) AND ($5::float8 IS NULL OR created_at < @moment($5))
ORDER BY id DESC LIMIT $6;

-- name: find_of_user
-- One statement, for one snapshot: a job that changed status between two walks would be found twice, or never. Each
-- walk is short, along one index; values that are not given are found by jumping from one to the next.
WITH RECURSIVE tenants AS (
    SELECT coalesce($7::text, (SELECT min(tenant) FROM @jobs)) AS tenant
    UNION ALL
    SELECT (SELECT min(tenant) FROM @jobs WHERE tenant > t.tenant)
    FROM tenants AS t WHERE $7::text IS NULL AND t.tenant IS NOT NULL
)
SELECT job.id, job.tenant, job.user_id, job.client, job.plan, job.priority, job.trace_id, job.slot, job.status,
    job.version, job.is_purging, job.has_litter, job.state
FROM (
    SELECT walk.id FROM tenants AS t, unnest($8::text[]) AS s (status), LATERAL (
        SELECT id FROM @jobs
        WHERE tenant = t.tenant AND status = s.status AND user_id = $9 AND ($10::text IS NULL OR pipeline = $10)
            AND id < coalesce($1::uuid, 'ffffffff-ffff-ffff-ffff-ffffffffffff')
            AND id >= coalesce($2::uuid, '00000000-0000-0000-0000-000000000000')
            AND id < coalesce($3::uuid, 'ffffffff-ffff-ffff-ffff-ffffffffffff')
            AND ($4::float8 IS NULL OR created_at >= @moment($4)) AND ($5::float8 IS NULL OR created_at < @moment($5))
        ORDER BY id DESC LIMIT $6
    ) AS walk
    ORDER BY walk.id DESC LIMIT $6
) AS found JOIN @jobs AS job USING (id) ORDER BY job.id DESC;

-- name: find_of_pipelines
WITH RECURSIVE tenants AS (
    SELECT coalesce($7::text, (SELECT min(tenant) FROM @jobs)) AS tenant
    UNION ALL
    SELECT (SELECT min(tenant) FROM @jobs WHERE tenant > t.tenant)
    FROM tenants AS t WHERE $7::text IS NULL AND t.tenant IS NOT NULL
)
SELECT job.id, job.tenant, job.user_id, job.client, job.plan, job.priority, job.trace_id, job.slot, job.status,
    job.version, job.is_purging, job.has_litter, job.state
FROM (
    SELECT walk.id FROM tenants AS t, unnest($8::text[]) AS s (status), LATERAL (
        WITH RECURSIVE pipelines AS (
            SELECT coalesce($9::text, (SELECT min(pipeline) FROM @jobs WHERE tenant = t.tenant)) AS pipeline
            UNION ALL
            SELECT (SELECT min(pipeline) FROM @jobs WHERE tenant = t.tenant AND pipeline > p.pipeline)
            FROM pipelines AS p WHERE $9::text IS NULL AND p.pipeline IS NOT NULL
        )
        SELECT pipeline FROM pipelines WHERE pipeline IS NOT NULL
    ) AS p, LATERAL (
        SELECT id FROM @jobs
        WHERE tenant = t.tenant AND status = s.status AND pipeline = p.pipeline
            AND id < coalesce($1::uuid, 'ffffffff-ffff-ffff-ffff-ffffffffffff')
            AND id >= coalesce($2::uuid, '00000000-0000-0000-0000-000000000000')
            AND id < coalesce($3::uuid, 'ffffffff-ffff-ffff-ffff-ffffffffffff')
            AND ($4::float8 IS NULL OR created_at >= @moment($4)) AND ($5::float8 IS NULL OR created_at < @moment($5))
        ORDER BY id DESC LIMIT $6
    ) AS walk
    ORDER BY walk.id DESC LIMIT $6
) AS found JOIN @jobs AS job USING (id) ORDER BY job.id DESC;

-- name: count_all
-- By the same walks as above, of which no more rows are looked at than agreed, whether they match or not. {order}: ASC
-- or DESC, in which those come first that are sure to match: ids say the time only roughly.
SELECT count(*) AS seen, count(*) FILTER (
    WHERE NOT is_purging
    AND ($3::float8 IS NULL OR created_at >= @moment($3)) AND ($4::float8 IS NULL OR created_at < @moment($4))
) AS fitting
FROM (
    SELECT created_at, is_purging FROM @jobs
    WHERE id >= coalesce($1::uuid, '00000000-0000-0000-0000-000000000000')
        AND id < coalesce($2::uuid, 'ffffffff-ffff-ffff-ffff-ffffffffffff')
    ORDER BY id {order} LIMIT $5
) AS walk;

-- name: count_of_user
WITH RECURSIVE tenants AS (
    SELECT coalesce($6::text, (SELECT min(tenant) FROM @jobs)) AS tenant
    UNION ALL
    SELECT (SELECT min(tenant) FROM @jobs WHERE tenant > t.tenant)
    FROM tenants AS t WHERE $6::text IS NULL AND t.tenant IS NOT NULL
)
SELECT count(*) AS seen, count(*) FILTER (
    WHERE NOT is_purging AND ($9::text IS NULL OR pipeline = $9)
    AND ($3::float8 IS NULL OR created_at >= @moment($3)) AND ($4::float8 IS NULL OR created_at < @moment($4))
) AS fitting
FROM (
    SELECT walk.* FROM tenants AS t, unnest($7::text[]) AS s (status), LATERAL (
        SELECT pipeline, created_at, is_purging FROM @jobs
        WHERE tenant = t.tenant AND status = s.status AND user_id = $8
            AND id >= coalesce($1::uuid, '00000000-0000-0000-0000-000000000000')
            AND id < coalesce($2::uuid, 'ffffffff-ffff-ffff-ffff-ffffffffffff')
        ORDER BY id {order} LIMIT $5
    ) AS walk
    LIMIT $5
) AS seen;

-- name: count_of_pipelines
WITH RECURSIVE tenants AS (
    SELECT coalesce($6::text, (SELECT min(tenant) FROM @jobs)) AS tenant
    UNION ALL
    SELECT (SELECT min(tenant) FROM @jobs WHERE tenant > t.tenant)
    FROM tenants AS t WHERE $6::text IS NULL AND t.tenant IS NOT NULL
)
SELECT count(*) AS seen, count(*) FILTER (
    WHERE NOT is_purging
    AND ($3::float8 IS NULL OR created_at >= @moment($3)) AND ($4::float8 IS NULL OR created_at < @moment($4))
) AS fitting
FROM (
    SELECT walk.* FROM tenants AS t, unnest($7::text[]) AS s (status), LATERAL (
        WITH RECURSIVE pipelines AS (
            SELECT coalesce($8::text, (SELECT min(pipeline) FROM @jobs WHERE tenant = t.tenant)) AS pipeline
            UNION ALL
            SELECT (SELECT min(pipeline) FROM @jobs WHERE tenant = t.tenant AND pipeline > p.pipeline)
            FROM pipelines AS p WHERE $8::text IS NULL AND p.pipeline IS NOT NULL
        )
        SELECT pipeline FROM pipelines WHERE pipeline IS NOT NULL
    ) AS p, LATERAL (
        SELECT created_at, is_purging FROM @jobs
        WHERE tenant = t.tenant AND status = s.status AND pipeline = p.pipeline
            AND id >= coalesce($1::uuid, '00000000-0000-0000-0000-000000000000')
            AND id < coalesce($2::uuid, 'ffffffff-ffff-ffff-ffff-ffffffffffff')
        ORDER BY id {order} LIMIT $5
    ) AS walk
    LIMIT $5
) AS seen;

-- name: specs
SELECT job_id, body FROM @specs WHERE job_id = ANY($1::uuid[]);

-- name: results
SELECT job_id, stage, element, body FROM @results WHERE job_id = ANY($1::uuid[]) ORDER BY job_id, stage, element;

-- name: stage_results
SELECT r.job_id, r.stage, r.element, r.body FROM unnest($1::uuid[], $2::text[]) AS asked (job_id, stage)
JOIN @results AS r USING (job_id, stage);

-- name: events
-- From the row that contains the number after $2: rows hold ranges, and `last` of the one before is in it.
SELECT body FROM @events WHERE job_id = $1 AND last > $2 ORDER BY n LIMIT $3;

-- name: has_change
SELECT EXISTS (SELECT FROM @events WHERE job_id = $1 AND change_id = $2);

-- name: idempotency_key
SELECT job_id, fingerprint FROM @idempotency WHERE key = $1;

-- name: slot_holder
SELECT job_id FROM @slots WHERE slot = $1;

-- name: slot_line
SELECT job_id FROM (
    SELECT 0 AS n, job_id FROM @slots WHERE slot = $1
    UNION ALL (SELECT n, job_id FROM @slot_line WHERE slot = $1 ORDER BY n LIMIT $2)
) AS line ORDER BY n LIMIT $2;

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
    holds AS (DELETE FROM @holds WHERE job_id = $1),
    waiting AS (DELETE FROM @waiting WHERE job_id = $1),
    progress AS (DELETE FROM @progress WHERE job_id = $1),
    log AS (DELETE FROM @log WHERE job_id = $1),
    log_size AS (DELETE FROM @log_size WHERE job_id = $1),
    samples AS (DELETE FROM @samples WHERE job_id = $1)
SELECT 1;
