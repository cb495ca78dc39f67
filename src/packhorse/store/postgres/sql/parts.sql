-- Purpose: what a write consists of. A commit or a put of records makes one statement of the parts that it needs, each
--          a WITH query under its name. In a part, % stands for the next parameter: a list with a value for each row.
-- Callers: store/postgres/session.py puts them together for batch.py and records.py
-- Tables:  jobs, plans, specs, events, results, leases, due, delayed, slots, slot_line, usage, idempotency, progress, feed,
--          records, record_index, waiting, holds, news

-- name: whole
-- How the parts become one statement. Where a count is not what it must be, `expect` raises, and the server takes back
-- all of it.
WITH {parts} SELECT @now() AS now, @expect({conditions}){answers};

-- name: part
{name} AS ({query});

-- name: condition
({count}) = %::int8;

-- name: count
SELECT count(*) FROM {name};

-- name: answer
, ({query}) AS {name};

-- name: free_jobs
-- What a claim has only looked at: whether it is there, and nobody else is at it. A claim never waits.
SELECT FROM @jobs WHERE id = ANY(%::uuid[]) FOR NO KEY UPDATE SKIP LOCKED;

-- name: free_entries
SELECT d.* FROM unnest(%::text[], %::text[], %::int4[], %::uuid[], %::text[], %::int4[])
    AS n (queue, kind, rank, job_id, stage, element)
JOIN @due AS d USING (queue, kind, rank, job_id, stage, element) FOR UPDATE OF d SKIP LOCKED;

-- name: free_drops
DELETE FROM @due AS d USING free_entries AS n
WHERE (d.queue, d.kind, d.rank, d.job_id, d.stage, d.element)
    = (n.queue, n.kind, n.rank, n.job_id, n.stage, n.element);

-- name: plans
INSERT INTO @plans SELECT * FROM unnest(%::text[], %::bytea[]) AS n ON CONFLICT DO NOTHING;

-- name: added
INSERT INTO @jobs (
    id, tenant, user_id, client, pipeline, plan, priority, trace_id, slot, created_at, status, version, lineage,
    retry_count, not_before, started_at, completed_at, updated_at, deadline_at, purge_at, is_purging, is_stopping,
    has_litter, error_message, state, parameters, result
)
SELECT
    n.id, n.tenant, n.user_id, n.client, n.pipeline, n.plan, n.priority, n.trace_id, n.slot, @moment(n.created_at),
    n.status, n.version, n.lineage, n.retry_count, @moment(n.not_before), @moment(n.started_at),
    @moment(n.completed_at), @moment(n.updated_at), @moment(n.deadline_at), @moment(n.purge_at), n.is_purging,
    n.is_stopping, n.has_litter, n.error_message, n.state, @as_json(n.parameters), @as_json(n.result)
FROM unnest(
    %::uuid[], %::text[], %::text[], %::text[], %::text[], %::text[], %::int4[], %::text[], %::text[], %::float8[],
    %::text[], %::int4[], %::int8[], %::int4[], %::float8[], %::float8[], %::float8[], %::float8[], %::float8[],
    %::float8[], %::bool[], %::bool[], %::bool[], %::text[], %::bytea[], %::text[], %::text[]
) AS n (
    id, tenant, user_id, client, pipeline, plan, priority, trace_id, slot, created_at, status, version, lineage,
    retry_count, not_before, started_at, completed_at, updated_at, deadline_at, purge_at, is_purging, is_stopping,
    has_litter, error_message, state, parameters, result
);

