-- Purpose: the server's own settings, for the health report.
-- Callers: store/postgres/check.py
-- Tables:  none

-- name: settings
SELECT current_setting('server_version_num')::int4 AS version, current_setting('server_version') AS shown,
    current_setting('synchronous_commit') AS synchronous_commit, current_setting('fsync') AS fsync,
    current_setting('full_page_writes') AS full_page_writes, current_setting('autovacuum') AS autovacuum,
    current_setting('server_encoding') AS encoding, pg_is_in_recovery() AS is_standby,
    current_setting('max_connections')::int4 AS most, (SELECT count(*) FROM pg_stat_activity) AS used;

-- name: now
SELECT @now();
