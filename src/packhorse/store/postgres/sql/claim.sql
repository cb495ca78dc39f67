-- Purpose: the queue: find what is most urgent and start it, count what is ready, and keep leases.
-- Callers: store/postgres/claim.py
-- Tables:  due, delayed, leases, jobs, specs, results

-- name: promote
-- The time asked for once: a condition that may change from row to row is looked at row by row, in the whole index.
WITH promoted AS (
    DELETE FROM @delayed AS d USING (
        SELECT not_before, queue, kind, rank, job_id, stage, element FROM @delayed
        WHERE not_before <= (SELECT coalesce($1, @now()))
        ORDER BY not_before LIMIT $2 FOR UPDATE SKIP LOCKED
    ) AS n
    WHERE (d.not_before, d.queue, d.kind, d.rank, d.job_id, d.stage, d.element)
        = (n.not_before, n.queue, n.kind, n.rank, n.job_id, n.stage, n.element)
    RETURNING d.*
)
INSERT INTO @due SELECT queue, kind, rank, job_id, stage, element FROM promoted ON CONFLICT DO NOTHING;

-- name: pick
-- In key order, one walk per kind, each cut short, so entries of a kind this worker lacks can not hide others.
-- What is taken is locked one by one in that order, until there is enough. Locked rows belong to a claim or a commit in
-- flight: they are skipped instead of waited for, the job's as well as the entry's, for a commit that has the job may
-- want the entry next. MATERIALIZED, because the planner may otherwise rerun a LIMIT and claim too many.
SELECT picked.*, w.queue FROM unnest($1::text[], $2::int4[], $3::int4[]) AS w (queue, most, page)
CROSS JOIN LATERAL (
    WITH walked AS MATERIALIZED (
        SELECT e.* FROM unnest($4::text[]) AS k (kind)
        CROSS JOIN LATERAL (
            SELECT d.kind, d.rank, d.job_id, d.stage, d.element FROM @due AS d
            WHERE d.queue = w.queue AND d.kind = k.kind
            ORDER BY d.rank, d.job_id, d.stage, d.element LIMIT w.page
        ) AS e
        ORDER BY e.rank, e.job_id, e.stage, e.element LIMIT w.page
    ), taken AS MATERIALIZED (
        SELECT job.*, e.kind, e.rank, e.stage, e.element FROM walked AS e
        CROSS JOIN LATERAL (
            SELECT id, tenant, user_id, client, plan, priority, trace_id, slot, status, version, is_purging, has_litter,
                state
            FROM @jobs WHERE id = e.job_id FOR NO KEY UPDATE SKIP LOCKED
        ) AS job
        CROSS JOIN LATERAL (
            SELECT FROM @due AS d WHERE (d.queue, d.kind, d.rank, d.job_id, d.stage, d.element)
                = (w.queue, e.kind, e.rank, e.job_id, e.stage, e.element) FOR UPDATE SKIP LOCKED
        ) AS entry
        LIMIT w.most
    )
    SELECT t.*, (SELECT body FROM @specs WHERE job_id = t.id) AS spec, c.walked,
        EXISTS (SELECT FROM @delayed WHERE not_before <= (SELECT coalesce($5, @now()))) AS has_late
    FROM (SELECT count(*) AS walked FROM walked) AS c LEFT JOIN taken AS t ON true
) AS picked;

-- name: look
-- The same without a lock: what is written finds out whether it was there for us.
SELECT picked.*, w.queue FROM unnest($1::text[], $2::int4[], $3::int4[]) AS w (queue, most, page)
CROSS JOIN LATERAL (
    WITH walked AS MATERIALIZED (
        SELECT e.* FROM unnest($4::text[]) AS k (kind)
        CROSS JOIN LATERAL (
            SELECT d.kind, d.rank, d.job_id, d.stage, d.element FROM @due AS d
            WHERE d.queue = w.queue AND d.kind = k.kind
            ORDER BY d.rank, d.job_id, d.stage, d.element LIMIT w.page
        ) AS e
        ORDER BY e.rank, e.job_id, e.stage, e.element LIMIT w.page
    ), taken AS MATERIALIZED (
        SELECT job.*, e.kind, e.rank, e.stage, e.element FROM walked AS e
        CROSS JOIN LATERAL (
            SELECT id, tenant, user_id, client, plan, priority, trace_id, slot, status, version, is_purging, has_litter,
                state
            FROM @jobs WHERE id = e.job_id
        ) AS job
        LIMIT w.most
    )
    SELECT t.*, (SELECT body FROM @specs WHERE job_id = t.id) AS spec, c.walked,
        EXISTS (SELECT FROM @delayed WHERE not_before <= (SELECT coalesce($5, @now()))) AS has_late
    FROM (SELECT count(*) AS walked FROM walked) AS c LEFT JOIN taken AS t ON true
) AS picked;

-- name: forget
-- Jobs that somebody deleted by hand: nothing will ever start their entries, and no walk may lead past them for ever.
DELETE FROM @due AS d USING unnest($1::text[], $2::int4[]) AS w (queue, page)
CROSS JOIN LATERAL (
    SELECT e.* FROM unnest($3::text[]) AS k (kind)
    CROSS JOIN LATERAL (
        SELECT d.kind, d.rank, d.job_id, d.stage, d.element FROM @due AS d
        WHERE d.queue = w.queue AND d.kind = k.kind
        ORDER BY d.rank, d.job_id, d.stage, d.element LIMIT w.page
    ) AS e
    ORDER BY e.rank, e.job_id, e.stage, e.element LIMIT w.page
) AS e
WHERE (d.queue, d.kind, d.rank, d.job_id, d.stage, d.element)
    = (w.queue, e.kind, e.rank, e.job_id, e.stage, e.element)
