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

CREATE TABLE log_entries (
    log TEXT NOT NULL,
    n INTEGER NOT NULL,
    topic TEXT NOT NULL,
    body BLOB NOT NULL,
    PRIMARY KEY (log, n)
) WITHOUT ROWID;

CREATE INDEX log_entries_by_topic ON log_entries (log, topic, n) WHERE topic <> '';
