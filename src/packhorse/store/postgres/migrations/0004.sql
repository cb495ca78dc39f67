-- What went wrong. What is looked for has a column; the failure itself, which never changes, is in `body`, and what
-- became of it beside.
CREATE TABLE @failures (
    id text COLLATE "C" PRIMARY KEY,
    tenant text COLLATE "C" NOT NULL,
    fingerprint text COLLATE "C" NOT NULL,
    job_id uuid NOT NULL,
    user_id text COLLATE "C" NOT NULL,
    pipeline text COLLATE "C" NOT NULL,
    code text COLLATE "C" NOT NULL,
    schedule text COLLATE "C",
    status text COLLATE "C" NOT NULL CHECK (status IN ('open', 'retried', 'resolved', 'dismissed')),
    is_counted boolean NOT NULL,
    settled bytea,
    body bytea NOT NULL
) WITH (autovacuum_vacuum_scale_factor = 0.05);

CREATE INDEX failures_by_age ON @failures (tenant, id);
CREATE INDEX failures_by_group ON @failures (tenant, fingerprint, id);
CREATE INDEX failures_by_status ON @failures (tenant, status, id);
CREATE INDEX failures_by_user ON @failures (tenant, user_id, id);
CREATE INDEX failures_by_job ON @failures (job_id, id);

-- Counted as failures come and go, so that nobody has to count them. `seen` sorts by the time it was last seen. Who
-- changes a group, a failure of it or its users holds this row: jobs are locked before groups, and groups in the order of
-- their key.
CREATE TABLE @failure_groups (
    tenant text COLLATE "C" NOT NULL,
    fingerprint text COLLATE "C" NOT NULL,
    seen text COLLATE "C" NOT NULL,
    body bytea NOT NULL,
    PRIMARY KEY (tenant, fingerprint)
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_threshold = 1000);

CREATE INDEX failure_groups_by_time ON @failure_groups (tenant, seen);

-- How many of a group's failures each of its users has, as far as users are told apart.
CREATE TABLE @failure_users (
    tenant text COLLATE "C" NOT NULL,
    fingerprint text COLLATE "C" NOT NULL,
    user_id text COLLATE "C" NOT NULL,
    count integer NOT NULL,
    PRIMARY KEY (tenant, fingerprint, user_id)
);

-- What workers have still to do about failures; without a time, an order that is done.
CREATE TABLE @errands (
    id text COLLATE "C" PRIMARY KEY,
    sort text COLLATE "C" NOT NULL,
    tenant text COLLATE "C" NOT NULL,
    body bytea NOT NULL,
    due_at double precision,
    attempts integer NOT NULL
) WITH (autovacuum_vacuum_scale_factor = 0.05);

CREATE INDEX errands_by_time ON @errands (sort, due_at, id) WHERE due_at IS NOT NULL;
CREATE INDEX orders_by_age ON @errands (tenant, id) WHERE sort = 'order';
CREATE INDEX orders_done ON @errands (id) WHERE sort = 'order' AND due_at IS NULL;

-- A message that is about no job says here what it says.
ALTER TABLE @deliveries ADD COLUMN body text NOT NULL DEFAULT '';
