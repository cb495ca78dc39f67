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

-- What workers have still to do about failures; without a time, an order that is done.
CREATE TABLE errands (
    id TEXT PRIMARY KEY,
    sort TEXT NOT NULL,
    tenant TEXT NOT NULL,
    body BLOB NOT NULL,
    due_at REAL,
    attempts INTEGER NOT NULL
) WITHOUT ROWID;

CREATE INDEX errands_by_time ON errands (sort, due_at, id) WHERE due_at IS NOT NULL;
CREATE INDEX orders_by_age ON errands (tenant, id) WHERE sort = 'order';
CREATE INDEX orders_done ON errands (id) WHERE sort = 'order' AND due_at IS NULL;

-- A message that is about no job says here what it says.
ALTER TABLE deliveries ADD COLUMN body TEXT NOT NULL DEFAULT '';
