-- Purpose: questions about jobs, and the purge. None reads more rows than it returns, give or take a few.
-- Callers: store/sqlite/reads.py
-- Tables:  jobs, plans, specs, results, events, idempotency, slots, slot_line; the purge: all that a job has

-- name: plan
SELECT body FROM plans WHERE fingerprint = ?;

-- name: job
SELECT id, tenant, user, client, plan, priority, trace_id, slot, status, version, is_purging, has_litter,
    created_at, not_before, started_at, completed_at, updated_at, deadline_at, purge_at, state
FROM jobs WHERE id = ?;

-- name: expired
SELECT id, tenant, user, client, plan, priority, trace_id, slot, status, version, is_purging, has_litter,
    created_at, not_before, started_at, completed_at, updated_at, deadline_at, purge_at, state
FROM jobs WHERE deadline_at <= ? AND NOT is_stopping ORDER BY deadline_at;

-- name: purging
SELECT id, tenant, user, client, plan, priority, trace_id, slot, status, version, is_purging, has_litter,
    created_at, not_before, started_at, completed_at, updated_at, deadline_at, purge_at, state
FROM jobs WHERE is_purging ORDER BY id;

-- name: purgeable
SELECT id, tenant, user, client, plan, priority, trace_id, slot, status, version, is_purging, has_litter,
    created_at, not_before, started_at, completed_at, updated_at, deadline_at, purge_at, state
FROM jobs WHERE purge_at <= ? AND NOT is_purging ORDER BY purge_at;

-- name: littered
SELECT id, tenant, user, client, plan, priority, trace_id, slot, status, version, is_purging, has_litter,
    created_at, not_before, started_at, completed_at, updated_at, deadline_at, purge_at, state
FROM jobs WHERE has_litter AND completed_at IS NOT NULL AND NOT is_purging ORDER BY id;

-- name: find
-- The pieces below make one walk of an index; {where} is one of `all`, `of_user` and `of_pipeline`, and the bounds that
-- are given. A filter takes as many walks as it has combinations of tenant, pipeline and status.
SELECT id FROM jobs WHERE {where} ORDER BY id DESC LIMIT ?;

-- name: count
SELECT count(*), count(*) FILTER (WHERE {fits}) FROM (
    SELECT pipeline, created_at, is_purging FROM jobs WHERE {where} ORDER BY id {order} LIMIT ?
);

-- name: all
TRUE;

-- name: of_user
tenant = ? AND user = ? AND status = ?;

-- name: of_pipeline
tenant = ? AND pipeline = ? AND status = ?;

-- name: with_pipeline
pipeline = ?;

-- name: not_purging
NOT is_purging;

-- name: before
id < ?;

-- name: id_from
id >= ?;

-- name: id_until
id < ?;

-- name: created_from
created_at >= ?;

-- name: created_until
created_at < ?;

-- name: next_tenant
SELECT min(tenant) FROM jobs INDEXED BY jobs_by_kind WHERE tenant > ?;

-- name: next_pipeline
SELECT min(pipeline) FROM jobs INDEXED BY jobs_by_kind WHERE tenant = ? AND pipeline > ?;

-- name: specs
SELECT job_id, body FROM specs WHERE job_id = ?;

-- name: results
SELECT job_id, stage, element, body FROM results WHERE job_id = ? ORDER BY stage, element;

-- name: events
-- From the row that contains the number after the second value: rows hold ranges, and `last` of the one before is in it.
SELECT body FROM events WHERE job_id = ? AND last > ? ORDER BY n LIMIT ?;

-- name: change
SELECT 1 FROM events WHERE job_id = ? AND change_id = ?;

-- name: job_of_key
SELECT job_id, fingerprint FROM idempotency WHERE key = ?;

-- name: holder
SELECT job_id FROM slots WHERE slot = ?;

-- name: line
SELECT job_id FROM (
    SELECT 0 AS n, job_id FROM slots WHERE slot = ?1
    UNION ALL SELECT n, job_id FROM slot_line WHERE slot = ?1
) ORDER BY n LIMIT ?2;

-- name: known
SELECT id FROM jobs WHERE id IN (SELECT value FROM json_each(?));

-- name: erase_job
DELETE FROM jobs WHERE id = ? AND is_purging;

-- name: erase_key
DELETE FROM idempotency WHERE key = (SELECT idempotency_key FROM specs WHERE job_id = ?);

-- name: erase_rest
-- A statement for each table, each with the id of the job.
DELETE FROM specs WHERE job_id = ?;
DELETE FROM results WHERE job_id = ?;
DELETE FROM events WHERE job_id = ?;
DELETE FROM leases WHERE job_id = ?;
DELETE FROM progress WHERE job_id = ?;
DELETE FROM log WHERE job_id = ?;
DELETE FROM log_size WHERE job_id = ?;
DELETE FROM samples WHERE job_id = ?;
DELETE FROM holds WHERE job_id = ?;
