-- Purpose: records, their index entries, and logs: everything a store keeps beside jobs. The parts of a write are in
--          parts.sql.
-- Callers: store/postgres/records.py
-- Tables:  records, record_index, logs, log_topics, log_entries; reads jobs and leases for guards

-- name: lock
SELECT r.kind, r.id, r.stamp FROM unnest($1::text[], $2::text[]) AS n (kind, id) JOIN @records AS r USING (kind, id)
ORDER BY r.kind, r.id FOR UPDATE OF r;

-- name: reserve
-- A record that is not there cannot be locked. It is added and dropped again, and who wants to add it waits for us.
INSERT INTO @records AS r SELECT n.kind, n.id, '', '', 0, '', NULL, 0, NULL
FROM unnest($1::text[], $2::text[]) AS n (kind, id) ORDER BY n.kind COLLATE "C", n.id COLLATE "C"
ON CONFLICT (kind, id) DO UPDATE SET stamp = r.stamp
RETURNING kind, id, stamp;

-- name: unreserve
DELETE FROM @records AS r USING unnest($1::text[], $2::text[]) AS n (kind, id)
WHERE (r.kind, r.id) = (n.kind, n.id) AND r.stamp = 0;

-- name: lock_jobs
-- A job that is locked is not erased meanwhile: its records are there when it goes, and go too.
SELECT id FROM @jobs WHERE id = ANY($1::uuid[]) ORDER BY id FOR KEY SHARE;

-- name: busy_workers
SELECT DISTINCT worker FROM @leases WHERE worker = ANY($1::text[]);

-- name: fetch
SELECT r.kind, r.id, r.body, r.note, r.stamp, r.due_at, r.attempts FROM @records AS r
WHERE kind = $1 AND id = ANY($2::text[]);

-- name: has_due
-- The time asked for once: a condition that may change from row to row is looked at row by row.
SELECT 1 FROM @records WHERE kind = $2 AND lane = $3 AND due_at <= (SELECT coalesce($1, @now())) LIMIT 1;

-- name: take
-- Locked rows belong to another taker. MATERIALIZED, because a LIMIT that is run again takes too many.
WITH due AS MATERIALIZED (
    SELECT id, due_at FROM @records
    WHERE kind = $2 AND lane = $3 AND due_at <= (SELECT coalesce($1, @now()))
    ORDER BY due_at, id LIMIT $4 FOR UPDATE SKIP LOCKED
)
UPDATE @records AS r SET attempts = attempts + 1, due_at = coalesce($1, @now()) + $5, stamp = stamp + 1 FROM due
WHERE r.kind = $2 AND r.id = due.id
RETURNING r.kind, r.id, r.body, r.note, r.stamp, r.due_at, r.attempts, due.due_at AS was_due;

-- name: append
-- Who appends holds the row of the log's last number until its commit, so numbers rise in the order of commits. Entries
-- of a topic are numbered without gaps, so what is too many is found by its number: no entries are counted.
WITH numbered AS (
    INSERT INTO @logs AS l VALUES ($1, cardinality($2::bytea[]))
    ON CONFLICT (log) DO UPDATE SET last = l.last + excluded.last RETURNING last
), given AS (
    SELECT last - cardinality($2::bytea[]) + e.place AS n, e.topic, e.at, e.body,
        row_number() OVER (PARTITION BY e.topic ORDER BY e.place DESC) AS from_end
    FROM numbered, unnest($2::bytea[], $3::text[], $4::float8[]) WITH ORDINALITY AS e (body, topic, at, place)
), advanced AS (
    INSERT INTO @log_topics AS t SELECT $1, topic, count(*) FROM given GROUP BY topic ORDER BY topic COLLATE "C"
    ON CONFLICT (log, topic) DO UPDATE SET last = t.last + excluded.last RETURNING topic, last
), added AS (
    INSERT INTO @log_entries (log, n, topic, nth, at, body)
    SELECT $1, given.n, given.topic, advanced.last - given.from_end + 1, given.at, given.body
    FROM given JOIN advanced ON advanced.topic = given.topic WHERE given.from_end <= $5
), gone AS (
    SELECT o.n FROM advanced, LATERAL (
        SELECT n, nth FROM @log_entries WHERE log = $1 AND topic = advanced.topic
        ORDER BY n LIMIT cardinality($2::bytea[]) + 100
    ) AS o WHERE o.nth <= advanced.last - $5
    UNION
    SELECT o.n FROM (
        SELECT n, at FROM @log_entries WHERE log = $1 ORDER BY n LIMIT cardinality($2::bytea[]) + 100
    ) AS o WHERE o.at < $6
)
DELETE FROM @log_entries AS e USING gone WHERE e.log = $1 AND e.n = gone.n;

-- name: tail
SELECT body, topic, n, at FROM @log_entries WHERE log = $1 AND n < $2
ORDER BY n DESC LIMIT $3;

-- name: tail_topic
SELECT body, topic, n, at FROM @log_entries WHERE log = $1 AND topic = $4 AND n < $2
ORDER BY n DESC LIMIT $3;

-- name: drop_of_job
DELETE FROM @records WHERE job_id = $1 RETURNING kind, id;

-- name: drop_entries
DELETE FROM @record_index AS e USING unnest($1::text[], $2::text[]) AS n (kind, id)
WHERE (e.kind, e.id) = (n.kind, n.id);

-- name: oldest_after
SELECT r.kind, r.id, r.body, r.note, r.stamp, r.due_at, r.attempts
FROM @record_index AS e JOIN @records AS r USING (kind, id)
WHERE e.kind = $1 AND e.name = $2 AND e.place > $3 ORDER BY e.place, e.id LIMIT $4;

-- name: newest_after
SELECT r.kind, r.id, r.body, r.note, r.stamp, r.due_at, r.attempts
FROM @record_index AS e JOIN @records AS r USING (kind, id)
WHERE e.kind = $1 AND e.name = $2 AND e.place > $3 ORDER BY e.place DESC, e.id DESC LIMIT $4;

-- name: oldest_between
SELECT r.kind, r.id, r.body, r.note, r.stamp, r.due_at, r.attempts
FROM @record_index AS e JOIN @records AS r USING (kind, id)
WHERE e.kind = $1 AND e.name = $2 AND e.place > $3 AND e.place < $5 ORDER BY e.place, e.id LIMIT $4;

-- name: newest_between
SELECT r.kind, r.id, r.body, r.note, r.stamp, r.due_at, r.attempts
FROM @record_index AS e JOIN @records AS r USING (kind, id)
WHERE e.kind = $1 AND e.name = $2 AND e.place > $3 AND e.place < $5 ORDER BY e.place DESC, e.id DESC LIMIT $4;
