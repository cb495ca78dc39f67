-- What is run when. What is looked for has a column; the schedule itself is in `body`.
CREATE TABLE @schedules (
    tenant text COLLATE "C" NOT NULL,
    id text COLLATE "C" NOT NULL,
    stamp bigint NOT NULL,
    next_at double precision,
    body bytea NOT NULL,
    PRIMARY KEY (tenant, id)
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.05);

CREATE INDEX schedules_by_next ON @schedules (next_at) WHERE next_at IS NOT NULL;

CREATE TABLE @revisions (
    tenant text COLLATE "C" NOT NULL,
    schedule text COLLATE "C" NOT NULL,
    version integer NOT NULL,
    body bytea NOT NULL,
    PRIMARY KEY (tenant, schedule, version)
);

-- What became of each tick.
CREATE TABLE @runs (
    tenant text COLLATE "C" NOT NULL,
    schedule text COLLATE "C" NOT NULL,
    tick double precision NOT NULL,
    version integer NOT NULL,
    status text NOT NULL,
    stamp bigint NOT NULL,
    is_manual boolean NOT NULL,
    message text NOT NULL,
    job_id uuid,
    trace_id text NOT NULL,
    started_at double precision,
    ended_at double precision,
    due_at double precision,
    until double precision,
    count integer NOT NULL,
    PRIMARY KEY (tenant, schedule, tick),
    CHECK (status IN ('due', 'fired', 'completed', 'failed', 'cancelled', 'skipped', 'missed')),
    CHECK ((status = 'fired') <= (job_id IS NOT NULL))
) WITH (autovacuum_vacuum_scale_factor = 0.05);

CREATE INDEX runs_by_due ON @runs (due_at) WHERE due_at IS NOT NULL;
CREATE INDEX runs_open ON @runs (tenant, schedule, tick) WHERE status IN ('due', 'fired');
