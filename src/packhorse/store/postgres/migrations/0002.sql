-- Who may ask. What is looked for has a column; the key itself is in `body`.
CREATE TABLE @keys (
    id text COLLATE "C" PRIMARY KEY,
    tenant text COLLATE "C" NOT NULL,
    job_id uuid,
    body bytea NOT NULL
);

CREATE INDEX keys_by_age ON @keys (id) WHERE job_id IS NULL;
CREATE INDEX keys_by_tenant ON @keys (tenant, id) WHERE job_id IS NULL;
CREATE INDEX keys_by_job ON @keys (job_id, id) WHERE job_id IS NOT NULL;

CREATE TABLE @audit (
    n bigint PRIMARY KEY,
    tenant text COLLATE "C" NOT NULL,
    body bytea NOT NULL
) WITH (autovacuum_vacuum_scale_factor = 0.05);

CREATE INDEX audit_by_tenant ON @audit (tenant, n);

-- The last number given. Who writes holds this row until its commit, so numbers rise in the order of commits, without
-- gaps, and what is too old is found by its number.
CREATE TABLE @audit_last (
    n bigint NOT NULL
) WITH (fillfactor = 10);
INSERT INTO @audit_last VALUES (0);

-- A row per counter: what was spent, by bucket. Of no use to anybody after `until`.
CREATE TABLE @counters (
    name text COLLATE "C" NOT NULL,
    seconds double precision NOT NULL,
    until double precision NOT NULL,
    buckets bytea NOT NULL,
    PRIMARY KEY (name, seconds)
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_threshold = 1000);

CREATE INDEX counters_by_end ON @counters (until);

CREATE TABLE @endpoints (
    id text COLLATE "C" PRIMARY KEY,
    tenant text COLLATE "C" NOT NULL,
    created_at double precision NOT NULL,
    is_open boolean NOT NULL,
    body bytea NOT NULL
);

CREATE TABLE @deliveries (
    id text COLLATE "C" PRIMARY KEY,
    endpoint text COLLATE "C" NOT NULL,
    job_id uuid NOT NULL,
    run integer NOT NULL,
    at double precision NOT NULL,
    attempts integer NOT NULL,
    next_at double precision NOT NULL,
    error text NOT NULL
) WITH (autovacuum_vacuum_scale_factor = 0.05);

CREATE INDEX deliveries_by_time ON @deliveries (next_at, id);
CREATE INDEX deliveries_by_endpoint ON @deliveries (endpoint, at, id);
CREATE INDEX deliveries_by_job ON @deliveries (job_id);

CREATE TABLE @pauses (
    queue text COLLATE "C" PRIMARY KEY,
    body bytea NOT NULL
);
