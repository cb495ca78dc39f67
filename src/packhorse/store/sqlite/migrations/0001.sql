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
    PRIMARY KEY (not_before, queue, kind, rank, job_id, stage, element)
) WITHOUT ROWID;

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

CREATE TABLE definitions (
    pipeline TEXT PRIMARY KEY,
    body BLOB NOT NULL
) WITHOUT ROWID;

CREATE TABLE workers (
    id TEXT PRIMARY KEY,
    body BLOB NOT NULL
) WITHOUT ROWID;

CREATE TABLE bookmarks (
    name TEXT PRIMARY KEY,
    value TEXT NOT NULL
) WITHOUT ROWID;
