-- Purpose: the feed: which jobs have something new, in the order of commits.
-- Callers: store/postgres/watch.py
-- Tables:  feed, trimmed

-- name: snapshot
SELECT pg_current_snapshot()::text;

-- name: look
-- A snapshot says which transactions were over when it was taken. What is new is not a question of numbers, which are
-- given before the commit: it is all that can be seen now and could not be seen then. A row above our own snapshot was
-- written by another server, whose copy this is.
SELECT pg_current_snapshot()::text AS snapshot, EXISTS (
    SELECT FROM @feed
    WHERE xid >= pg_snapshot_xmin($1::text::pg_snapshot) AND xid < pg_snapshot_xmax(pg_current_snapshot())
        AND NOT pg_visible_in_snapshot(xid, $1::text::pg_snapshot)
) AS is_new;

-- name: touched
WITH news AS MATERIALIZED (
    SELECT jobs FROM @feed
    WHERE xid >= pg_snapshot_xmin($1::text::pg_snapshot) AND xid < pg_snapshot_xmax(pg_current_snapshot())
        AND NOT pg_visible_in_snapshot(xid, $1::text::pg_snapshot)
    LIMIT $2 + 1
)
SELECT pg_current_snapshot()::text AS snapshot,
    (SELECT count(*) FROM news) > $2 OR pg_snapshot_xmin($1::text::pg_snapshot) <= (SELECT xid FROM @trimmed)
        AS is_too_much,
    ARRAY(SELECT DISTINCT unnest(jobs) FROM news) AS jobs;

-- name: trim
WITH bounds AS MATERIALIZED (
    SELECT pg_snapshot_xmax(pg_current_snapshot()) AS above,
        (SELECT xid FROM @feed ORDER BY xid DESC OFFSET $1 LIMIT 1) AS cut
), gone AS (
    DELETE FROM @feed USING bounds WHERE xid <= cut OR xid >= above
)
UPDATE @trimmed SET xid = least(above, greatest(xid, coalesce(cut, xid))) FROM bounds;

-- name: is_copy
-- Whether the feed was written by another server, whose copy this is: its numbers are ahead of ours.
SELECT EXISTS (SELECT FROM @feed WHERE xid >= pg_snapshot_xmax(pg_current_snapshot()));

-- name: drop_copied
-- When our numbers reach those of the copy, a commit would find its number taken.
WITH bounds AS MATERIALIZED (
    SELECT pg_snapshot_xmax(pg_current_snapshot()) AS above
), gone AS (
    DELETE FROM @feed USING bounds WHERE xid >= above
)
UPDATE @trimmed SET xid = least(above, xid) FROM bounds;

-- name: notify
SELECT pg_notify($1, $2);
