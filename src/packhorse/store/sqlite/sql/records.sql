-- Purpose: records, their index entries, and logs: everything a store keeps beside jobs.
-- Callers: store/sqlite/records.py
-- Tables:  records, record_index, logs, log_topics, log_entries; reads jobs and leases for guards

-- name: stamp
SELECT stamp FROM records WHERE kind = ? AND id = ?;

-- name: has_job
SELECT 1 FROM jobs WHERE id = ?;

-- name: has_lease
SELECT 1 FROM leases WHERE worker = ? LIMIT 1;

-- name: put
-- Attempts stay where none are given (?6 is NULL).
INSERT INTO records (kind, id, body, lane, due_at, attempts, job_id)
VALUES (?1, ?2, ?3, ?4, ?5, coalesce(?6, 0), ?7)
ON CONFLICT DO UPDATE SET
    body = excluded.body, note = x'', stamp = stamp + 1, lane = excluded.lane, due_at = excluded.due_at,
    attempts = coalesce(?6, attempts), job_id = excluded.job_id
RETURNING stamp;

-- name: note
UPDATE records SET note = ?, due_at = NULL, stamp = stamp + 1 WHERE kind = ? AND id = ?;

-- name: drop
DELETE FROM records WHERE kind = ? AND id = ?;

-- name: entries
SELECT name, place FROM record_index WHERE kind = ? AND id = ?;

-- name: list_at
INSERT OR IGNORE INTO record_index (kind, id, name, place) VALUES (?, ?, ?, ?);

-- name: unlist_at
DELETE FROM record_index WHERE kind = ? AND id = ? AND name = ? AND place = ?;

-- name: unlist
DELETE FROM record_index WHERE kind = ? AND id = ?;

-- name: of_job
SELECT kind, id FROM records WHERE job_id = ?;

-- name: fetch
SELECT kind, id, body, note, stamp, due_at, attempts FROM records WHERE kind = ? AND id = ?;

-- name: oldest_after
SELECT r.kind, r.id, body, note, stamp, due_at, attempts
FROM record_index AS i CROSS JOIN records AS r ON r.kind = i.kind AND r.id = i.id
WHERE i.kind = ? AND i.name = ? AND i.place > ? ORDER BY i.place, i.id LIMIT ?;

-- name: oldest_between
SELECT r.kind, r.id, body, note, stamp, due_at, attempts
FROM record_index AS i CROSS JOIN records AS r ON r.kind = i.kind AND r.id = i.id
WHERE i.kind = ? AND i.name = ? AND i.place > ? AND i.place < ? ORDER BY i.place, i.id LIMIT ?;

-- name: newest_after
SELECT r.kind, r.id, body, note, stamp, due_at, attempts
FROM record_index AS i CROSS JOIN records AS r ON r.kind = i.kind AND r.id = i.id
WHERE i.kind = ? AND i.name = ? AND i.place > ? ORDER BY i.place DESC, i.id DESC LIMIT ?;

-- name: newest_between
SELECT r.kind, r.id, body, note, stamp, due_at, attempts
FROM record_index AS i CROSS JOIN records AS r ON r.kind = i.kind AND r.id = i.id
WHERE i.kind = ? AND i.name = ? AND i.place > ? AND i.place < ? ORDER BY i.place DESC, i.id DESC LIMIT ?;

-- name: due
SELECT id FROM records WHERE kind = ? AND lane = ? AND due_at <= ? ORDER BY due_at, id LIMIT ?;

-- name: take
UPDATE records SET attempts = attempts + 1, stamp = stamp + 1, due_at = ? WHERE kind = ? AND id = ?
RETURNING kind, id, body, note, stamp, due_at, attempts;

-- name: advance_log
INSERT INTO logs (log, last) VALUES (?, ?) ON CONFLICT DO UPDATE SET last = last + excluded.last RETURNING last;

-- name: advance_topic
INSERT INTO log_topics (log, topic, last) VALUES (?, ?, ?)
ON CONFLICT DO UPDATE SET last = last + excluded.last RETURNING last;

-- name: append
INSERT INTO log_entries (log, n, topic, nth, at, body) VALUES (?, ?, ?, ?, ?, ?);

-- name: trim_topic
-- Entries of a topic are numbered without gaps, so what is too many is found by its number: no entries are counted.
DELETE FROM log_entries WHERE log = ?1 AND nth <= ?4
AND n IN (SELECT n FROM log_entries WHERE log = ?1 AND topic = ?2 ORDER BY n LIMIT ?3);

-- name: trim_old
DELETE FROM log_entries WHERE log = ?1 AND at < ?3
AND n IN (SELECT n FROM log_entries WHERE log = ?1 ORDER BY n LIMIT ?2);

-- name: tail
SELECT body, topic, n, at FROM log_entries WHERE log = ? AND n < ? ORDER BY n DESC LIMIT ?;

-- name: tail_topic
SELECT body, topic, n, at FROM log_entries WHERE log = ? AND topic = ? AND n < ? ORDER BY n DESC LIMIT ?;