AND NOT EXISTS (SELECT FROM @jobs WHERE id = e.job_id);

-- name: upstream
SELECT r.job_id, r.stage, r.body FROM unnest($1::uuid[], $2::text[]) AS asked (job_id, stage)
JOIN @results AS r USING (job_id, stage) ORDER BY r.job_id, r.stage, r.element;

-- name: ahead
-- A step from each kind of the queue to the next, and of each no more than are asked for: it may hold a million of one.
WITH RECURSIVE kinds AS (
    (SELECT kind FROM @due WHERE queue = $1 ORDER BY kind LIMIT 1)
    UNION ALL
    SELECT (SELECT d.kind FROM @due AS d WHERE d.queue = $1 AND d.kind > k.kind ORDER BY d.kind LIMIT 1)
    FROM kinds AS k WHERE k.kind IS NOT NULL
), ready AS (
    SELECT 1 FROM kinds AS k CROSS JOIN LATERAL (
        SELECT 1 FROM @due AS d
        WHERE d.queue = $1 AND d.kind = k.kind AND (d.rank, d.job_id, d.stage, d.element) < ($2, $3, $4, $5)
        LIMIT $6
    ) AS before LIMIT $6
), over AS (
    SELECT 1 FROM @delayed AS d WHERE d.not_before <= (SELECT coalesce($7, @now()))
        AND d.queue = $1 AND (d.rank, d.job_id, d.stage, d.element) < ($2, $3, $4, $5)
    LIMIT $6
)
SELECT least($6::int8, (SELECT count(*) FROM ready) + (SELECT count(*) FROM over));

-- name: renew
-- Locked in the order of their keys, like everybody's: a commit that ends some of them does not wait for us in turn.
WITH held AS MATERIALIZED (
    SELECT l.job_id, l.stage, l.element, l.token
    FROM unnest($1::uuid[], $2::text[], $3::int4[], $4::text[]) AS n (job_id, stage, element, token)
    JOIN @leases AS l USING (job_id, stage, element, token)
    ORDER BY l.job_id, l.stage, l.element FOR NO KEY UPDATE OF l
), moved AS (
    UPDATE @leases AS l SET until = coalesce($5, @now()) + $6 FROM held
    WHERE (l.job_id, l.stage, l.element) = (held.job_id, held.stage, held.element)
)
SELECT l.job_id, l.stage, l.element, l.token, job.is_stopping, @now() AS now
FROM held AS l JOIN @jobs AS job ON job.id = l.job_id;

-- name: standing
SELECT l.job_id, l.stage, l.element, l.token, job.is_stopping
FROM unnest($1::uuid[], $2::text[], $3::int4[], $4::text[]) AS n (job_id, stage, element, token)
JOIN @leases AS l USING (job_id, stage, element, token)
JOIN @jobs AS job ON job.id = l.job_id;

-- name: time
-- Asked before `overdue`, which is given the answer.
SELECT coalesce($1::float8, @now());

-- name: overdue
SELECT job.id, job.tenant, job.user_id, job.client, job.plan, job.priority, job.trace_id, job.slot, job.status,
    job.version, job.is_purging, job.has_litter, job.state, l.stage, l.element
FROM @leases AS l JOIN @jobs AS job ON job.id = l.job_id
WHERE until <= $1 ORDER BY l.until LIMIT $2;

-- name: leased_after
SELECT job.id, job.tenant, job.user_id, job.client, job.plan, job.priority, job.trace_id, job.slot, job.status,
    job.version, job.is_purging, job.has_litter, job.state, l.stage, l.element
FROM @leases AS l JOIN @jobs AS job ON job.id = l.job_id
WHERE until > $1 ORDER BY l.until DESC LIMIT $2;

-- name: queued_after
SELECT job.id, job.tenant, job.user_id, job.client, job.plan, job.priority, job.trace_id, job.slot, job.status,
    job.version, job.is_purging, job.has_litter, job.state, d.stage, d.element
FROM @delayed AS d JOIN @jobs AS job ON job.id = d.job_id
WHERE queued_at > $1 ORDER BY d.queued_at DESC LIMIT $2;

-- name: held_by
SELECT job.id, job.tenant, job.user_id, job.client, job.plan, job.priority, job.trace_id, job.slot, job.status,
    job.version, job.is_purging, job.has_litter, job.state, l.stage, l.element
FROM @leases AS l JOIN @jobs AS job ON job.id = l.job_id
WHERE worker = $1::text ORDER BY l.until LIMIT $2;

-- name: ready
SELECT k.queue, sum(n.count)::int8 AS count FROM unnest($1::text[], $2::text[]) AS k (queue, kind)
CROSS JOIN LATERAL (
    SELECT count(*) FROM (SELECT FROM @due AS d WHERE d.queue = k.queue AND d.kind = k.kind LIMIT $3) AS few
) AS n
GROUP BY k.queue;
