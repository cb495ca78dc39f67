-- Purpose: count limits, park and wake tasks, and give shares their turns. What a claim does by itself is in functions of
--          the server, in migrations/0002.sql.
-- Callers: store/postgres/limits.py, claim.py, batch.py
-- Tables:  regulator, limits, holds, starts, waiting, lanes, shares, news, leases

-- name: lock
-- Before any other lock: whoever counts, parks or gives turns does so one after the other.
SELECT FROM @regulator WHERE id = 1 FOR UPDATE;

-- name: is_regulated
-- Whether a claim of these queues and kinds has limits or turns to see to.
SELECT EXISTS (SELECT FROM @news) OR EXISTS (SELECT FROM @wakes WHERE at < (SELECT coalesce($3, @now())))
    OR EXISTS (SELECT FROM @wakes WHERE at > (SELECT coalesce($3, @now()) + 7200))
    OR EXISTS (SELECT FROM @delayed WHERE not_before <= (SELECT coalesce($3, @now())) AND turn IS NOT NULL)
    OR EXISTS (
        SELECT FROM @waiting WHERE key = '' AND most = 0 AND queue = ANY($1::text[]) AND kind = ANY($2::text[])
    );

-- name: see_to_news
SELECT @see_to_news(coalesce($1, @now()));

-- name: choose
SELECT * FROM @choose($1, $2::text[], $3::int4, $4::text[], coalesce($5, @now()));

-- name: chosen_jobs
-- In a statement of its own: it sees what they are now that they are locked.
SELECT job.id, job.tenant, job.user_id, job.client, job.plan, job.priority, job.trace_id, job.slot, job.status,
    job.version, job.is_purging, job.has_litter, job.state, s.body AS spec
FROM @jobs AS job LEFT JOIN @specs AS s ON s.job_id = job.id WHERE job.id = ANY($1::uuid[]);

-- name: give_back
SELECT @give_back($1, $2, $3, $4, $5::int4, $6::jsonb, coalesce($7, @now()));

-- name: used
SELECT k.key, @used(k.key, @window_of(k.key), coalesce($2, @now())) AS used,
    (SELECT most FROM @limits WHERE name = split_part(k.key, '=', 1)) AS most
FROM unnest($1::text[]) AS k (key);

-- name: lock_waiting
SELECT job_id, stage, element
FROM unnest($1::uuid[], $2::text[], $3::int4[]) AS asked (job_id, stage, element)
JOIN @waiting AS w USING (job_id, stage, element)
WHERE w.key = '' ORDER BY job_id, stage, element FOR UPDATE OF w;

-- name: set
INSERT INTO @limits (name, most) VALUES ($1, $2) ON CONFLICT (name) DO UPDATE SET most = excluded.most;

-- name: unset
DELETE FROM @limits WHERE name = $1;

-- name: wake_named
-- A key is the name, or the name, an equals sign and what is counted apart. In the order of bytes, > follows =.
INSERT INTO @news (key) SELECT DISTINCT key FROM @lanes
WHERE key = $1 OR (key >= $1 || '=' AND key < $1 || '>') ORDER BY key;

-- name: next_key
-- The next key of each table behind this one, by one step of an index each.
SELECT min(key COLLATE "C") FROM (
    SELECT (SELECT key FROM @holds WHERE key > $1 ORDER BY key LIMIT 1) AS key
    UNION ALL SELECT (SELECT key FROM @starts WHERE key > $1 ORDER BY key LIMIT 1)
    UNION ALL SELECT (SELECT key FROM @lanes WHERE key > $1 AND key > '' ORDER BY key LIMIT 1)
) AS next;

-- name: is_used
SELECT EXISTS (SELECT FROM @holds WHERE key = $1) OR EXISTS (SELECT FROM @starts WHERE key = $1)
    OR EXISTS (SELECT FROM @lanes WHERE key = $1);

-- name: state
SELECT (SELECT most FROM @limits WHERE name = split_part($1, '=', 1)) AS most,
    CASE WHEN @window_of($1) = 0 THEN (SELECT count(*) FROM @holds WHERE key = $1)
        ELSE (SELECT count(*) FROM @starts WHERE key = $1 AND at >= coalesce($2, @now()) - @window_of($1)) END AS used,
    (SELECT count(*) FROM (SELECT FROM @waiting WHERE key = $1 LIMIT $3) AS few) AS parked,
    (SELECT min(at) FROM @starts WHERE key = $1 AND at >= coalesce($2, @now()) - @window_of($1))
        + @window_of($1) AS free_at;

-- name: holders
SELECT h.job_id, h.stage, h.element, coalesce(l.worker, '') AS worker, h.since FROM @holds AS h
LEFT JOIN @leases AS l ON (l.job_id, l.stage, l.element) = (h.job_id, h.stage, h.element)
WHERE h.key = $1 ORDER BY h.since, h.job_id LIMIT $2;

-- name: trim_starts
DELETE FROM @starts WHERE ctid = ANY(ARRAY(
    SELECT ctid FROM @starts WHERE at < coalesce($1, @now()) - 3600 LIMIT 10000
));

-- name: trim_shares
-- What is behind the time of its queue would begin there anyway. Of a key under which nothing is parked, all may go.
DELETE FROM @shares AS old WHERE (share <> '' AND pass <= (
    SELECT time.pass FROM @shares AS time WHERE time.key = old.key AND time.queue = old.queue AND time.share = ''
) AND NOT EXISTS (
    SELECT FROM @lanes AS l WHERE l.key = old.key AND l.queue = old.queue AND l.share = old.share
)) OR (key <> '' AND NOT EXISTS (SELECT FROM @lanes AS l WHERE l.key = old.key));
