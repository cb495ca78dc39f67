-- Who may ask. What is looked for has a column; the key itself is in `body`.
CREATE TABLE keys (
    id TEXT PRIMARY KEY,
    tenant TEXT NOT NULL,
    job_id TEXT,
    body BLOB NOT NULL
) WITHOUT ROWID;

CREATE INDEX keys_by_age ON keys (id) WHERE job_id IS NULL;
CREATE INDEX keys_by_tenant ON keys (tenant, id) WHERE job_id IS NULL;
CREATE INDEX keys_by_job ON keys (job_id, id) WHERE job_id IS NOT NULL;

-- AUTOINCREMENT, because a number is never given again, also when all that had one are dropped.
CREATE TABLE audit (
    n INTEGER PRIMARY KEY AUTOINCREMENT,
    tenant TEXT NOT NULL,
    body BLOB NOT NULL
);

CREATE INDEX audit_by_tenant ON audit (tenant, n);

CREATE TABLE endpoints (
    id TEXT PRIMARY KEY,
    tenant TEXT NOT NULL,
    created_at REAL NOT NULL,
    is_open INTEGER NOT NULL,
    body BLOB NOT NULL
) WITHOUT ROWID;

CREATE TABLE deliveries (
    id TEXT PRIMARY KEY,
    endpoint TEXT NOT NULL,
    job_id TEXT NOT NULL,
    run INTEGER NOT NULL,
    at REAL NOT NULL,
    attempts INTEGER NOT NULL,
    next_at REAL NOT NULL,
    error TEXT NOT NULL
) WITHOUT ROWID;

CREATE INDEX deliveries_by_time ON deliveries (next_at, id);
CREATE INDEX deliveries_by_endpoint ON deliveries (endpoint, at, id);
CREATE INDEX deliveries_by_job ON deliveries (job_id);

CREATE TABLE pauses (
    queue TEXT PRIMARY KEY,
    body BLOB NOT NULL
) WITHOUT ROWID;
