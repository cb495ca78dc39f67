-- Purpose: counts over time, heads of queues, and how many jobs there are.
-- Callers: store/sqlite/counters.py
-- Tables:  tallies; reads jobs and ready

-- name: add
INSERT INTO tallies (step, at, queue, pipeline, name, count) VALUES (?, ?, ?, ?, ?, ?)
ON CONFLICT DO UPDATE SET count = count + excluded.count;

-- name: counts
SELECT at, pipeline, queue, name, count FROM tallies
WHERE step = ? AND at >= ? AND (?3 IS NULL OR queue = ?3) AND (?4 IS NULL OR pipeline = ?4) ORDER BY at;

-- name: head
SELECT rank, job_id, stage, element FROM ready WHERE queue = ? AND kind = ? AND rank > ?
ORDER BY rank, job_id, stage, element LIMIT 1;

-- name: pair
SELECT tenant, pipeline FROM jobs WHERE (tenant, pipeline) > (?, ?) ORDER BY tenant, pipeline LIMIT 1;

-- name: count
SELECT count(*) FROM (SELECT 1 FROM jobs WHERE tenant = ? AND pipeline = ? AND status = ? LIMIT ?);

-- name: trim
DELETE FROM tallies WHERE step = ? AND at < ?;
