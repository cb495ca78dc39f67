-- Purpose: the queue: find what is most urgent and start it, count what is ready, and keep leases.
-- Callers: store/postgres/claim.py
-- Tables:  due, delayed, leases, jobs, specs, results, events, feed, waiting, news,
--          wakes

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
), turns AS (
    INSERT INTO @waiting (job_id, stage, element, key, most, queue, kind, share, rank, cost, uses)
    SELECT job_id, stage, element, '', 0, queue, kind, turn ->> 0, (turn ->> 2)::int8, (turn ->> 1)::float8, turn -> 3
    FROM promoted WHERE turn IS NOT NULL ON CONFLICT DO NOTHING
), news AS (
    INSERT INTO @news (key, queue, kind, share, cost)
    SELECT '', queue, kind, turn ->> 0, (turn ->> 1)::float8 FROM promoted WHERE turn ->> 0 <> ''
)
INSERT INTO @due SELECT queue, kind, rank, job_id, stage, element FROM promoted WHERE turn IS NULL ON CONFLICT DO NOTHING;

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
        EXISTS (SELECT FROM @delayed WHERE not_before <= (SELECT coalesce($5, @now()))) OR
        (SELECT EXISTS (SELECT FROM @news) OR EXISTS (SELECT FROM @wakes WHERE at < (SELECT coalesce($5, @now())))
            OR EXISTS (SELECT FROM @wakes WHERE at > (SELECT coalesce($5, @now()) + 7200))
            OR CASE WHEN EXISTS (SELECT FROM @waiting WHERE key = '') THEN EXISTS (
                SELECT FROM @waiting
                WHERE key = '' AND most = 0 AND queue = ANY($1::text[]) AND kind = ANY($4::text[])
            ) ELSE false END) AS has_late
    FROM (SELECT count(*) AS walked FROM walked) AS c LEFT JOIN taken AS t ON true
) AS picked;

