-- Who has logged in to the pages.
CREATE TABLE sessions (
    id TEXT PRIMARY KEY,
    ends_at REAL NOT NULL,
    body BLOB NOT NULL
) WITHOUT ROWID;

CREATE INDEX sessions_by_end ON sessions (ends_at);
