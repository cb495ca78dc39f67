-- Purpose: failures, and their groups, which are counted in the transaction that brings or takes a failure.
-- Callers: store/postgres/failures.py
-- Tables:  failures, failure_groups, failure_users

-- name: find
-- {conditions}: those of the filter, from the pieces `with_…`. A % stands for the next parameter.
SELECT body, status, settled, is_counted FROM @failures WHERE tenant = % {conditions} ORDER BY id DESC LIMIT %;

-- name: with_fingerprint
AND fingerprint = %;

-- name: with_job_id
AND job_id = %;

-- name: with_user
AND user_id = %;

-- name: with_pipeline
AND pipeline = %;

-- name: with_code
AND code = %;

-- name: with_status
AND status = %;

-- name: with_schedule
AND schedule = %;

-- name: with_before
AND id < %;

-- name: with_since
AND id >= %;

-- name: with_until
AND id < %;

-- name: of_jobs
SELECT body, status, settled, is_counted FROM @failures WHERE job_id = ANY($1::uuid[]) ORDER BY id;

-- name: of_ids
SELECT body, status, settled, is_counted FROM @failures WHERE id = ANY($1::text[]) ORDER BY id;

-- name: hold_groups
-- A group that is not there cannot be locked, so it is made, and dropped again if nothing comes of it.
INSERT INTO @failure_groups AS g SELECT n.tenant, n.fingerprint, '', ''
FROM unnest($1::text[], $2::text[]) AS n (tenant, fingerprint) ORDER BY n.tenant COLLATE "C", n.fingerprint COLLATE "C"
ON CONFLICT (tenant, fingerprint) DO UPDATE SET seen = g.seen
RETURNING body;

-- name: users
SELECT u.tenant, u.fingerprint, u.user_id, u.count
FROM unnest($1::text[], $2::text[], $3::text[]) AS n (tenant, fingerprint, user_id)
JOIN @failure_users AS u USING (tenant, fingerprint, user_id);

-- name: add
INSERT INTO @failures SELECT * FROM unnest($1::text[], $2::text[], $3::text[], $4::uuid[], $5::text[], $6::text[],
    $7::text[], $8::text[], $9::text[], $10::boolean[], $11::bytea[], $12::bytea[]) AS n;

-- name: settle
UPDATE @failures AS f SET status = n.status, settled = n.settled
FROM unnest($1::text[], $2::text[], $3::bytea[]) AS n (id, status, settled) WHERE f.id = n.id;

-- name: put_users
INSERT INTO @failure_users SELECT * FROM unnest($1::text[], $2::text[], $3::text[], $4::int4[]) AS n
ON CONFLICT (tenant, fingerprint, user_id) DO UPDATE SET count = excluded.count;

-- name: drop_users
DELETE FROM @failure_users AS u USING unnest($1::text[], $2::text[], $3::text[]) AS n (tenant, fingerprint, user_id)
WHERE (u.tenant, u.fingerprint, u.user_id) = (n.tenant, n.fingerprint, n.user_id);

-- name: put_groups
UPDATE @failure_groups AS g SET seen = n.seen, body = n.body
FROM unnest($1::text[], $2::text[], $3::text[], $4::bytea[]) AS n (tenant, fingerprint, seen, body)
WHERE (g.tenant, g.fingerprint) = (n.tenant, n.fingerprint);

-- name: drop_groups
DELETE FROM @failure_groups AS g USING unnest($1::text[], $2::text[]) AS n (tenant, fingerprint)
WHERE (g.tenant, g.fingerprint) = (n.tenant, n.fingerprint);

-- name: groups
SELECT body FROM @failure_groups WHERE tenant = $1 AND seen < $2 ORDER BY seen DESC LIMIT $3;

-- name: groups_of
SELECT g.body FROM unnest($2::text[]) WITH ORDINALITY AS n (fingerprint, at)
JOIN @failure_groups AS g ON g.tenant = $1 AND g.fingerprint = n.fingerprint ORDER BY n.at;

-- name: times
-- From the index alone, each group by itself: so many of each, however many it has.
SELECT n.at, f.id FROM unnest($2::text[]) WITH ORDINALITY AS n (fingerprint, at), LATERAL (
    SELECT id FROM @failures WHERE tenant = $1 AND fingerprint = n.fingerprint AND id >= $3 ORDER BY id DESC LIMIT $4
) AS f ORDER BY n.at, f.id DESC;

-- name: hold_group
SELECT body FROM @failure_groups WHERE tenant = $1 AND fingerprint = $2 FOR UPDATE;

-- name: oldest
SELECT body, status, settled, is_counted FROM @failures WHERE id < $1 ORDER BY id LIMIT $2;

-- name: drop
DELETE FROM @failures WHERE id = ANY($1::text[]);
