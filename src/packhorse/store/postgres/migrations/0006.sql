-- Who has logged in to the pages.
CREATE TABLE @sessions (
    id text COLLATE "C" PRIMARY KEY,
    ends_at double precision NOT NULL,
    body bytea NOT NULL
);

CREATE INDEX sessions_by_end ON @sessions (ends_at);
