-- Purpose: the server itself: its clock, its settings, and the version of the schema. The scripts are in migrations/.
-- Callers: store/postgres/store.py, connection.py (clock), watch.py (clock)
-- Tables:  version, and the server's catalogue

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
