-- Purpose: failures, and their groups, which are counted in the transaction that adds or removes a failure.
-- Callers: store/sqlite/failures.py
-- Tables:  failures, failure_groups, failure_users

-- name: find
-- {conditions}: those of the filter, from the pieces `with_…`.
SELECT body, status, settled, is_counted FROM failures WHERE tenant = ? {conditions} ORDER BY id DESC LIMIT ?;

-- name: with_fingerprint
AND fingerprint = ?;

-- name: with_job_id
AND job_id = ?;

-- name: with_user
AND user = ?;

-- name: with_pipeline
AND pipeline = ?;

-- name: with_code
AND code = ?;

-- name: with_status
AND status = ?;

-- name: with_schedule
AND schedule = ?;

-- name: with_before
AND id < ?;

-- name: with_since
AND id >= ?;

-- name: with_until
AND id < ?;

-- name: of_id
SELECT body, status, settled, is_counted FROM failures WHERE id = ?;

-- name: of_job
SELECT body, status, settled, is_counted FROM failures WHERE job_id = ? AND status = ?;

-- name: oldest
SELECT body, status, settled, is_counted FROM failures WHERE id < ? ORDER BY id LIMIT ?;

-- name: has_older
SELECT 1 FROM failures WHERE id < ? LIMIT 1;

-- name: add
INSERT INTO failures (
    id, tenant, fingerprint, job_id, user, pipeline, code, schedule, status, is_counted, settled, body
) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?);

-- name: settle
UPDATE failures SET status = ?, settled = ? WHERE id = ?;

-- name: drop
DELETE FROM failures WHERE id = ?;

-- name: user
SELECT count FROM failure_users WHERE tenant = ? AND fingerprint = ? AND user = ?;

-- name: put_user
INSERT INTO failure_users (tenant, fingerprint, user, count) VALUES (?, ?, ?, ?)
ON CONFLICT DO UPDATE SET count = excluded.count;

-- name: drop_user
DELETE FROM failure_users WHERE tenant = ? AND fingerprint = ? AND user = ?;

-- name: group
SELECT body FROM failure_groups WHERE tenant = ? AND fingerprint = ?;

-- name: groups
SELECT body FROM failure_groups WHERE tenant = ? AND seen < ? ORDER BY seen DESC LIMIT ?;

-- name: times
-- From the index alone.
SELECT id FROM failures WHERE tenant = ? AND fingerprint = ? AND id >= ? ORDER BY id DESC LIMIT ?;

-- name: put_group
INSERT INTO failure_groups (tenant, fingerprint, seen, body) VALUES (?, ?, ?, ?)
ON CONFLICT DO UPDATE SET seen = excluded.seen, body = excluded.body;

-- name: drop_group
DELETE FROM failure_groups WHERE tenant = ? AND fingerprint = ?;
