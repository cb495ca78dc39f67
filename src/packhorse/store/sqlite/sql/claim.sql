-- Purpose: find what is most urgent in the queues, and count what is ready.
-- Callers: store/sqlite/claim.py
-- Tables:  ready, delayed, jobs, specs, results, leases

-- name: over
SELECT not_before, queue, kind, rank, job_id, stage, element, share FROM delayed
WHERE not_before <= ? ORDER BY not_before LIMIT ?;

-- name: drop_over
DELETE FROM delayed WHERE (not_before, queue, kind, rank, job_id, stage, element) = (?, ?, ?, ?, ?, ?, ?);

-- name: promote
INSERT OR IGNORE INTO ready (queue, kind, rank, job_id, stage, element) VALUES (?, ?, ?, ?, ?, ?);

-- name: walk
SELECT queue, kind, rank, job_id, stage, element FROM ready
WHERE queue = ? AND kind = ? AND (rank, job_id, stage, element) > (?, ?, ?, ?)
ORDER BY rank, job_id, stage, element LIMIT ?;

-- name: drop_ready
DELETE FROM ready WHERE (queue, kind, rank, job_id, stage, element) = (?, ?, ?, ?, ?, ?);

-- name: job_and_spec
SELECT id, tenant, user, client, plan, priority, trace_id, slot, status, version, is_purging, has_litter,
    created_at, not_before, started_at, completed_at, updated_at, deadline_at, purge_at, state, body
FROM jobs LEFT JOIN specs ON job_id = id WHERE id = ?;

-- name: upstream
SELECT body FROM results WHERE job_id = ? AND stage = ? ORDER BY element;

-- name: delayed_before
-- What was delayed until now and not claimed since: little, unless nobody serves the queue.
SELECT count(*) FROM delayed
WHERE not_before <= ? AND queue = ? AND (rank, job_id, stage, element) < (?, ?, ?, ?);

-- name: ready_before
SELECT count(*) FROM (
    SELECT 1 FROM ready WHERE queue = ? AND kind = ? AND (rank, job_id, stage, element) < (?, ?, ?, ?) LIMIT ?
);

-- name: next_kind
SELECT kind FROM ready WHERE queue = ? AND kind > ? ORDER BY kind LIMIT 1;

-- name: ready
SELECT count(*) FROM (SELECT 1 FROM ready WHERE queue = ? AND kind = ? LIMIT ?);

-- name: renew
UPDATE leases SET until = ? WHERE job_id = ? AND stage = ? AND element = ? AND token = ?;

-- name: is_stopping
SELECT jobs.is_stopping FROM leases JOIN jobs ON jobs.id = leases.job_id
WHERE job_id = ? AND stage = ? AND element = ? AND token = ?;

-- name: overdue
SELECT job_id, stage, element FROM leases WHERE until <= ? ORDER BY until;

-- name: leased_after
SELECT job_id, stage, element FROM leases WHERE until > ? ORDER BY until DESC;

-- name: queued_after
SELECT job_id, stage, element FROM delayed WHERE queued_at > ? ORDER BY queued_at DESC;

-- name: held_by
SELECT job_id, stage, element FROM leases WHERE worker = ? ORDER BY until;
