-- Names begin with @, which stands for the schema of this store. Ids are UUIDv7: rows of one time lie together, and the
-- order of ids is the order of age. Names that are sorted by are COLLATE "C": in every database, whatever its language,
-- the order is that of the bytes.

CREATE TABLE @plans (
    fingerprint text PRIMARY KEY,
    body bytea NOT NULL
);

-- What people ask for has a column; what only the lifecycle reads is in `state`, with every time to the last bit. In
-- columns times are rounded to a microsecond. `parameters` and `result` are copies for those who ask by them: JSON that
-- jsonb cannot hold is null here, and whole in `specs` and `results`.
CREATE TABLE @jobs (
    id uuid PRIMARY KEY,
    tenant text COLLATE "C" NOT NULL,
    user_id text COLLATE "C" NOT NULL,
    client text,
    pipeline text COLLATE "C" NOT NULL,
    plan text NOT NULL,
    priority integer NOT NULL,
    trace_id text NOT NULL,
    slot text,
    status text COLLATE "C" NOT NULL CHECK (status IN ('pending', 'running', 'completed', 'failed', 'cancelled')),
    version integer NOT NULL CHECK (version > 0),
    lineage bigint NOT NULL,
    retry_count integer NOT NULL CHECK (retry_count >= 0),
    created_at timestamptz NOT NULL,
    not_before timestamptz NOT NULL,
    started_at timestamptz,
    completed_at timestamptz,
    updated_at timestamptz NOT NULL,
    deadline_at timestamptz,
    purge_at timestamptz,
    is_purging boolean NOT NULL,
    is_stopping boolean NOT NULL,
    has_litter boolean NOT NULL,
    error_message text,
    parameters jsonb,
    result jsonb,
    state bytea NOT NULL,
    CONSTRAINT ended_jobs_have_a_time CHECK ((completed_at IS NOT NULL) = (status IN ('completed', 'failed', 'cancelled'))),
    CONSTRAINT pending_jobs_have_not_started CHECK (status <> 'pending' OR started_at IS NULL),
    CONSTRAINT running_jobs_have_started CHECK (status <> 'running' OR started_at IS NOT NULL),
    CONSTRAINT failed_jobs_say_why CHECK ((error_message IS NOT NULL) = (status = 'failed')),
    CONSTRAINT completed_jobs_have_results CHECK (result IS NULL OR status = 'completed'),
    CONSTRAINT active_jobs_have_deadlines CHECK (deadline_at IS NULL OR completed_at IS NULL),
    CONSTRAINT ended_jobs_are_purged CHECK ((purge_at IS NULL AND NOT is_purging) OR completed_at IS NOT NULL),
    CONSTRAINT running_jobs_are_stopped CHECK (NOT is_stopping OR status = 'running')
) WITH (fillfactor = 85, autovacuum_vacuum_scale_factor = 0.05, autovacuum_analyze_scale_factor = 0.05);
-- The room left on a page is for the next version of its rows: steps that leave the status alone touch no index.

CREATE INDEX jobs_by_user ON @jobs (tenant, user_id, status, id);
CREATE INDEX jobs_by_kind ON @jobs (tenant, pipeline, status, id);
CREATE INDEX jobs_by_age ON @jobs (created_at DESC);
CREATE INDEX jobs_pending ON @jobs (deadline_at) WHERE status = 'pending';
CREATE INDEX jobs_running ON @jobs (deadline_at) WHERE status = 'running' AND NOT is_stopping;
CREATE INDEX jobs_ended ON @jobs (purge_at) WHERE purge_at IS NOT NULL AND NOT is_purging;
CREATE INDEX jobs_being_purged ON @jobs (id) WHERE is_purging;
CREATE INDEX jobs_with_litter ON @jobs (id) WHERE has_litter AND completed_at IS NOT NULL AND NOT is_purging;

CREATE TABLE @specs (
    job_id uuid PRIMARY KEY,
    idempotency_key text,
    body bytea NOT NULL
);

CREATE TABLE @results (
    job_id uuid NOT NULL,
    stage text COLLATE "C" NOT NULL,
    element integer NOT NULL,
    body bytea NOT NULL,
    PRIMARY KEY (job_id, stage, element)
);

-- One row per change: the events numbered `n` to `last`. A change with an id and without events has `last` 0 and an `n`
-- below that, where no reader of events looks.
CREATE TABLE @events (
    job_id uuid NOT NULL,
    n integer NOT NULL,
    last integer NOT NULL,
    change_id text NOT NULL,
    body bytea NOT NULL,
    PRIMARY KEY (job_id, n)
);

