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

-- How the queues stood in each minute.
CREATE TABLE readings (
    at INTEGER PRIMARY KEY,
    body BLOB NOT NULL
);

-- What was last found of each part.
CREATE TABLE health (
    part TEXT PRIMARY KEY,
    body BLOB NOT NULL
) WITHOUT ROWID;

CREATE TABLE lost_workers (
    id TEXT PRIMARY KEY,
    seen_at REAL NOT NULL,
    missed_at REAL NOT NULL,
    body BLOB NOT NULL
) WITHOUT ROWID;
