-- Purpose: guards and effects of a job's commit, one change at a time.
-- Callers: store/sqlite/commit.py, store/sqlite/claim.py
-- Tables:  leases, ready, delayed, slots, idempotency, results, progress, events

-- name: lease
SELECT token, until FROM leases WHERE job_id = ? AND stage = ? AND element = ?;

-- name: grant
INSERT INTO leases (job_id, stage, element, token, worker, until) VALUES (?, ?, ?, ?, ?, ?);

-- name: end_lease
DELETE FROM leases WHERE job_id = ? AND stage = ? AND element = ? AND token = ?;

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

-- name: release_slot
DELETE FROM slots WHERE slot = ? AND job_id = ?;

-- name: remember_key
INSERT INTO idempotency VALUES (?, ?, ?);

-- name: drop_results
DELETE FROM results WHERE job_id = ? AND stage = ?;

-- name: drop_progress
DELETE FROM progress WHERE job_id = ? AND stage = ?;

-- name: keep_change
-- A change without events has a number that no event has.
INSERT INTO events VALUES (?, ?, 0, ?, '[]');
