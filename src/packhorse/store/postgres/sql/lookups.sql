-- Purpose: what the guards of a group of changes are about, read under locks before it is written.
-- Callers: store/postgres/batch.py
-- Tables:  jobs, leases, due, delayed, slots, slot_line, usage, idempotency

-- name: lock_jobs
-- In the order of ids, like everybody: whoever waits for a lock holds none that a holder of it waits for. The key is
-- not locked, for it never changes: who appends to the log of a job need not wait for us.
SELECT id, version, lineage FROM @jobs WHERE id = ANY($1::uuid[]) ORDER BY id FOR NO KEY UPDATE;

-- name: lock_leases
SELECT lease.job_id, lease.stage, lease.element, lease.token, lease.until <= coalesce($4, @now()) AS is_over
FROM unnest($1::uuid[], $2::text[], $3::int4[]) AS asked (job_id, stage, element)
JOIN @leases AS lease USING (job_id, stage, element)
ORDER BY lease.job_id, lease.stage, lease.element FOR UPDATE OF lease;

-- name: lock_entries
SELECT queue, kind, rank, job_id, stage, element
FROM unnest($1::text[], $2::text[], $3::int4[], $4::uuid[], $5::text[], $6::int4[])
    AS asked (queue, kind, rank, job_id, stage, element)
JOIN @due AS due USING (queue, kind, rank, job_id, stage, element)
ORDER BY job_id, stage, element FOR UPDATE OF due;

-- name: heads
-- The most urgent of each kind that is ready, and of what was delayed until now. Nothing is locked: it is for fairness.
SELECT rank, job_id FROM unnest($2::text[]) AS k (kind)
CROSS JOIN LATERAL (
    SELECT rank, job_id FROM @due WHERE queue = $1 AND kind = k.kind ORDER BY rank, job_id LIMIT 1
) AS head
UNION ALL (
    SELECT rank, job_id FROM (
        SELECT * FROM @delayed WHERE not_before <= (SELECT coalesce($3, @now())) ORDER BY not_before LIMIT 1000
    ) AS over
    WHERE queue = $1 AND kind = ANY($2::text[])
)
ORDER BY rank, job_id LIMIT 1;

-- name: take_slots
-- A name that is free cannot be locked. It is taken, which waits for whoever is just taking it, and given back if the
-- change is refused. Of one that is taken the update changes nothing: it is locked, and its holder told.
INSERT INTO @slots AS held (slot, job_id) SELECT * FROM unnest($1::text[], $2::uuid[]) AS asked ORDER BY 1
ON CONFLICT (slot) DO UPDATE SET job_id = held.job_id
RETURNING slot, job_id, has_line, xmax = 0 AS was_free;

-- name: lines
-- The first who wait for these slots, whose rows we hold: so nobody else joins or leaves.
SELECT asked.slot, first.job_id, first.due FROM unnest($1::text[]) AS asked (slot)
CROSS JOIN LATERAL (
    SELECT n, job_id, due FROM @slot_line AS line WHERE line.slot = asked.slot ORDER BY n LIMIT $2
) AS first
ORDER BY asked.slot, first.n;

-- name: lock_usage
-- A row that is not there is made, so that it can be locked.
INSERT INTO @usage AS used (tenant) SELECT * FROM unnest($1::text[]) AS asked ORDER BY 1
ON CONFLICT (tenant) DO UPDATE SET jobs = used.jobs
RETURNING tenant, jobs, bytes;

-- name: take_keys
INSERT INTO @idempotency AS used (key, job_id, fingerprint)
SELECT * FROM unnest($1::text[], $2::uuid[], $3::text[]) AS asked ORDER BY 1
ON CONFLICT (key) DO UPDATE SET job_id = used.job_id
RETURNING key, job_id, fingerprint, xmax = 0 AS was_free;
