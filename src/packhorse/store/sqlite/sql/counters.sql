-- Purpose: counters of rates and quotas, by bucket of time. They are in a file of their own.
-- Callers: store/sqlite/counters.py
-- Tables:  counters

-- name: schema
-- A row per counter: what was spent, by bucket. Of no use to anybody after `until`.
CREATE TABLE IF NOT EXISTS counters (
    name TEXT NOT NULL,
    window REAL NOT NULL,
    until REAL NOT NULL,
    buckets BLOB NOT NULL,
    PRIMARY KEY (name, window)
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS counters_by_end ON counters (until);

-- name: counter
SELECT buckets FROM counters WHERE name = ? AND window = ?;

-- name: keep
INSERT INTO counters (name, window, until, buckets) VALUES (?, ?, ?, ?)
ON CONFLICT DO UPDATE SET until = excluded.until, buckets = excluded.buckets;

-- name: trim
DELETE FROM counters WHERE until <= ?;
