-- Purpose: guards and effects of a job's commit, one change at a time.
-- Callers: store/sqlite/commit.py
-- Tables:  jobs, plans, specs, leases, ready, delayed, slots, slot_line, usage, idempotency, results, progress, events

-- name: keep_plan
INSERT OR IGNORE INTO plans (fingerprint, body) VALUES (?, ?);

-- name: add_job
INSERT INTO jobs (
    id, tenant, user, client, pipeline, plan, priority, created_at, trace_id, slot, version, lineage,
    updated_at, status, not_before, started_at, completed_at, deadline_at, purge_at, is_purging, is_stopping,
    has_litter, state
) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?);

-- name: add_new_job
-- The same, and nothing where there is such a job.
INSERT INTO jobs (
    id, tenant, user, client, pipeline, plan, priority, created_at, trace_id, slot, version, lineage,
    updated_at, status, not_before, started_at, completed_at, deadline_at, purge_at, is_purging, is_stopping,
    has_litter, state
) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT DO NOTHING;

-- name: move_job
-- {moved}: the columns that have another value, each with a comma behind it. SQLite rewrites every index whose column is
-- named, whether or not its value is new. The version and the lineage are compared here and nowhere else: whoever
-- decided on another job than this writes nothing.
UPDATE jobs SET {moved} version = ?, lineage = ?, updated_at = ?, state = ?
WHERE id = ? AND version = ? AND lineage = ?;

-- name: keep_spec
INSERT INTO specs (job_id, idempotency_key, body) VALUES (?, ?, ?);

-- name: add_events
INSERT INTO events (job_id, n, last, change_id, body) VALUES (?, ?, ?, ?, ?);

-- name: put_ready
INSERT OR IGNORE INTO ready (queue, kind, rank, job_id, stage, element) VALUES (?, ?, ?, ?, ?, ?);

-- name: put_delayed
INSERT OR IGNORE INTO delayed (queue, kind, rank, job_id, stage, element, not_before, queued_at, share)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?);

-- name: lease
SELECT token, until FROM leases WHERE job_id = ? AND stage = ? AND element = ?;

-- name: grant
-- One that is left of an attempt which the job does not know is replaced.
INSERT OR REPLACE INTO leases (job_id, stage, element, token, worker, until) VALUES (?, ?, ?, ?, ?, ?);

-- name: end_lease
DELETE FROM leases WHERE job_id = ? AND stage = ? AND element = ? AND token = ?;

-- name: drop_lease
DELETE FROM leases WHERE job_id = ? AND stage = ? AND element = ?;

-- name: keep_result
INSERT OR REPLACE INTO results VALUES (?, ?, ?, ?);

-- name: is_ready
SELECT 1 FROM ready WHERE (queue, kind, rank, job_id, stage, element) = (?, ?, ?, ?, ?, ?);

-- name: first_ready
SELECT rank, job_id FROM ready WHERE queue = ? AND kind = ? ORDER BY rank, job_id LIMIT 1;

-- name: delayed_until
SELECT queue, kind, rank, job_id FROM delayed WHERE not_before <= ? LIMIT ?;

-- name: drop_ready
DELETE FROM ready WHERE (queue, kind, rank, job_id, stage, element) = (?, ?, ?, ?, ?, ?);

-- name: drop_delayed
DELETE FROM delayed WHERE not_before = ?
    AND (queue, kind, rank, job_id, stage, element) = (?, ?, ?, ?, ?, ?);

-- name: job_of_key
SELECT job_id, fingerprint FROM idempotency WHERE key = ?;

-- name: holder
SELECT job_id FROM slots WHERE slot = ?;

-- name: take_slot
INSERT OR REPLACE INTO slots VALUES (?, ?);

-- name: free_slot
DELETE FROM slots WHERE slot = ?;

-- name: join_line
-- Behind all who wait: one writer at a time.
INSERT INTO slot_line
VALUES (?1, (SELECT coalesce(max(n), 0) + 1 FROM slot_line WHERE slot = ?1), ?2, ?3);

-- name: first_in_line
SELECT job_id, due FROM slot_line WHERE slot = ? ORDER BY n LIMIT 1;

-- name: leave_line
DELETE FROM slot_line WHERE slot = ? AND job_id = ?;

-- name: usage
SELECT jobs, bytes FROM usage WHERE tenant = ?;

-- name: count_usage
INSERT INTO usage (tenant, jobs, bytes) VALUES (?, ?, ?)
ON CONFLICT (tenant) DO UPDATE SET jobs = max(0, jobs + excluded.jobs), bytes = max(0, bytes + excluded.bytes);

-- name: remember_key
INSERT INTO idempotency VALUES (?, ?, ?);

-- name: drop_results
DELETE FROM results WHERE job_id = ? AND stage = ?;

-- name: drop_progress
DELETE FROM progress WHERE job_id = ? AND stage = ?;

-- name: keep_change
-- A change without events has a number that no event has.
INSERT INTO events VALUES (?, ?, 0, ?, '[]');
