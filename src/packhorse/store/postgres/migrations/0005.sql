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

-- How the queues stood in each minute.
CREATE TABLE @readings (
    at bigint PRIMARY KEY,
    body bytea NOT NULL
);

-- What was last found of each part.
CREATE TABLE @health (
    part text PRIMARY KEY,
    body bytea NOT NULL
) WITH (fillfactor = 60);

CREATE TABLE @lost_workers (
    id text PRIMARY KEY,
    seen_at double precision NOT NULL,
    missed_at double precision NOT NULL,
    body bytea NOT NULL
);
