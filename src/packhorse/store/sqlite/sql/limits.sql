-- Purpose: count limits, park and wake tasks, and give shares their turns.
-- Callers: store/sqlite/limits.py
-- Tables:  limits, holds, starts, waiting, lanes, shares, wakes, leases, ready

-- name: values
SELECT name, most FROM limits;

-- name: set
INSERT OR REPLACE INTO limits (name, most) VALUES (?, ?);

-- name: unset
DELETE FROM limits WHERE name = ?;

-- name: hold
INSERT OR REPLACE INTO holds (job_id, stage, element, key, since) VALUES (?, ?, ?, ?, ?);

-- name: let_go
DELETE FROM holds WHERE job_id = ? AND stage = ? AND element = ?;

-- name: held
SELECT count(*) FROM holds WHERE key = ?;

-- name: holders
SELECT h.job_id, h.stage, h.element, coalesce(worker, ''), since FROM holds AS h
LEFT JOIN leases AS l ON (l.job_id, l.stage, l.element) = (h.job_id, h.stage, h.element)
WHERE key = ? ORDER BY since, h.job_id LIMIT ?;

-- name: add_start
INSERT INTO starts (key, at) VALUES (?, ?);

-- name: drop_starts
-- A few more than are added, so that a log never grows and no start waits for a long cleaning.
DELETE FROM starts WHERE rowid IN (SELECT rowid FROM starts WHERE key = ? AND at < ? LIMIT 10);

-- name: trim_starts
DELETE FROM starts WHERE rowid IN (SELECT rowid FROM starts WHERE at < ? LIMIT 10000);

-- name: pull_back
UPDATE starts SET at = ? WHERE key = ? AND at > ?;

-- name: started
SELECT count(*), min(at) FROM starts WHERE key = ? AND at >= ?;

-- name: put_waiting
INSERT OR IGNORE INTO waiting (key, most, queue, kind, share, rank, job_id, stage, element, cost)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?);

-- name: take_waiting
DELETE FROM waiting WHERE job_id = ? AND stage = ? AND element = ? RETURNING key, most, queue, kind, share;

-- name: is_next
SELECT 1 FROM waiting WHERE job_id = ? AND stage = ? AND element = ? AND key = '';

-- name: has_waiting
SELECT 1 FROM waiting WHERE key = ? AND most = ? AND queue = ? AND kind = ? AND share = ? LIMIT 1;

-- name: first_waiting
SELECT rank, job_id, stage, element, cost FROM waiting
WHERE key = ? AND most = ? AND queue = ? AND kind = ? AND share = ?
ORDER BY rank, job_id, stage, element LIMIT ?;

-- name: count_waiting
SELECT count(*) FROM (SELECT 1 FROM waiting WHERE key = ? LIMIT ?);

-- name: count_next
SELECT count(*) FROM (SELECT 1 FROM waiting WHERE key = '' AND most = 0 AND queue = ? AND kind = ? LIMIT ?);

-- name: has_lane
SELECT 1 FROM lanes WHERE key = ? AND queue = ? AND share = ? AND most = ? AND kind = ?;

-- name: add_lane
INSERT OR IGNORE INTO lanes (key, most, queue, kind, pass, share) VALUES (?, ?, ?, ?, ?, ?);

-- name: drop_lane
DELETE FROM lanes WHERE key = ? AND queue = ? AND share = ? AND most = ? AND kind = ?;

-- name: is_active
SELECT 1 FROM lanes WHERE key = ? AND queue = ? AND share = ? LIMIT 1;

-- name: move_lanes
UPDATE lanes SET pass = ? WHERE key = ? AND queue = ? AND share = ?;

-- name: lanes
SELECT pass, share FROM lanes WHERE key = ? AND most = ? AND queue = ? AND kind = ? ORDER BY pass, share;

-- name: next_group
SELECT most, queue, kind FROM lanes WHERE key = ? AND (most, queue, kind) > (?, ?, ?)
ORDER BY most, queue, kind LIMIT 1;

-- name: is_used
SELECT 1 FROM lanes LIMIT 1;

-- name: is_parked
SELECT 1 FROM lanes WHERE key = ? LIMIT 1;

-- name: pass_
SELECT pass FROM shares WHERE key = ? AND queue = ? AND share = ?;

-- name: set_pass
INSERT OR REPLACE INTO shares (key, queue, share, pass) VALUES (?, ?, ?, ?);

-- name: trim_shares
-- What is behind the time of its queue would begin there anyway; so would one whose queue has no time yet.
DELETE FROM shares AS old WHERE share <> '' AND pass <= (
    SELECT pass FROM shares AS time WHERE time.key = old.key AND time.queue = old.queue AND time.share = ''
) AND NOT EXISTS (
    SELECT 1 FROM lanes WHERE lanes.key = old.key AND lanes.queue = old.queue AND lanes.share = old.share
);

-- name: trim_times
-- Of a key under which nothing is parked.
DELETE FROM shares AS old WHERE key <> '' AND NOT EXISTS (SELECT 1 FROM lanes WHERE lanes.key = old.key);

-- name: add_ready
INSERT OR IGNORE INTO ready (queue, kind, rank, job_id, stage, element) VALUES (?, ?, ?, ?, ?, ?);

-- name: due_wakes
SELECT key FROM wakes WHERE at < ? OR at > ? LIMIT ?;

-- name: wake_at
INSERT INTO wakes (key, at) VALUES (?, ?) ON CONFLICT (key) DO UPDATE SET at = min(at, excluded.at);

-- name: set_wake
INSERT OR REPLACE INTO wakes (key, at) VALUES (?, ?);

-- name: drop_wake
DELETE FROM wakes WHERE key = ?;

-- name: wake_named
-- A key is the name, or the name, an equals sign and what is counted apart. In the order of bytes, > follows =.
INSERT OR REPLACE INTO wakes (key, at)
SELECT DISTINCT key, 0 FROM lanes WHERE key = ?1 OR (key >= ?1 || '=' AND key < ?1 || '>');

-- name: wake_all
INSERT OR REPLACE INTO wakes (key, at) SELECT DISTINCT key, 0 FROM lanes WHERE key > '';

-- name: next_key
-- The next key of each table behind this one, by one step of an index each.
SELECT min(key) FROM (
    SELECT (SELECT min(key) FROM holds WHERE key > ?1) AS key
    UNION ALL SELECT (SELECT min(key) FROM starts WHERE key > ?1)
    UNION ALL SELECT (SELECT min(key) FROM lanes WHERE key > ?1)
);

-- name: is_held
SELECT 1 FROM holds WHERE key = ? LIMIT 1;

-- name: is_counted
SELECT 1 FROM starts WHERE key = ? LIMIT 1;
