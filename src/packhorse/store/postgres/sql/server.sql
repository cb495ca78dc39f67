-- Purpose: the server itself: its clock, its settings, and the version of the schema. The scripts are in migrations/.
-- Callers: store/postgres/store.py, connection.py (clock), watch.py (clock)
-- Tables:  version, scripts, and the server's catalogue

-- name: clock
-- Also asked before there is a schema, so it does without the function `now`.
SELECT extract(epoch FROM clock_timestamp())::float8;

-- name: settings
SELECT current_setting('server_version_num')::int4 AS version, current_setting('server_version') AS shown,
    current_setting('synchronous_commit') AS synchronous_commit, current_setting('fsync') AS fsync,
    current_setting('full_page_writes') AS full_page_writes, current_setting('autovacuum') AS autovacuum,
    current_setting('server_encoding') AS encoding, pg_is_in_recovery() AS is_standby,
    current_setting('max_connections')::int4 AS most, (SELECT count(*) FROM pg_stat_activity) AS used;

-- name: lock
SELECT pg_advisory_xact_lock(hashtextextended('packhorse migrates ' || $1, 0));

-- name: limit_lock_wait
-- Whoever waits for a lock on a table makes others wait behind it. Set after the lock above, which may take long.
SET LOCAL lock_timeout = '5s';

-- name: stay_idle
SET LOCAL idle_in_transaction_session_timeout = 0;

-- name: try_index_lock
SELECT pg_try_advisory_xact_lock(hashtextextended('packhorse makes indexes of ' || $1, 0));

-- name: missing_indexes
SELECT wanted.name FROM unnest($2::text[]) WITH ORDINALITY AS wanted (name, place)
WHERE NOT EXISTS (
    SELECT FROM pg_class AS found JOIN pg_index AS made ON made.indexrelid = found.oid
    WHERE found.relname = wanted.name AND found.relnamespace = (SELECT oid FROM pg_namespace WHERE nspname = $1)
        AND made.indisvalid
)
ORDER BY wanted.place;

-- name: drop_index
DROP INDEX CONCURRENTLY IF EXISTS @{name};

-- name: has_scripts
SELECT to_regclass('@scripts') IS NOT NULL;

-- name: create_scripts
-- The SQL files of apps that have run here, each with the sum of its text.
CREATE TABLE IF NOT EXISTS @scripts (package text PRIMARY KEY, sum text NOT NULL);

-- name: script
SELECT sum FROM @scripts WHERE package = $1;

-- name: set_script
INSERT INTO @scripts (package, sum) VALUES ($1, $2) ON CONFLICT (package) DO UPDATE SET sum = excluded.sum
RETURNING package;

-- name: has_schema
-- Asked of the catalogue itself: to_regclass may answer from before we waited for the lock.
SELECT EXISTS (SELECT FROM pg_namespace WHERE nspname = $1);

-- name: create_schema
CREATE SCHEMA "{schema}";

-- name: has_version
SELECT EXISTS (SELECT FROM pg_tables WHERE schemaname = $1 AND tablename = 'version');

-- name: create_version
CREATE TABLE @version (version integer NOT NULL);
INSERT INTO @version VALUES (0);

-- name: version
SELECT version FROM @version;

-- name: set_version
UPDATE @version SET version = $1;