-- name: moved
-- The version and the lineage are compared here and nowhere else: whoever decided on another job than this writes
-- nothing.
UPDATE @jobs AS job SET (
    status, version, lineage, retry_count, not_before, started_at, completed_at, updated_at, deadline_at, purge_at,
    is_purging, is_stopping, has_litter, error_message, state, result
) = ROW(
    n.status, n.version, n.lineage, n.retry_count, @moment(n.not_before), @moment(n.started_at),
    @moment(n.completed_at), @moment(n.updated_at), @moment(n.deadline_at), @moment(n.purge_at), n.is_purging,
    n.is_stopping, n.has_litter, n.error_message, n.state,
    CASE WHEN n.status = 'completed' THEN coalesce(@as_json(n.result), job.result) END
)
FROM unnest(
    %::uuid[], %::int4[], %::int8[], %::text[], %::int4[], %::int8[], %::int4[], %::float8[], %::float8[],
    %::float8[], %::float8[], %::float8[], %::float8[], %::bool[], %::bool[], %::bool[], %::text[], %::bytea[],
    %::text[]
) AS n (
    id, was, was_of, status, version, lineage, retry_count, not_before, started_at, completed_at, updated_at,
    deadline_at, purge_at, is_purging, is_stopping, has_litter, error_message, state, result
)
WHERE job.id = n.id AND job.version = n.was AND job.lineage = n.was_of
RETURNING 1;

-- name: specs
INSERT INTO @specs SELECT * FROM unnest(%::uuid[], %::text[], %::bytea[]) AS n;

-- name: events
INSERT INTO @events SELECT * FROM unnest(%::uuid[], %::int4[], %::int4[], %::text[], %::bytea[]) AS n;

-- name: results
INSERT INTO @results SELECT * FROM unnest(%::uuid[], %::text[], %::int4[], %::bytea[]) AS n
ON CONFLICT (job_id, stage, element) DO UPDATE SET body = excluded.body;

-- name: leases
-- One that is left of an attempt which the job does not know is replaced.
INSERT INTO @leases SELECT n.job_id, n.stage, n.element, n.token, n.worker,
    coalesce(%, @now()) + n.seconds
FROM unnest(%::uuid[], %::text[], %::int4[], %::text[], %::text[], %::float8[])
    AS n (job_id, stage, element, token, worker, seconds)
ON CONFLICT (job_id, stage, element) DO UPDATE
SET (token, worker, until) = ROW(excluded.token, excluded.worker, excluded.until);

-- name: entries
-- By the server's clock, read once: an entry is either in the one table or in the other.
SELECT n.*, n.not_before <= coalesce(%, @now()) AS is_due
FROM unnest(%::text[], %::text[], %::int4[], %::uuid[], %::text[], %::int4[], %::float8[], %::float8[], %::text[])
    AS n (queue, kind, rank, job_id, stage, element, not_before, queued_at, start);

-- name: due
INSERT INTO @due SELECT queue, kind, rank, job_id, stage, element, start FROM entries WHERE is_due
ON CONFLICT DO NOTHING;

-- name: delayed
INSERT INTO @delayed (not_before, queue, kind, rank, job_id, stage, element, queued_at)
SELECT not_before, queue, kind, rank, job_id, stage, element, queued_at FROM entries WHERE NOT is_due
ON CONFLICT DO NOTHING;

-- name: turn_entries
-- Tasks with limits or turns.
SELECT n.*, n.not_before <= coalesce(%, @now()) AS is_due
FROM unnest(%::text[], %::text[], %::int4[], %::uuid[], %::text[], %::int4[], %::float8[], %::float8[], %::text[],
    %::float8[], %::int8[], %::text[])
    AS n (queue, kind, rank, job_id, stage, element, not_before, queued_at, share, cost, place, uses);

-- name: turns
INSERT INTO @waiting (job_id, stage, element, key, most, queue, kind, share, rank, cost, uses)
SELECT job_id, stage, element, '', 0, queue, kind, share, place, cost, uses::jsonb FROM turn_entries WHERE is_due
ON CONFLICT DO NOTHING;

-- name: turn_news
INSERT INTO @news (key, queue, kind, share, cost)
SELECT '', queue, kind, share, cost FROM turn_entries WHERE is_due AND share <> '';

-- name: turn_delayed
INSERT INTO @delayed (not_before, queue, kind, rank, job_id, stage, element, queued_at, turn)
SELECT not_before, queue, kind, rank, job_id, stage, element, queued_at,
    jsonb_build_array(share, cost, place, uses::jsonb)