-- What may start now. The key is the order of claiming, so a claim is one short walk however long the queue is. Rows
-- live for moments: the walk would lead past the dead ones if nobody swept behind it.
CREATE TABLE @due (
    queue text COLLATE "C" NOT NULL,
    kind text COLLATE "C" NOT NULL,
    rank integer NOT NULL,
    job_id uuid NOT NULL,
    stage text COLLATE "C" NOT NULL,
    element integer NOT NULL,
    PRIMARY KEY (queue, kind, rank, job_id, stage, element)
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000, autovacuum_vacuum_cost_delay = 0);

-- What may start later, by time, so that a million delayed jobs never stand in a claim's way.
CREATE TABLE @delayed (
    not_before double precision NOT NULL,
    queue text COLLATE "C" NOT NULL,
    kind text COLLATE "C" NOT NULL,
    rank integer NOT NULL,
    job_id uuid NOT NULL,
    stage text COLLATE "C" NOT NULL,
    element integer NOT NULL,
    queued_at double precision NOT NULL,
    PRIMARY KEY (not_before, queue, kind, rank, job_id, stage, element)
) WITH (autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_threshold = 2000, autovacuum_vacuum_cost_delay = 0);

-- Finds what was queued by a clock that was ahead.
CREATE INDEX delayed_queued ON @delayed (queued_at);

-- As many rows as tasks run right now: few enough to be walked, so there is no further index to keep up, and a renewal
-- stays on its page.
CREATE TABLE @leases (
    job_id uuid NOT NULL,
    stage text COLLATE "C" NOT NULL,
    element integer NOT NULL,
    token text NOT NULL,
    worker text NOT NULL,
    until double precision NOT NULL,
    PRIMARY KEY (job_id, stage, element)
) WITH (fillfactor = 60, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000,
        autovacuum_vacuum_cost_delay = 0);

CREATE TABLE @usage (
    tenant text PRIMARY KEY,
    jobs int8 NOT NULL DEFAULT 0,
    bytes int8 NOT NULL DEFAULT 0
) WITH (fillfactor = 50);

CREATE TABLE @slots (
    slot text PRIMARY KEY,
    job_id uuid NOT NULL
) WITH (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.05);

CREATE TABLE @idempotency (
    key text PRIMARY KEY,
    job_id uuid NOT NULL,
    fingerprint text NOT NULL
) WITH (fillfactor = 90);

CREATE TABLE @progress (
    job_id uuid NOT NULL,
    stage text COLLATE "C" NOT NULL,
    element integer NOT NULL,
    run integer NOT NULL,
    at double precision NOT NULL,
    current double precision NOT NULL,
    total double precision,
    message text NOT NULL,
    peak double precision NOT NULL,
    PRIMARY KEY (job_id, stage, element)
) WITH (fillfactor = 60, autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_threshold = 1000);

CREATE TABLE @log (
    job_id uuid NOT NULL,
    n bigint NOT NULL,
    stage text COLLATE "C" NOT NULL,
    element integer NOT NULL,
    attempt integer NOT NULL,
    at double precision NOT NULL,
    text text NOT NULL,
    PRIMARY KEY (job_id, n)
) WITH (autovacuum_vacuum_scale_factor = 0.05);

CREATE TABLE @log_size (
    job_id uuid PRIMARY KEY,
    last bigint NOT NULL,
    bytes bigint NOT NULL
) WITH (fillfactor = 60, autovacuum_vacuum_scale_factor = 0.05);

CREATE TABLE @samples (
    job_id uuid NOT NULL,
    at double precision NOT NULL,
    stage text COLLATE "C" NOT NULL,
    element integer NOT NULL,
    cpu double precision NOT NULL,
    memory bigint NOT NULL,
    PRIMARY KEY (job_id, at, stage, element)
) WITH (autovacuum_vacuum_scale_factor = 0.05);

-- Which jobs had something new, one row per transaction, by its number. Numbers are given before the commit, so readers
-- go by what was in flight when they last looked. Serves watchers only, and is trimmed from the front.
CREATE TABLE @feed (
    xid xid8 PRIMARY KEY,
    jobs uuid[] NOT NULL
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000, autovacuum_vacuum_cost_delay = 0);

