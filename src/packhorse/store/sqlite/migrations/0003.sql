-- What is run when. What is looked for has a column; the schedule itself is in `body`.
CREATE TABLE schedules (
    tenant TEXT NOT NULL,
    id TEXT NOT NULL,
    stamp INTEGER NOT NULL,
    next_at REAL,
    body BLOB NOT NULL,
    PRIMARY KEY (tenant, id)
) WITHOUT ROWID;

CREATE INDEX schedules_by_next ON schedules (next_at) WHERE next_at IS NOT NULL;

CREATE TABLE revisions (
    tenant TEXT NOT NULL,
    schedule TEXT NOT NULL,
    version INTEGER NOT NULL,
    body BLOB NOT NULL,
    PRIMARY KEY (tenant, schedule, version)
) WITHOUT ROWID;

-- What became of each tick.
CREATE TABLE runs (
    tenant TEXT NOT NULL,
    schedule TEXT NOT NULL,
    tick REAL NOT NULL,
    version INTEGER NOT NULL,
    status TEXT NOT NULL,
    stamp INTEGER NOT NULL,
    is_manual INTEGER NOT NULL,
    message TEXT NOT NULL,
    job_id TEXT,
    trace_id TEXT NOT NULL,
    started_at REAL,
    ended_at REAL,
    due_at REAL,
    until REAL,
    count INTEGER NOT NULL,
    PRIMARY KEY (tenant, schedule, tick)
) WITHOUT ROWID;

CREATE INDEX runs_by_due ON runs (due_at) WHERE due_at IS NOT NULL;
CREATE INDEX runs_open ON runs (tenant, schedule, tick) WHERE status IN ('due', 'fired');