FROM turn_entries WHERE NOT is_due ON CONFLICT DO NOTHING;

-- name: waiting_drops
DELETE FROM @waiting AS w USING unnest(%::uuid[], %::text[], %::int4[]) AS n (job_id, stage, element)
WHERE (w.job_id, w.stage, w.element) = (n.job_id, n.stage, n.element);

-- name: hold_drops
DELETE FROM @holds AS h USING unnest(%::uuid[], %::text[], %::int4[]) AS n (job_id, stage, element)
WHERE (h.job_id, h.stage, h.element) = (n.job_id, n.stage, n.element);

-- name: room_news
-- Keys that may have room again: the next claim looks what is parked under them.
INSERT INTO @news (key) SELECT key FROM unnest(%::text[]) AS n (key);

-- name: counted
-- Starts that no claim has counted.
SELECT @count_start(n.job_id, n.stage, n.element, n.queue, n.share, n.cost, n.uses::jsonb, coalesce(%, @now()))
FROM unnest(%::uuid[], %::text[], %::int4[], %::text[], %::text[], %::float8[], %::text[])
    AS n (job_id, stage, element, queue, share, cost, uses);

-- name: slots
INSERT INTO @slots AS held SELECT * FROM unnest(%::text[], %::uuid[], %::bool[]) AS n
ON CONFLICT (slot) DO UPDATE SET job_id = excluded.job_id, has_line = held.has_line OR excluded.has_line;

-- name: line_puts
INSERT INTO @slot_line (slot, job_id, due)
SELECT slot, job_id, due FROM unnest(%::text[], %::uuid[], %::bytea[])
    WITH ORDINALITY AS n (slot, job_id, due, place)
ORDER BY place;

-- name: usage_locks
-- In the order of names, like everywhere.
SELECT tenant FROM @usage WHERE tenant = ANY(%::text[]) ORDER BY tenant FOR UPDATE;

-- name: usage
-- A quota is compared with what is there when the row is locked. Where it does not hold, or there is no row yet, the
-- count differs, and the group looks before it writes.
UPDATE @usage AS used SET jobs = greatest(0, used.jobs + n.jobs), bytes = greatest(0, used.bytes + n.bytes)
FROM unnest(%::text[], %::int8[], %::int8[], %::int8[], %::int8[])
    AS n (tenant, jobs, bytes, most_jobs, most_bytes)
JOIN usage_locks USING (tenant)
WHERE used.tenant = n.tenant
AND (n.most_jobs = 0 OR used.jobs + n.jobs <= n.most_jobs)
AND (n.most_bytes = 0 OR used.bytes + n.bytes <= n.most_bytes)
RETURNING 1;

-- name: keys
INSERT INTO @idempotency SELECT * FROM unnest(%::text[], %::uuid[], %::text[]) AS n
ON CONFLICT (key) DO UPDATE SET job_id = excluded.job_id, fingerprint = excluded.fingerprint;

-- name: record_jobs
-- A record is written at the stamp that the statement's snapshot shows, or not at all: index entries that another
-- transaction adds meanwhile would otherwise stay. (A, B) IN (...) IS TRUE is hashed, a plain IN is a nested loop.
SELECT FROM @jobs WHERE id = ANY(%::uuid[]) FOR KEY SHARE;

-- name: record_needs
SELECT r.kind, r.id FROM unnest(%::text[], %::text[]) AS n (kind, id) JOIN @records AS r USING (kind, id)
FOR SHARE OF r;

-- name: record_leases
SELECT FROM @leases WHERE worker = ANY(%::text[]) LIMIT 1;

-- name: record_news
SELECT n.kind, n.id, n.body, ''::bytea AS note, coalesce(r.stamp, 0) + 1 AS stamp, n.lane, n.due_at,
    coalesce(n.attempts, r.attempts, 0) AS attempts, n.job_id
FROM unnest(%::text[], %::text[], %::bytea[], %::int8[], %::text[], %::float8[], %::int4[], %::uuid[])
    AS n (kind, id, body, was, lane, due_at, attempts, job_id)