-- All of the feed up to here may have been trimmed.
CREATE TABLE @trimmed (
    xid xid8 NOT NULL
);
INSERT INTO @trimmed VALUES ('0');

-- The value as jsonb, or null where jsonb cannot hold it: a NUL, half a surrogate pair, a number out of bounds.
CREATE FUNCTION @as_json(value text) RETURNS jsonb LANGUAGE plpgsql IMMUTABLE STRICT AS $$
BEGIN
    RETURN value::jsonb;
EXCEPTION WHEN OTHERS THEN
    RETURN NULL;
END
$$;

-- A row per counter: what was spent, by bucket. Of no use to anybody after `until`.
CREATE TABLE @counters (
    name text COLLATE "C" NOT NULL,
    seconds double precision NOT NULL,
    until double precision NOT NULL,
    buckets bytea NOT NULL,
    PRIMARY KEY (name, seconds)
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_threshold = 1000);

CREATE INDEX counters_by_end ON @counters (until);

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

-- What was counted, in stretches of `step` seconds that began at `at`. An empty queue is for whole jobs.
CREATE TABLE @tallies (
    step integer NOT NULL,
    at bigint NOT NULL,
    queue text COLLATE "C" NOT NULL,
    pipeline text COLLATE "C" NOT NULL,
    name text COLLATE "C" NOT NULL,
    count bigint NOT NULL,
    PRIMARY KEY (step, at, queue, pipeline, name)
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.05);

-- Everything beside jobs, in one shape. Only its collection reads a record's body and note.
CREATE TABLE @records (
    kind text COLLATE "C" NOT NULL,
    id text COLLATE "C" NOT NULL,
    body bytea NOT NULL,
    note bytea NOT NULL,
    stamp bigint NOT NULL,
    lane text COLLATE "C" NOT NULL,
    due_at double precision,
    attempts integer NOT NULL,
    job_id uuid,
    PRIMARY KEY (kind, id)
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_threshold = 1000);

CREATE INDEX records_by_time ON @records (kind, lane, due_at, id) WHERE due_at IS NOT NULL;
CREATE INDEX records_by_job ON @records (job_id) WHERE job_id IS NOT NULL;

-- Where records are listed. Whoever writes a record replaces its entries, under the lock of the record.
CREATE TABLE @record_index (
    kind text COLLATE "C" NOT NULL,
    name text COLLATE "C" NOT NULL,
    place text COLLATE "C" NOT NULL,
    id text COLLATE "C" NOT NULL,
    PRIMARY KEY (kind, name, place, id)
) WITH (autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_threshold = 1000);

CREATE INDEX record_index_by_record ON @record_index (kind, id);

-- n is the number in the log, nth the number in the topic; both rise without gaps.
CREATE TABLE @log_entries (
    log text COLLATE "C" NOT NULL,
    n bigint NOT NULL,
    topic text COLLATE "C" NOT NULL,
    nth bigint NOT NULL,
    at double precision NOT NULL,
    body bytea NOT NULL,
    PRIMARY KEY (log, n)
) WITH (autovacuum_vacuum_scale_factor = 0.05);

CREATE INDEX log_entries_by_topic ON @log_entries (log, topic, n);

-- How many entries each topic of a log has had.
CREATE TABLE @log_topics (
    log text COLLATE "C" NOT NULL,
    topic text COLLATE "C" NOT NULL,
    last bigint NOT NULL,
    PRIMARY KEY (log, topic)
) WITH (fillfactor = 50);

-- The last number given in each log. Who appends holds this row until its commit.
CREATE TABLE @logs (
    log text COLLATE "C" PRIMARY KEY,
    last bigint NOT NULL
) WITH (fillfactor = 10);

-- Takes the statement back where what it was decided on does not hold any more.
CREATE FUNCTION @expect(holds boolean) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF NOT holds THEN
        RAISE EXCEPTION 'the state has changed since this was decided';
    END IF;
END
$$;

-- The server's clock, in seconds.
CREATE FUNCTION @now() RETURNS double precision LANGUAGE sql AS
    'SELECT extract(epoch FROM clock_timestamp())::double precision';

-- Seconds as a timestamp, up to about the last that one can hold.
CREATE FUNCTION @moment(seconds double precision) RETURNS timestamptz LANGUAGE sql IMMUTABLE AS
    'SELECT CASE WHEN seconds IS NOT NULL THEN to_timestamp(least(seconds, 9e12)) END';
