-- Limits and fair shares. A task without them has no row in any of these tables.

-- What an operator has set for a limit, instead of what the plans say.
CREATE TABLE limits (
    name TEXT PRIMARY KEY,
    most INTEGER NOT NULL
) WITHOUT ROWID;

-- Which leases are counted under which keys. Written and deleted with the lease.
CREATE TABLE holds (
    job_id TEXT NOT NULL,
    stage TEXT NOT NULL,
    element INTEGER NOT NULL,
    key TEXT NOT NULL,
    since REAL NOT NULL,
    PRIMARY KEY (job_id, stage, element, key)
) WITHOUT ROWID;

CREATE INDEX holds_by_key ON holds (key, since);

-- The starts that rates count.
CREATE TABLE starts (
    key TEXT NOT NULL,
    at REAL NOT NULL
);

CREATE INDEX starts_by_key ON starts (key, at);

-- Due tasks that are parked under a key, or, with an empty key, may start and take turns. `most` is what the plan says of
-- the limit: tasks of one key, number, queue and kind may start or wait together. An empty share has no turns.
CREATE TABLE waiting (
    key TEXT NOT NULL,
    most INTEGER NOT NULL,
    queue TEXT NOT NULL,
    kind TEXT NOT NULL,
    share TEXT NOT NULL,
    rank INTEGER NOT NULL,
    job_id TEXT NOT NULL,
    stage TEXT NOT NULL,
    element INTEGER NOT NULL,
    cost REAL NOT NULL,
    PRIMARY KEY (key, most, queue, kind, share, rank, job_id, stage, element)
) WITHOUT ROWID;

CREATE INDEX waiting_by_task ON waiting (job_id, stage, element);

-- The shares that have tasks waiting, by their place in virtual time: whose turn it is, is one short look.
CREATE TABLE lanes (
    key TEXT NOT NULL,
    most INTEGER NOT NULL,
    queue TEXT NOT NULL,
    kind TEXT NOT NULL,
    pass REAL NOT NULL,
    share TEXT NOT NULL,
    PRIMARY KEY (key, most, queue, kind, pass, share)
) WITHOUT ROWID;

CREATE INDEX lanes_by_share ON lanes (key, queue, share);

-- When the next start of a share ends in virtual time; without a share, the time of the queue itself.
CREATE TABLE shares (
    key TEXT NOT NULL,
    queue TEXT NOT NULL,
    share TEXT NOT NULL,
    pass REAL NOT NULL,
    PRIMARY KEY (key, queue, share)
) WITHOUT ROWID;

-- Keys whose parked tasks are to be looked at, and when: a rate has room again, or somebody has raised a limit.
CREATE TABLE wakes (
    key TEXT PRIMARY KEY,
    at REAL NOT NULL
) WITHOUT ROWID;

CREATE INDEX wakes_by_time ON wakes (at);

-- The share of a task with turns, as JSON.
ALTER TABLE delayed ADD COLUMN share BLOB;

-- Jobs that wait for a slot (`on_conflict`), with what becomes due when they get it.
CREATE TABLE slot_line (
    slot TEXT NOT NULL,
    n INTEGER NOT NULL,
    job_id TEXT NOT NULL,
    due BLOB NOT NULL,
    PRIMARY KEY (slot, n)
) WITHOUT ROWID;

CREATE UNIQUE INDEX slot_line_job ON slot_line (slot, job_id);