LEFT JOIN @records AS r ON (r.kind, r.id) = (n.kind, n.id)
WHERE n.was IS NULL OR n.was = coalesce(r.stamp, 0);

-- name: record_puts
INSERT INTO @records AS r (kind, id, body, note, stamp, lane, due_at, attempts, job_id)
SELECT kind, id, body, note, stamp, lane, due_at, attempts, job_id FROM record_news
ON CONFLICT (kind, id) DO UPDATE SET (body, note, stamp, lane, due_at, attempts, job_id)
    = ROW(excluded.body, excluded.note, excluded.stamp, excluded.lane, excluded.due_at, excluded.attempts,
          excluded.job_id)
WHERE r.stamp = excluded.stamp - 1
RETURNING r.kind, r.id, r.stamp;

-- name: record_gone
SELECT n.kind, n.id, n.was, r.stamp FROM unnest(%::text[], %::text[], %::int8[]) AS n (kind, id, was)
JOIN @records AS r USING (kind, id) WHERE n.was IS NULL OR n.was = r.stamp;

-- name: record_drops
DELETE FROM @records AS r USING record_gone AS n WHERE (r.kind, r.id, r.stamp) = (n.kind, n.id, n.stamp)
RETURNING 1;

-- name: index_news
SELECT * FROM unnest(%::text[], %::text[], %::text[], %::text[]) AS n (kind, name, place, id);

-- name: index_drops
DELETE FROM @record_index AS e USING unnest(%::text[], %::text[]) AS n (kind, id)
WHERE (e.kind, e.id) = (n.kind, n.id)
AND (e.kind, e.name, e.place, e.id) NOT IN (SELECT kind, name, place, id FROM index_news);

-- name: index_puts
INSERT INTO @record_index (kind, name, place, id) SELECT kind, name, place, id FROM index_news ON CONFLICT DO NOTHING;

-- name: add_needs
-- New records of a commit: what is there already, or lacks the record it needs, is left out.
SELECT r.kind, r.id FROM unnest(%::text[], %::text[]) AS n (kind, id) JOIN @records AS r USING (kind, id)
FOR SHARE OF r;

-- name: record_adds
INSERT INTO @records (kind, id, body, note, stamp, lane, due_at, attempts, job_id)
SELECT n.kind, n.id, n.body, '', 1, n.lane, n.due_at, coalesce(n.attempts, 0), n.job_id
FROM unnest(%::text[], %::text[], %::bytea[], %::text[], %::float8[], %::int4[], %::uuid[], %::text[],
    %::text[]) AS n (kind, id, body, lane, due_at, attempts, job_id, need_kind, need_id)
WHERE n.need_id IS NULL OR ((n.need_kind, n.need_id) IN (SELECT kind, id FROM add_needs)) IS TRUE
ON CONFLICT DO NOTHING RETURNING kind, id;

-- name: add_entries
INSERT INTO @record_index (kind, name, place, id)
SELECT kind, name, place, id FROM unnest(%::text[], %::text[], %::text[], %::text[]) AS n (kind, name, place, id)
WHERE ((n.kind, n.id) IN (SELECT kind, id FROM record_adds)) IS TRUE ON CONFLICT DO NOTHING;

-- name: record_noted
SELECT n.kind, n.id, n.note, r.stamp FROM unnest(%::text[], %::text[], %::bytea[]) AS n (kind, id, note)
JOIN @records AS r USING (kind, id);

-- name: record_notes
UPDATE @records AS r SET note = n.note, due_at = NULL, stamp = r.stamp + 1 FROM record_noted AS n
WHERE (r.kind, r.id, r.stamp) = (n.kind, n.id, n.stamp)
RETURNING 1;

-- name: note_news
SELECT * FROM unnest(%::text[], %::text[], %::text[], %::text[]) AS n (kind, name, place, id);

-- name: note_drops
DELETE FROM @record_index AS e USING record_noted AS n WHERE (e.kind, e.id) = (n.kind, n.id)
AND (e.kind, e.name, e.place, e.id) NOT IN (SELECT kind, name, place, id FROM note_news);

