-- Ids are UUIDv7: rows of one time lie together, and the order of ids is the order of age.

CREATE TABLE plans (
    fingerprint TEXT PRIMARY KEY,
    body BLOB NOT NULL
) WITHOUT ROWID;

-- What people query by has a column; what only the lifecycle reads is in `state`. The rules are spelt with OR: for an
-- IN, SQLite builds a table of its values at every write, which costs as much as the write.
CREATE TABLE jobs (
    id TEXT PRIMARY KEY CHECK (id <> ''),
    tenant TEXT NOT NULL,
    user TEXT NOT NULL,
    client TEXT,
    pipeline TEXT NOT NULL,
    plan TEXT NOT NULL,
    priority INTEGER NOT NULL,
    created_at REAL NOT NULL,
    trace_id TEXT NOT NULL,
    slot TEXT,
    status TEXT NOT NULL CHECK (
        status = 'pending' OR status = 'running' OR status = 'completed' OR status = 'failed' OR status = 'cancelled'
    ),
    version INTEGER NOT NULL,
    lineage INTEGER NOT NULL,
    not_before REAL NOT NULL,
    started_at REAL,
    completed_at REAL,
    updated_at REAL NOT NULL,
    deadline_at REAL,
    purge_at REAL,
    is_purging INTEGER NOT NULL,
    is_stopping INTEGER NOT NULL,
    has_litter INTEGER NOT NULL,
    state BLOB NOT NULL,
    CHECK ((completed_at IS NULL) = (status = 'pending' OR status = 'running'))
) WITHOUT ROWID;

CREATE INDEX jobs_by_user ON jobs (tenant, user, status, id);
CREATE INDEX jobs_by_kind ON jobs (tenant, pipeline, status, id);
CREATE INDEX jobs_by_deadline ON jobs (deadline_at) WHERE deadline_at IS NOT NULL AND NOT is_stopping;
CREATE INDEX jobs_by_purge ON jobs (purge_at) WHERE purge_at IS NOT NULL;
CREATE INDEX jobs_being_purged ON jobs (id) WHERE is_purging;
CREATE INDEX jobs_with_litter ON jobs (id) WHERE has_litter AND completed_at IS NOT NULL;

CREATE TABLE specs (
    job_id TEXT PRIMARY KEY,
    idempotency_key TEXT,
    body BLOB NOT NULL
) WITHOUT ROWID;

CREATE TABLE results (
    job_id TEXT NOT NULL,
    stage TEXT NOT NULL,
    element INTEGER NOT NULL,
    body BLOB NOT NULL,
    PRIMARY KEY (job_id, stage, element)
) WITHOUT ROWID;

-- One row per change: the events numbered `n` to `last`. A change with an id and without events has `last` 0 and an `n`
-- below that, where no reader of events looks.
CREATE TABLE events (
    job_id TEXT NOT NULL,
    n INTEGER NOT NULL,
    last INTEGER NOT NULL,
    change_id TEXT NOT NULL,
    body BLOB NOT NULL,
    PRIMARY KEY (job_id, n)
) WITHOUT ROWID;

-- What may start now. The key is the order of claiming, so a claim is one short walk however long the queue is.
CREATE TABLE ready (
    queue TEXT NOT NULL,
    kind TEXT NOT NULL,
    rank INTEGER NOT NULL,
    job_id TEXT NOT NULL,
    stage TEXT NOT NULL,
    element INTEGER NOT NULL,
    PRIMARY KEY (queue, kind, rank, job_id, stage, element)
) WITHOUT ROWID;

-- What may start later, by time, so that a million delayed jobs never stand in a claim's way.
CREATE TABLE delayed (
    not_before REAL NOT NULL,
    queue TEXT NOT NULL,
    kind TEXT NOT NULL,
    rank INTEGER NOT NULL,
    job_id TEXT NOT NULL,
    stage TEXT NOT NULL,
    element INTEGER NOT NULL,
    queued_at REAL NOT NULL,
    PRIMARY KEY (not_before, queue, kind, rank, job_id, stage, element)
) WITHOUT ROWID;

-- Finds what was queued by a clock that was ahead.
CREATE INDEX delayed_queued ON delayed (queued_at);

-- As many rows as tasks run right now: small enough to be walked, so it has no further index to keep up.
CREATE TABLE leases (
    job_id TEXT NOT NULL,
    stage TEXT NOT NULL,
    element INTEGER NOT NULL,
    token TEXT NOT NULL,
    worker TEXT NOT NULL,
    until REAL NOT NULL,
    PRIMARY KEY (job_id, stage, element)
) WITHOUT ROWID;

CREATE TABLE usage (
    tenant TEXT PRIMARY KEY,
    jobs INTEGER NOT NULL DEFAULT 0,
    bytes INTEGER NOT NULL DEFAULT 0
) WITHOUT ROWID;

CREATE TABLE slots (
    slot TEXT PRIMARY KEY,
    job_id TEXT NOT NULL
) WITHOUT ROWID;

CREATE TABLE idempotency (
    key TEXT PRIMARY KEY,
    job_id TEXT NOT NULL,
    fingerprint TEXT NOT NULL
) WITHOUT ROWID;

CREATE TABLE progress (
    job_id TEXT NOT NULL,
    stage TEXT NOT NULL,
    element INTEGER NOT NULL,
    run INTEGER NOT NULL,
    at REAL NOT NULL,
    current REAL NOT NULL,
    total REAL,
    message TEXT NOT NULL,
    peak REAL NOT NULL,
    PRIMARY KEY (job_id, stage, element)
) WITHOUT ROWID;

