-- Purpose: progress, log lines and samples of running attempts.
-- Callers: store/sqlite/reads.py
-- Tables:  progress, log, log_size, samples; reads jobs and leases

-- name: report
-- The peak is the furthest point of this run, so that the whole never goes backwards when an attempt starts over.
-- The lease in the SELECT drops the report of a superseded attempt.
INSERT INTO progress (job_id, stage, element, run, at, current, total, message, peak)
SELECT job_id, stage, element, ?, ?, ?, ?, ?, ? FROM leases
WHERE job_id = ? AND stage = ? AND element = ? AND token = ?
ON CONFLICT DO UPDATE SET run = excluded.run, at = excluded.at, current = excluded.current, total = excluded.total,
    message = excluded.message,
    peak = CASE WHEN run = excluded.run THEN max(peak, excluded.peak) ELSE excluded.peak END;

-- name: keep_size
INSERT INTO log_size (job_id, last, bytes) VALUES (?, ?, ?)
ON CONFLICT DO UPDATE SET last = excluded.last, bytes = excluded.bytes;

-- name: has_job
SELECT 1 FROM jobs WHERE id = ?;

-- name: log_size
SELECT last, bytes FROM log_size WHERE job_id = ?;

-- name: append_line
INSERT INTO log VALUES (?, ?, ?, ?, ?, ?, ?);

-- name: line_lengths
SELECT n, octet_length(text) FROM log WHERE job_id = ? ORDER BY n;

-- name: drop_lines
DELETE FROM log WHERE job_id = ? AND n <= ?;

-- name: add_sample
INSERT OR REPLACE INTO samples VALUES (?, ?, ?, ?, ?, ?);

-- name: trim_samples
-- By the whole key: parallel tasks are sampled at one time, and going by time alone would drop all of them.
DELETE FROM samples WHERE job_id = ? AND (at, stage, element) <= (
    SELECT at, stage, element FROM samples WHERE job_id = ?
    ORDER BY at DESC, stage DESC, element DESC LIMIT 1 OFFSET ?
);

-- name: progress
SELECT job_id, stage, element, run, at, current, total, message, peak FROM progress WHERE job_id = ?;

-- name: lines
SELECT n, stage, element, attempt, at, text FROM log
WHERE job_id = ?1 AND n > ?2 AND (?4 IS NULL OR stage = ?4) ORDER BY n LIMIT ?3;

-- name: newest_lines
SELECT n, stage, element, attempt, at, text FROM log
WHERE job_id = ?1 AND n > ?2 AND (?4 IS NULL OR stage = ?4) ORDER BY n DESC LIMIT ?3;

-- name: samples
SELECT stage, element, at, cpu, memory FROM samples WHERE job_id = ? ORDER BY at, stage, element;
