-- Everything beside jobs, in one shape. Only its collection reads a record's body and note.
CREATE TABLE @records (
    kind text COLLATE "C" NOT NULL,
    id text COLLATE "C" NOT NULL,
    body bytea NOT NULL,
    note bytea NOT NULL,
    stamp bigint NOT NULL,
    lane text COLLATE "C" NOT NULL,
    due_at double precision,
    attempts integer NOT NULL,
    job_id uuid,
    PRIMARY KEY (kind, id)
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_threshold = 1000);

CREATE INDEX records_by_time ON @records (kind, lane, due_at, id) WHERE due_at IS NOT NULL;
CREATE INDEX records_by_job ON @records (job_id) WHERE job_id IS NOT NULL;

-- Where records are listed. Whoever writes a record replaces its entries, under the lock of the record.
CREATE TABLE @record_index (
    kind text COLLATE "C" NOT NULL,
    name text COLLATE "C" NOT NULL,
    place text COLLATE "C" NOT NULL,
    id text COLLATE "C" NOT NULL,
    PRIMARY KEY (kind, name, place, id)
) WITH (autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_threshold = 1000);

CREATE INDEX record_index_by_record ON @record_index (kind, id);

CREATE TABLE @log_entries (
    log text COLLATE "C" NOT NULL,
    n bigint NOT NULL,
    topic text COLLATE "C" NOT NULL,
    body bytea NOT NULL,
    PRIMARY KEY (log, n)
) WITH (autovacuum_vacuum_scale_factor = 0.05);

CREATE INDEX log_entries_by_topic ON @log_entries (log, topic, n) WHERE topic <> '';

-- The last number given in each log. Who appends holds this row until its commit.
CREATE TABLE @logs (
    log text COLLATE "C" PRIMARY KEY,
    last bigint NOT NULL
) WITH (fillfactor = 10);

-- Takes the statement back where what it was decided on does not hold any more.
CREATE FUNCTION @expect(holds boolean) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF NOT holds THEN
        RAISE EXCEPTION 'the state has changed since this was decided';
    END IF;
END
$$;

-- The server's clock, in seconds.
CREATE FUNCTION @now() RETURNS double precision LANGUAGE sql AS
    'SELECT extract(epoch FROM clock_timestamp())::double precision';

-- Seconds as a timestamp, up to about the last that one can hold.
CREATE FUNCTION @moment(seconds double precision) RETURNS timestamptz LANGUAGE sql IMMUTABLE AS
    'SELECT CASE WHEN seconds IS NOT NULL THEN to_timestamp(least(seconds, 9e12)) END';