-- name: start
-- Like `pick`, and starts what was prepared for it by `starts.py`, if the job is as it was then: this is a whole
-- transaction. Only those jobs and entries are locked, and none if something delayed, or with limits or turns, may be next. Entries are never
-- updated, so they are found again by their place. The row of a task that was not started has no token.
-- $5 the time or null, $6 tokens, $7 bytes of each, $8 worker, $9 the same as JSON, $10 seconds of a lease, $11 now, $12 its
-- bytes, $13 its text, $14 the newest state known here, $15 plans known here, $16 channel and $17 name of the notification
-- or null.
WITH late AS MATERIALIZED (
    SELECT EXISTS (SELECT FROM @delayed WHERE not_before <= (SELECT coalesce($5, @now()))) OR
        (SELECT EXISTS (SELECT FROM @news) OR EXISTS (SELECT FROM @wakes WHERE at < (SELECT coalesce($5, @now())))
            OR EXISTS (SELECT FROM @wakes WHERE at > (SELECT coalesce($5, @now()) + 7200))
            OR CASE WHEN EXISTS (SELECT FROM @waiting WHERE key = '') THEN EXISTS (
                SELECT FROM @waiting
                WHERE key = '' AND most = 0 AND queue = ANY($1::text[]) AND kind = ANY($4::text[])
            ) ELSE false END) AS has_late
), found AS MATERIALIZED (
    SELECT each.*, w.queue, late.has_late FROM late
    CROSS JOIN unnest($1::text[], $2::int4[], $3::int4[]) AS w (queue, most, page)
    CROSS JOIN LATERAL (
        WITH walked AS MATERIALIZED (
            SELECT e.* FROM unnest($4::text[]) AS k (kind)
            CROSS JOIN LATERAL (
                SELECT d.kind, d.rank, d.job_id, d.stage, d.element, d.start, d.ctid AS place FROM @due AS d
                WHERE d.queue = w.queue AND d.kind = k.kind
                ORDER BY d.rank, d.job_id, d.stage, d.element LIMIT w.page
            ) AS e
            ORDER BY e.rank, e.job_id, e.stage, e.element LIMIT w.page
        ), taken AS MATERIALIZED (
            SELECT job.*, e.kind, e.rank, e.stage, e.element, e.start, e.place FROM walked AS e
            CROSS JOIN LATERAL (
                SELECT id, tenant, user_id, client, plan, priority, trace_id, slot, status, version, is_purging,
                    has_litter, state, lineage
                FROM @jobs WHERE id = e.job_id AND e.start IS NULL
                UNION ALL
                SELECT ours.* FROM (
                    SELECT id, tenant, user_id, client, plan, priority, trace_id, slot, status, version, is_purging,
                        has_litter, state, lineage
                    FROM @jobs WHERE id = e.job_id AND e.start IS NOT NULL AND NOT late.has_late
                    FOR NO KEY UPDATE SKIP LOCKED
                ) AS ours
                CROSS JOIN LATERAL (SELECT FROM @due WHERE ctid = e.place FOR UPDATE SKIP LOCKED) AS entry
            ) AS job
            LIMIT w.most
        )
        SELECT t.*, (SELECT body FROM @specs WHERE job_id = t.id) AS spec, c.walked
        FROM (SELECT count(*) AS walked FROM walked) AS c LEFT JOIN taken AS t ON true
    ) AS each
), cut AS MATERIALIZED (
    SELECT *, string_to_array(start, E'\n') AS piece, row_number() OVER () AS n FROM found
), judged AS MATERIALIZED (
    SELECT *, coalesce(version = 1 AND piece[1]::int4 <= $14::int4 AND plan = ANY($15::text[])
        AND substr(state, 57) = convert_to(piece[6], 'UTF8'), false) AS is_ours
    FROM cut
), begun AS MATERIALIZED (
    SELECT *, hashtextextended(token, lineage) & 4294967295 AS next,
        CASE WHEN $11::float8 + nullif(piece[3], '')::float8 <= piece[2]::float8
            THEN $11::float8 + piece[3]::float8 ELSE piece[2]::float8 END AS deadline
    FROM judged, rtrim(convert_from(substr($6::bytea, ((n - 1) * $7::int4)::int4 + 1, $7::int4), 'UTF8')) AS token
    WHERE is_ours
), done AS MATERIALIZED (
    SELECT *, substr(state, 1, 16) || $12::bytea || substr(state, 25, 8) || $12::bytea || @double(deadline)
        || substr(state, 49, 8)
        || convert_to(piece[7] || '"' || token || '",' || $13::text || piece[8] || next || piece[9], 'UTF8') AS new_state
    FROM begun
), moved AS (
    UPDATE @jobs AS job
    SET (status, version, lineage, started_at, updated_at, deadline_at, state)
        = ROW('running', 2, d.next, @moment($11), @moment($11), @moment(d.deadline), d.new_state)
    FROM done AS d WHERE job.id = d.id AND job.version = 1 RETURNING 1
), gone AS (
    DELETE FROM @due AS e USING done AS d WHERE e.ctid = d.place RETURNING 1
), leased AS (
    INSERT INTO @leases SELECT id, stage, element, token, $8::text, coalesce($5, @now()) + $10::float8 FROM done
    ON CONFLICT (job_id, stage, element) DO UPDATE
    SET (token, worker, until) = ROW(excluded.token, excluded.worker, excluded.until)
), said AS (
    INSERT INTO @events
    SELECT id, piece[4]::int4, piece[5]::int4, '',
        convert_to(piece[10] || $13::text || piece[11] || $13::text || piece[12] || $9::text || piece[13], 'UTF8')
    FROM done
), fed AS (
    INSERT INTO @feed SELECT pg_current_xact_id(), array_agg(id) FROM done HAVING count(*) > 0
), told AS MATERIALIZED (
    SELECT pg_notify($16::text, $17::text || ' ' || pg_current_xact_id()::text) FROM done
    WHERE $16::text IS NOT NULL LIMIT 1
), checked AS MATERIALIZED (
    SELECT @now() AS now, (SELECT count(*) FROM told) AS told, @expect((SELECT count(*) FROM done) = ALL (
        ARRAY[(SELECT count(*) FROM moved), (SELECT count(*) FROM gone)]))
)
SELECT id, tenant, user_id, client, plan, priority, trace_id, slot, 'running' AS status, 2 AS version, is_purging,
    has_litter, new_state AS state, spec, queue, kind, rank, stage, element, walked, has_late, token, now
FROM done, checked
UNION ALL
SELECT id, tenant, user_id, client, plan, priority, trace_id, slot, status, version, is_purging,
    has_litter, state, spec, queue, kind, rank, stage, element, walked, has_late, NULL, now
FROM judged, checked WHERE NOT is_ours;

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
SELECT k.queue, sum(n.count + m.count)::int8 AS count FROM unnest($1::text[], $2::text[]) AS k (queue, kind)
CROSS JOIN LATERAL (
    SELECT count(*) FROM (SELECT FROM @due AS d WHERE d.queue = k.queue AND d.kind = k.kind LIMIT $3) AS few
) AS n
CROSS JOIN LATERAL (
    SELECT count(*) FROM (
        SELECT FROM @waiting AS w WHERE w.key = '' AND w.most = 0 AND w.queue = k.queue AND w.kind = k.kind LIMIT $3
    ) AS few
) AS m
GROUP BY k.queue;
