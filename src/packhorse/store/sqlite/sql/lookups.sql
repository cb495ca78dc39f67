-- Purpose: single facts about jobs.
-- Callers: store/sqlite/store.py
-- Tables:  events, idempotency, jobs, samples, slots

-- name: change
SELECT 1 FROM events WHERE job_id = ? AND change_id = ?;

-- name: job_of_key
SELECT job_id, fingerprint FROM idempotency WHERE key = ?;

-- name: holder
SELECT job_id FROM slots WHERE slot = ?;

-- name: known
SELECT id FROM jobs WHERE id IN (SELECT value FROM json_each(?));

-- name: samples
SELECT stage, element, at, cpu, memory FROM samples WHERE job_id = ? ORDER BY at, stage, element;
