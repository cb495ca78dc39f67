-- Purpose: the feed: which jobs have something new, a row for each transaction.
-- Callers: store/sqlite/session.py (announce), store/sqlite/store.py
-- Tables:  feed

-- name: announce
INSERT INTO feed (job_ids) VALUES (?);

-- name: ends
-- Two questions, for each of which one end of the table is enough: min and max in one would read all of it.
SELECT coalesce((SELECT min(seq) FROM feed), 1), coalesce((SELECT max(seq) FROM feed), 0);

-- name: touched
SELECT job_ids FROM feed WHERE seq > ? AND seq <= ?;

-- name: trim
DELETE FROM feed WHERE seq <= (SELECT max(seq) FROM feed) - ?;