-- name: note_puts
INSERT INTO @record_index (kind, name, place, id) SELECT kind, name, place, id FROM note_news AS n
WHERE ((n.kind, n.id) IN (SELECT kind, id FROM record_noted)) IS TRUE ON CONFLICT DO NOTHING;

-- name: woken
-- Nothing about any job, but who waits for anything at all is woken.
INSERT INTO @feed VALUES (pg_current_xact_id(), '{}');

-- name: feed
INSERT INTO @feed VALUES (pg_current_xact_id(), %::uuid[]);

-- name: due_drops
DELETE FROM @due AS d
USING unnest(%::text[], %::text[], %::int4[], %::uuid[], %::text[], %::int4[])
    AS n (queue, kind, rank, job_id, stage, element)
WHERE (d.queue, d.kind, d.rank, d.job_id, d.stage, d.element)
    = (n.queue, n.kind, n.rank, n.job_id, n.stage, n.element);

-- name: delayed_drops
DELETE FROM @delayed AS d
USING unnest(%::float8[], %::text[], %::text[], %::int4[], %::uuid[], %::text[], %::int4[])
    AS n (not_before, queue, kind, rank, job_id, stage, element)
WHERE (d.not_before, d.queue, d.kind, d.rank, d.job_id, d.stage, d.element)
    = (n.not_before, n.queue, n.kind, n.rank, n.job_id, n.stage, n.element);

-- name: lease_drops
-- With the token that the change was told to hold; null where the lease was looked at before.
DELETE FROM @leases AS l USING unnest(%::uuid[], %::text[], %::int4[], %::text[]) AS n (job_id, stage, element, token)
WHERE (l.job_id, l.stage, l.element) = (n.job_id, n.stage, n.element) AND l.token = coalesce(n.token, l.token)
RETURNING n.token;

-- name: told
-- Delivered with the commit. The number says whose, so that who listens need not look what is new.
SELECT pg_notify(%::text, %::text || ' ' || pg_current_xact_id()::text)::text AS told;

-- name: slot_drops
DELETE FROM @slots AS s USING unnest(%::text[], %::uuid[]) AS n (slot, job_id)
WHERE (s.slot, s.job_id) = (n.slot, n.job_id);

-- name: free_slots
-- Of a slot that nobody has looked at. One that may have a line is left, the count differs, and the group looks.
DELETE FROM @slots AS s USING unnest(%::text[], %::uuid[]) AS n (slot, job_id)
WHERE (s.slot, s.job_id) = (n.slot, n.job_id) AND NOT s.has_line
RETURNING 1;

-- name: line_drops
DELETE FROM @slot_line AS l USING unnest(%::text[], %::uuid[]) AS n (slot, job_id)
WHERE (l.slot, l.job_id) = (n.slot, n.job_id);

-- name: key_drops
DELETE FROM @idempotency WHERE key = ANY(%::text[]);

-- name: result_drops
DELETE FROM @results AS r USING unnest(%::uuid[], %::text[]) AS n (job_id, stage)
WHERE (r.job_id, r.stage) = (n.job_id, n.stage);

-- name: progress_drops
DELETE FROM @progress AS p USING unnest(%::uuid[], %::text[]) AS n (job_id, stage)
WHERE (p.job_id, p.stage) = (n.job_id, n.stage);

-- name: count_lease_drops
-- What the conditions of a statement compare, where it is not simply the number of rows that a part has.
SELECT count(token) FROM lease_drops;

-- name: count_record_drops
-- Those without an expected stamp may be missing.
(SELECT count(*) FROM record_drops) - (SELECT count(*) FROM record_gone WHERE was IS NULL);

-- name: count_record_notes
(SELECT count(*) FROM record_notes) - (SELECT count(*) FROM record_noted);

-- name: answer_told
-- What a statement returns of a part. A notification goes out only if its row is asked for.
SELECT told FROM told;

-- name: answer_record_puts
SELECT array_agg(stamp ORDER BY kind, id) FROM record_puts;

-- name: answer_counted
SELECT count(*) FROM counted;