CREATE TABLE log (
    job_id TEXT NOT NULL,
    n INTEGER NOT NULL,
    stage TEXT NOT NULL,
    element INTEGER NOT NULL,
    attempt INTEGER NOT NULL,
    at REAL NOT NULL,
    text TEXT NOT NULL,
    PRIMARY KEY (job_id, n)
) WITHOUT ROWID;

CREATE TABLE log_size (
    job_id TEXT PRIMARY KEY,
    last INTEGER NOT NULL,
    bytes INTEGER NOT NULL
) WITHOUT ROWID;

CREATE TABLE samples (
    job_id TEXT NOT NULL,
    at REAL NOT NULL,
    stage TEXT NOT NULL,
    element INTEGER NOT NULL,
    cpu REAL NOT NULL,
    memory INTEGER NOT NULL,
    PRIMARY KEY (job_id, at, stage, element)
) WITHOUT ROWID;

-- Which jobs had something new, a row for each transaction. Serves watchers only, and is trimmed from the front.
CREATE TABLE feed (
    seq INTEGER PRIMARY KEY,
    job_ids BLOB NOT NULL
);

-- What went wrong. What is looked for has a column; the failure itself, which never changes, is in `body`, and what
-- became of it beside.
CREATE TABLE failures (
    id TEXT PRIMARY KEY,
    tenant TEXT NOT NULL,
    fingerprint TEXT NOT NULL,
    job_id TEXT NOT NULL,
    user TEXT NOT NULL,
    pipeline TEXT NOT NULL,
    code TEXT NOT NULL,
    schedule TEXT,
    status TEXT NOT NULL,
    is_counted INTEGER NOT NULL,
    settled BLOB,
    body BLOB NOT NULL
) WITHOUT ROWID;

CREATE INDEX failures_by_age ON failures (tenant, id);
CREATE INDEX failures_by_group ON failures (tenant, fingerprint, id);
CREATE INDEX failures_by_status ON failures (tenant, status, id);
CREATE INDEX failures_by_user ON failures (tenant, user, id);
CREATE INDEX failures_by_job ON failures (job_id);

-- Counted as failures come and go, so that nobody has to count them. `seen` sorts by the time it was last seen.
CREATE TABLE failure_groups (
    tenant TEXT NOT NULL,
    fingerprint TEXT NOT NULL,
    seen TEXT NOT NULL,
    body BLOB NOT NULL,
    PRIMARY KEY (tenant, fingerprint)
) WITHOUT ROWID;

CREATE INDEX failure_groups_by_time ON failure_groups (tenant, seen);

-- How many of a group's failures each of its users has, as far as users are told apart.
CREATE TABLE failure_users (
    tenant TEXT NOT NULL,
    fingerprint TEXT NOT NULL,
    user TEXT NOT NULL,
    count INTEGER NOT NULL,
    PRIMARY KEY (tenant, fingerprint, user)
) WITHOUT ROWID;

-- What was counted, in stretches of `step` seconds that began at `at`. An empty queue is for whole jobs.
CREATE TABLE tallies (
    step INTEGER NOT NULL,
    at INTEGER NOT NULL,
    queue TEXT NOT NULL,
    pipeline TEXT NOT NULL,
    name TEXT NOT NULL,
    count INTEGER NOT NULL,
    PRIMARY KEY (step, at, queue, pipeline, name)
) WITHOUT ROWID;

-- Everything beside jobs, in one shape. What each kind means is in store/collections.
CREATE TABLE records (
    kind TEXT NOT NULL,
    id TEXT NOT NULL,
    body BLOB NOT NULL,
    note BLOB NOT NULL DEFAULT x'',
    stamp INTEGER NOT NULL DEFAULT 1,
    lane TEXT NOT NULL,
    due_at REAL,
    attempts INTEGER NOT NULL,
    job_id TEXT,
    PRIMARY KEY (kind, id)
) WITHOUT ROWID;

CREATE INDEX records_by_time ON records (kind, lane, due_at, id) WHERE due_at IS NOT NULL;
CREATE INDEX records_by_job ON records (job_id) WHERE job_id IS NOT NULL;

-- Where each record is listed. Places compare as bytes.
CREATE TABLE record_index (
    kind TEXT NOT NULL,
    name TEXT NOT NULL,
    place TEXT NOT NULL,
    id TEXT NOT NULL,
    PRIMARY KEY (kind, name, place, id)
) WITHOUT ROWID;

CREATE INDEX record_index_by_record ON record_index (kind, id);

-- The last number that each log has given: it is never given again, also when all entries are dropped.
CREATE TABLE logs (
    log TEXT PRIMARY KEY,
    last INTEGER NOT NULL
) WITHOUT ROWID;

-- How many entries each topic of a log has had.
CREATE TABLE log_topics (
    log TEXT NOT NULL,
    topic TEXT NOT NULL,
    last INTEGER NOT NULL,
    PRIMARY KEY (log, topic)
) WITHOUT ROWID;

-- n is the number in the log, nth the number in the topic; both rise without gaps.
CREATE TABLE log_entries (
    log TEXT NOT NULL,
    n INTEGER NOT NULL,
    topic TEXT NOT NULL,
    nth INTEGER NOT NULL,
    at REAL NOT NULL,
    body BLOB NOT NULL,
    PRIMARY KEY (log, n)
) WITHOUT ROWID;

CREATE INDEX log_entries_by_topic ON log_entries (log, topic, n);
