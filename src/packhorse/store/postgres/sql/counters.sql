-- Purpose: counters of rates and quotas, by bucket of time.
-- Callers: store/postgres/counters.py
-- Tables:  counters

-- name: lock
-- In the order of names, like everybody: whoever waits for a lock holds none that a holder of it waits for. One that is
-- not there cannot be locked, so it is made; of one that is there the update changes nothing. The commit does not wait
-- for the disk: a crash of the server may forget the counts of its last moment, and a busy one counts at every request.
INSERT INTO @counters AS c (name, seconds, until, buckets)
SELECT name, seconds, 0, '{}' FROM unnest($1::text[], $2::float8[]) AS n (name, seconds)
ORDER BY name COLLATE "C", seconds
ON CONFLICT (name, seconds) DO UPDATE SET until = c.until
RETURNING name, seconds, buckets, @now() AS now, set_config('synchronous_commit', 'off', TRUE);

-- name: keep
UPDATE @counters AS c SET until = n.until, buckets = n.buckets
FROM unnest($1::text[], $2::float8[], $3::float8[], $4::bytea[]) AS n (name, seconds, until, buckets)
WHERE (c.name, c.seconds) = (n.name, n.seconds);

-- name: trim
-- What somebody holds is just being counted, and is passed by.
DELETE FROM @counters AS c USING (
    SELECT name, seconds FROM @counters WHERE until <= (SELECT coalesce($1, @now())) FOR UPDATE SKIP LOCKED
) AS over
WHERE (c.name, c.seconds) = (over.name, over.seconds);
