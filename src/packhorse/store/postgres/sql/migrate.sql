-- Purpose: find out which version a schema has, and bring it up to this one. The scripts are in migrations/.
-- Callers: store/postgres/migrate.py
-- Tables:  version, and the server's catalogue

-- name: lock
SELECT pg_advisory_xact_lock(hashtextextended('packhorse migrates ' || $1, 0));

-- name: has_schema
-- Asked of the catalogue itself: to_regclass may answer from before we waited for the lock.
SELECT EXISTS (SELECT FROM pg_namespace WHERE nspname = $1);

-- name: has_version
SELECT EXISTS (SELECT FROM pg_tables WHERE schemaname = $1 AND tablename = 'version');

-- name: create_version
CREATE TABLE @version (version integer NOT NULL);
INSERT INTO @version VALUES (0);

-- name: version
SELECT version FROM @version;

-- name: set_version
UPDATE @version SET version = $1;
