-- Purpose: single facts about jobs.
-- Callers: store/sqlite/store.py
-- Tables:  events, idempotency, slots

-- name: change
SELECT 1 FROM events WHERE job_id = ? AND change_id = ?;

-- name: job_of_key
SELECT job_id, fingerprint FROM idempotency WHERE key = ?;

-- name: holder
SELECT job_id FROM slots WHERE slot = ?;
