-- What a claim writes to start the task, where that was known when the job was submitted: see starts.py.
ALTER TABLE @due ADD COLUMN start text;

-- Eight bytes of a number, the lowest first, as in the times before a state.
CREATE FUNCTION @double(number double precision) RETURNS bytea LANGUAGE sql IMMUTABLE AS
    'SELECT substr(float8send(number), 8, 1) || substr(float8send(number), 7, 1) || substr(float8send(number), 6, 1)
        || substr(float8send(number), 5, 1) || substr(float8send(number), 4, 1) || substr(float8send(number), 3, 1)
        || substr(float8send(number), 2, 1) || substr(float8send(number), 1, 1)';

-- Limits and fair shares. A task without them has no row in any of these tables. Who counts, parks or gives turns holds the
-- row of `regulator`, before any other lock. A commit does none of that: it deletes what it held, adds what is due, and
-- leaves a row in `news` for the next claim.
CREATE TABLE @regulator (id integer PRIMARY KEY);
INSERT INTO @regulator VALUES (1);

-- What an operator has set for a limit, instead of what the plans say.
CREATE TABLE @limits (
    name text COLLATE "C" PRIMARY KEY,
    most bigint NOT NULL
);

-- Which leases are counted under which keys. Written and deleted with the lease.
CREATE TABLE @holds (
    job_id uuid NOT NULL,
    stage text COLLATE "C" NOT NULL,
    element integer NOT NULL,
    key text COLLATE "C" NOT NULL,
    since double precision NOT NULL,
    PRIMARY KEY (job_id, stage, element, key)
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_cost_delay = 0);

CREATE INDEX holds_by_key ON @holds (key, since, job_id);

-- The starts that rates count.
CREATE TABLE @starts (
    key text COLLATE "C" NOT NULL,
    at double precision NOT NULL
) WITH (autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_threshold = 1000);

CREATE INDEX starts_by_key ON @starts (key, at);

-- Due tasks that are parked under a key, or, with an empty key, may start. `most` is what the plan says of the limit: tasks
-- of one key, number, queue and kind may start or wait together. An empty share has no turns. A row is moved by an update,
-- so that a commit that takes the task back always finds it.
CREATE TABLE @waiting (
    job_id uuid NOT NULL,
    stage text COLLATE "C" NOT NULL,
    element integer NOT NULL,
    key text COLLATE "C" NOT NULL,
    most bigint NOT NULL,
    queue text COLLATE "C" NOT NULL,
    kind text COLLATE "C" NOT NULL,
    share text COLLATE "C" NOT NULL,
    rank bigint NOT NULL,
    cost double precision NOT NULL,
    uses jsonb NOT NULL,
    PRIMARY KEY (job_id, stage, element)
) WITH (autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_threshold = 2000, autovacuum_vacuum_cost_delay = 0);

CREATE INDEX waiting_in_order ON @waiting (key, most, queue, kind, share, rank, job_id, stage, element);

-- The shares that have tasks waiting, by their place in virtual time: whose turn it is, is one short look. The primary key
-- begins with the share, so that no plan takes it for that look and sorts.
CREATE TABLE @lanes (
    key text COLLATE "C" NOT NULL,
    most bigint NOT NULL,
    queue text COLLATE "C" NOT NULL,
    kind text COLLATE "C" NOT NULL,
    pass double precision NOT NULL,
    share text COLLATE "C" NOT NULL,
    PRIMARY KEY (share, queue, key, most, kind)
) WITH (autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_cost_delay = 0);

CREATE INDEX lanes_in_order ON @lanes (key, most, queue, kind, pass, share);

-- When the next start of a share ends in virtual time; without a share, the time of the queue itself.
CREATE TABLE @shares (
    key text COLLATE "C" NOT NULL,
    queue text COLLATE "C" NOT NULL,
    share text COLLATE "C" NOT NULL,
    pass double precision NOT NULL,
    PRIMARY KEY (key, queue, share)
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_threshold = 1000);

-- Keys of rates, and when one has room again for what is parked.
CREATE TABLE @wakes (
    key text COLLATE "C" PRIMARY KEY,
    at double precision NOT NULL
);

CREATE INDEX wakes_by_time ON @wakes (at);

-- What commits leave to the next claim: a key that may have room, or with an empty key, a share with a new task.
CREATE TABLE @news (
    id bigserial PRIMARY KEY,
    key text COLLATE "C" NOT NULL,
    queue text COLLATE "C",
    kind text COLLATE "C",
    share text COLLATE "C",
    cost double precision
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_cost_delay = 0);

-- Of a task with limits or turns: its share, cost, rank and uses, as JSON.
ALTER TABLE @delayed ADD COLUMN turn jsonb;

CREATE FUNCTION @window_of(key text) RETURNS double precision LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE substring(split_part(key, '=', 1) FROM '[^.]*$')
        WHEN 'per_second' THEN 1.0 WHEN 'per_minute' THEN 60.0 WHEN 'per_hour' THEN 3600.0 ELSE 0.0 END
$$;

-- How much of a limit is used. Starts in the future were counted by a clock that was ahead: they count as of now.
CREATE FUNCTION @used(of text, seconds double precision, moment double precision) RETURNS bigint LANGUAGE plpgsql AS $$
#variable_conflict use_column
BEGIN
    IF seconds = 0 THEN
        RETURN (SELECT count(*) FROM @holds WHERE key = of);
    END IF;
    UPDATE @starts SET at = moment WHERE key = of AND at > moment;
    RETURN (SELECT count(*) FROM @starts WHERE key = of AND at >= moment - seconds);
END
$$;

-- The first of these limits under which no more may start, by its place; null if there is none.
CREATE FUNCTION @first_full(uses jsonb, moment double precision) RETURNS integer LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    use jsonb;
BEGIN
    FOR n IN 0 .. jsonb_array_length(uses) - 1 LOOP
        use := uses -> n;
        IF coalesce((SELECT most FROM @limits WHERE name = use ->> 0), (use ->> 2)::bigint)
            <= @used(use ->> 1, (use ->> 3)::double precision, moment) THEN
            RETURN n;
        END IF;
    END LOOP;
    RETURN NULL;
END
$$;

CREATE FUNCTION @time_of(of text, in_queue text) RETURNS double precision LANGUAGE plpgsql AS $$
#variable_conflict use_column
BEGIN
    RETURN (SELECT coalesce((SELECT pass FROM @shares WHERE key = of AND queue = in_queue AND share = ''), 0.0));
END
$$;

CREATE FUNCTION @set_pass(of text, in_queue text, whose text, value double precision) RETURNS void LANGUAGE plpgsql AS $$
#variable_conflict use_column
BEGIN
    INSERT INTO @shares (key, queue, share, pass) VALUES (of, in_queue, whose, value)
    ON CONFLICT (key, queue, share) DO UPDATE SET pass = excluded.pass;
END
$$;

-- Let a share take part. One that was idle begins at the time of the queue.
CREATE FUNCTION @add_lane(of text, number bigint, in_queue text, of_kind text, whose text, price double precision)
RETURNS void LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    begun double precision := 0.0;
BEGIN
    IF EXISTS (SELECT FROM @lanes
               WHERE key = of AND queue = in_queue AND share = whose AND most = number AND kind = of_kind) THEN
        RETURN;
    END IF;
    IF whose <> '' THEN
        SELECT pass INTO begun FROM @shares WHERE key = of AND queue = in_queue AND share = whose;
        IF begun IS NULL OR NOT EXISTS (SELECT FROM @lanes WHERE key = of AND queue = in_queue AND share = whose) THEN
            begun := greatest(begun, @time_of(of, in_queue) + price);
            PERFORM @set_pass(of, in_queue, whose, begun);
        END IF;
    END IF;
    INSERT INTO @lanes (key, most, queue, kind, pass, share) VALUES (of, number, in_queue, of_kind, begun, whose);
END
$$;

CREATE FUNCTION @drop_lane(of text, number bigint, in_queue text, of_kind text, whose text) RETURNS void
LANGUAGE plpgsql AS $$
#variable_conflict use_column
BEGIN
    DELETE FROM @lanes WHERE key = of AND queue = in_queue AND share = whose AND most = number AND kind = of_kind
    AND NOT EXISTS (
        SELECT FROM @waiting AS w
        WHERE w.key = of AND w.most = number AND w.queue = in_queue AND w.kind = of_kind AND w.share = whose
    );
END
$$;

-- The share has used its turn.
CREATE FUNCTION @charge(of text, in_queue text, whose text, price double precision) RETURNS void LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    now_at double precision := @time_of(of, in_queue);
    spent double precision;
BEGIN
    SELECT pass INTO spent FROM @shares WHERE key = of AND queue = in_queue AND share = whose;
    spent := coalesce(spent, now_at + price);
    PERFORM @set_pass(of, in_queue, '', greatest(now_at, spent));
    PERFORM @set_pass(of, in_queue, whose, spent + price);
    UPDATE @lanes SET pass = spent + price WHERE key = of AND queue = in_queue AND share = whose;
END
$$;

-- Count a start under its limits, and let its share pay for the turn.
CREATE FUNCTION @count_start(
    job uuid, in_stage text, nth integer, in_queue text, whose text, price double precision, uses jsonb,
    moment double precision
) RETURNS void LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    use jsonb;
    seconds double precision;
BEGIN
    FOR use IN SELECT * FROM jsonb_array_elements(uses) LOOP
        seconds := (use ->> 3)::double precision;
        IF seconds = 0 THEN
            INSERT INTO @holds (job_id, stage, element, key, since) VALUES (job, in_stage, nth, use ->> 1, moment)
            ON CONFLICT (job_id, stage, element, key) DO UPDATE SET since = excluded.since;
        ELSE
            INSERT INTO @starts (key, at) VALUES (use ->> 1, moment);
            DELETE FROM @starts WHERE ctid = ANY(ARRAY(
                SELECT ctid FROM @starts WHERE key = use ->> 1 AND at < moment - seconds LIMIT 10
            ));
            IF EXISTS (SELECT FROM @lanes WHERE key = use ->> 1) THEN
                PERFORM @wake_at(use ->> 1, moment + seconds);
            END IF;
        END IF;
    END LOOP;
    IF whose <> '' THEN
        PERFORM @charge('', in_queue, whose, price);
    END IF;
END
$$;

CREATE FUNCTION @wake_at(of text, moment double precision) RETURNS void LANGUAGE plpgsql AS $$
#variable_conflict use_column
BEGIN
    INSERT INTO @wakes AS w (key, at) VALUES (of, moment)
    ON CONFLICT (key) DO UPDATE SET at = least(w.at, excluded.at);
END
$$;

-- Let tasks that are parked under the key be claimed: for each number, queue and kind up to ``highest``, as far as it has
-- room. Returns how many that were of the largest of these groups. What a commit is just taking back is left to the next
-- claim.
CREATE FUNCTION @wake(of text, highest bigint, moment double precision) RETURNS bigint LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    lane record;
    task record;
    used bigint := NULL;
    room bigint;
    woken bigint;
    largest bigint := 0;
    number bigint := -1;
    in_queue text := '';
    of_kind text := '';
BEGIN
    LOOP
        SELECT most, queue, kind INTO number, in_queue, of_kind FROM @lanes
        WHERE key = of AND (most, queue, kind) > (number, in_queue, of_kind) ORDER BY most, queue, kind LIMIT 1;
        EXIT WHEN NOT FOUND;
        used := coalesce(used, @used(of, @window_of(of), moment));
        room := least(
            highest, coalesce((SELECT most FROM @limits WHERE name = split_part(of, '=', 1)), number) - used
        );
        woken := 0;
        WHILE woken < room LOOP
            SELECT share INTO lane FROM @lanes
            WHERE key = of AND most = number AND queue = in_queue AND kind = of_kind ORDER BY pass, share LIMIT 1;
            EXIT WHEN NOT FOUND;
            SELECT job_id, stage, element, cost INTO task FROM @waiting
            WHERE key = of AND most = number AND queue = in_queue AND kind = of_kind AND share = lane.share
            ORDER BY rank, job_id, stage, element LIMIT 1 FOR UPDATE SKIP LOCKED;
            IF FOUND THEN
                woken := woken + 1;
                IF lane.share <> '' THEN
                    PERFORM @charge(of, in_queue, lane.share, task.cost);
                END IF;
                UPDATE @waiting SET key = '', most = 0
                WHERE job_id = task.job_id AND stage = task.stage AND element = task.element;
                IF lane.share <> '' THEN
                    PERFORM @add_lane('', 0, in_queue, of_kind, lane.share, task.cost);
                END IF;
            ELSIF EXISTS (
                SELECT FROM @waiting WHERE key = of AND most = number AND queue = in_queue AND kind = of_kind
                AND share = lane.share
            ) THEN
                INSERT INTO @news (key) VALUES (of);
                EXIT;
            END IF;
            PERFORM @drop_lane(of, number, in_queue, of_kind, lane.share);
        END LOOP;
        largest := greatest(largest, woken);
    END LOOP;
    RETURN largest;
END
$$;

-- Wake what time, a commit or an operator has made room for. A time past every window was planned by a wrong clock.
CREATE FUNCTION @see_to_news(moment double precision) RETURNS void LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    each record;
    seconds double precision;
    oldest double precision;
BEGIN
    FOR each IN
        WITH seen AS (
            DELETE FROM @news WHERE id = ANY(ARRAY(SELECT id FROM @news ORDER BY id LIMIT 10000)) RETURNING *
        )
        SELECT key, queue, kind, share, min(cost) AS cost FROM seen GROUP BY key, queue, kind, share ORDER BY min(id)
    LOOP
        IF each.key <> '' THEN
            IF @wake(each.key, 1000, moment) = 1000 THEN
                INSERT INTO @news (key) VALUES (each.key);
            END IF;
        ELSIF EXISTS (
            SELECT FROM @waiting WHERE key = '' AND most = 0 AND queue = each.queue AND kind = each.kind
            AND share = each.share
        ) THEN
            PERFORM @add_lane('', 0, each.queue, each.kind, each.share, each.cost);
        END IF;
    END LOOP;
    FOR each IN SELECT key FROM @wakes WHERE at < moment OR at > moment + 7200 LIMIT 100 LOOP
        seconds := @window_of(each.key);
        IF @wake(each.key, 1000, moment) = 1000 THEN
            CONTINUE;
        END IF;
        SELECT min(at) INTO oldest FROM @starts WHERE key = each.key AND at >= moment - seconds;
        IF oldest IS NOT NULL AND EXISTS (SELECT FROM @lanes WHERE key = each.key) THEN
            UPDATE @wakes SET at = oldest + seconds WHERE key = each.key;
        ELSE
            DELETE FROM @wakes WHERE key = each.key;
        END IF;
    END LOOP;
END
$$;

-- Park a task under the limit that is full. What waits for its other limits gets the room that was meant for it.
CREATE FUNCTION @park(task @waiting, nth integer, moment double precision) RETURNS void LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    full_use jsonb := task.uses -> nth;
    of text := full_use ->> 1;
    number bigint := (full_use ->> 2)::bigint;
    seconds double precision := (full_use ->> 3)::double precision;
    oldest double precision;
    use jsonb;
BEGIN
    UPDATE @waiting SET key = of, most = number
    WHERE job_id = task.job_id AND stage = task.stage AND element = task.element;
    IF task.share <> '' THEN
        PERFORM @drop_lane('', 0, task.queue, task.kind, task.share);
    END IF;
    PERFORM @add_lane(of, number, task.queue, task.kind, task.share, task.cost);
    IF seconds > 0 THEN
        SELECT min(at) INTO oldest FROM @starts WHERE key = of AND at >= moment - seconds;
        IF oldest IS NOT NULL THEN
            PERFORM @wake_at(of, oldest + seconds);
        END IF;
    END IF;
    FOR use IN SELECT * FROM jsonb_array_elements(task.uses) LOOP
        IF use ->> 1 <> of THEN
            PERFORM @wake(use ->> 1, 1, moment);
        END IF;
    END LOOP;
END
$$;

-- The first task of the share whose turn it is, of one kind. Lanes without a task are dropped on the way.
CREATE FUNCTION @first_turn(in_queue text, of_kind text, passed text[]) RETURNS SETOF @waiting LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    lane record;
    task @waiting;
BEGIN
    FOR lane IN
        SELECT share FROM @lanes WHERE key = '' AND most = 0 AND queue = in_queue AND kind = of_kind ORDER BY pass, share
    LOOP
        SELECT * INTO task FROM @waiting
        WHERE key = '' AND most = 0 AND queue = in_queue AND kind = of_kind AND share = lane.share
            AND job_id || ' ' || element || ' ' || stage <> ALL (passed)
        ORDER BY rank, job_id, stage, element LIMIT 1;
        IF FOUND THEN
            RETURN NEXT task;
            RETURN;
        END IF;
        PERFORM @drop_lane('', 0, in_queue, of_kind, lane.share);
    END LOOP;
END
$$;

-- The next task of each of the three: what has neither limits nor turns, what has limits only, and whose turn it is.
-- Starts, parks or passes them until so many are started. What is returned is locked, and what has limits or turns is
-- counted, and is in no queue any more. A last row without a job: it has looked at as many as it may at a time.
CREATE FUNCTION @choose(
    in_queue text, kinds text[], wanted integer, passed text[], moment double precision
) RETURNS TABLE (
    queue text, kind text, rank integer, job_id uuid, stage text, element integer, turn jsonb
) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    plain @due;
    task @waiting;
    lone @waiting;
    first @waiting;
    full_at integer;
    looks integer := 0;
    is_plain boolean;
    was text := 'all';  -- which of the three was used up, or changed
BEGIN
    WHILE wanted > 0 AND looks < 1000 LOOP
        IF was IN ('plain', 'all') THEN
            SELECT e.* INTO plain FROM unnest(kinds) AS k (kind) CROSS JOIN LATERAL (
                SELECT * FROM @due AS d WHERE d.queue = in_queue AND d.kind = k.kind
                    AND d.job_id || ' ' || d.element || ' ' || d.stage <> ALL (passed)
                ORDER BY d.rank, d.job_id, d.stage, d.element LIMIT 1
            ) AS e ORDER BY e.rank, e.job_id, e.stage, e.element LIMIT 1;
        END IF;
        IF was IN ('lone', 'all') THEN
            SELECT e.* INTO lone FROM unnest(kinds) AS k (kind) CROSS JOIN LATERAL (
                SELECT * FROM @waiting AS w
                WHERE w.key = '' AND w.most = 0 AND w.queue = in_queue AND w.kind = k.kind AND w.share = ''
                    AND w.job_id || ' ' || w.element || ' ' || w.stage <> ALL (passed)
                ORDER BY w.rank, w.job_id, w.stage, w.element LIMIT 1
            ) AS e ORDER BY e.rank, e.job_id, e.stage, e.element LIMIT 1;
        END IF;
        IF was IN ('turn', 'all') THEN
            SELECT e.* INTO first FROM unnest(kinds) AS k (kind) CROSS JOIN LATERAL (
                SELECT w.*, (
                    SELECT l.pass FROM @lanes AS l
                    WHERE l.key = '' AND l.queue = in_queue AND l.share = w.share AND l.most = 0 AND l.kind = k.kind
                ) AS pass
                FROM @first_turn(in_queue, k.kind, passed) AS w
            ) AS e ORDER BY e.pass, e.share, e.rank, e.job_id, e.stage, e.element LIMIT 1;
        END IF;
        EXIT WHEN plain.job_id IS NULL AND lone.job_id IS NULL AND first.job_id IS NULL;
        task := first;
        was := 'turn';
        -- Compared with a turn, what has none goes by priority, then age: the rank of aging is a time.
        IF lone.job_id IS NOT NULL AND (task.job_id IS NULL OR (lone.rank, lone.job_id)
            < (CASE WHEN abs(task.rank) <= 1000 THEN task.rank ELSE 0 END, task.job_id)) THEN
            task := lone;
            was := 'lone';
        END IF;
        is_plain := plain.job_id IS NOT NULL AND (task.job_id IS NULL OR (plain.rank, plain.job_id)
            < (CASE WHEN abs(task.rank) <= 1000 THEN task.rank ELSE 0 END, task.job_id));
        looks := looks + 1;
        IF is_plain THEN
            was := 'plain';
            passed := passed || (plain.job_id || ' ' || plain.element || ' ' || plain.stage);
            PERFORM FROM @jobs AS j WHERE j.id = plain.job_id FOR NO KEY UPDATE SKIP LOCKED;
            CONTINUE WHEN NOT FOUND;
            PERFORM FROM @due AS d WHERE (d.queue, d.kind, d.rank, d.job_id, d.stage, d.element)
                = (plain.queue, plain.kind, plain.rank, plain.job_id, plain.stage, plain.element)
                FOR UPDATE SKIP LOCKED;
            CONTINUE WHEN NOT FOUND;
            queue := in_queue; kind := plain.kind; rank := plain.rank; job_id := plain.job_id; stage := plain.stage;
            element := plain.element; turn := NULL;
            RETURN NEXT;
            wanted := wanted - 1;
            CONTINUE;
        END IF;
        PERFORM FROM @jobs AS j WHERE j.id = task.job_id FOR NO KEY UPDATE SKIP LOCKED;
        IF FOUND THEN
            PERFORM FROM @waiting AS w
            WHERE w.job_id = task.job_id AND w.stage = task.stage AND w.element = task.element FOR UPDATE SKIP LOCKED;
        ELSIF NOT EXISTS (SELECT FROM @jobs AS j WHERE j.id = task.job_id) THEN  -- deleted by hand
            DELETE FROM @waiting AS w
            WHERE w.job_id = task.job_id AND w.stage = task.stage AND w.element = task.element;
            CONTINUE;
        END IF;
        IF NOT FOUND THEN
            passed := passed || (task.job_id || ' ' || task.element || ' ' || task.stage);
            CONTINUE;
        END IF;
        full_at := @first_full(task.uses, moment);
        IF full_at IS NOT NULL THEN
            PERFORM @park(task, full_at, moment);
            was := 'all';
            CONTINUE;
        END IF;
        DELETE FROM @waiting AS w
        WHERE w.job_id = task.job_id AND w.stage = task.stage AND w.element = task.element;
        PERFORM @count_start(
            task.job_id, task.stage, task.element, in_queue, task.share, task.cost, task.uses, moment
        );
        IF task.share <> '' THEN
            PERFORM @drop_lane('', 0, in_queue, task.kind, task.share);
        END IF;
        queue := in_queue; kind := task.kind; rank := NULL; job_id := task.job_id; stage := task.stage;
        element := task.element; turn := jsonb_build_array(task.share, task.cost, task.rank, task.uses);
        RETURN NEXT;
        wanted := wanted - 1;
    END LOOP;
    IF looks = 1000 THEN
        job_id := NULL;
        RETURN NEXT;
    END IF;
END
$$;

-- A task that was chosen and is not started waits again. Another one may start in its place.
CREATE FUNCTION @give_back(
    in_queue text, of_kind text, job uuid, in_stage text, nth integer, turn jsonb, moment double precision
) RETURNS void LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    use jsonb;
BEGIN
    DELETE FROM @holds WHERE job_id = job AND stage = in_stage AND element = nth;
    INSERT INTO @waiting (job_id, stage, element, key, most, queue, kind, share, rank, cost, uses)
    VALUES (job, in_stage, nth, '', 0, in_queue, of_kind, turn ->> 0, (turn ->> 2)::bigint,
        (turn ->> 1)::double precision, turn -> 3);
    IF turn ->> 0 <> '' THEN
        PERFORM @add_lane('', 0, in_queue, of_kind, turn ->> 0, (turn ->> 1)::double precision);
    END IF;
    FOR use IN SELECT * FROM jsonb_array_elements(turn -> 3) LOOP
        IF (use ->> 3)::double precision > 0 THEN
            DELETE FROM @starts WHERE ctid = ANY(ARRAY(
                SELECT ctid FROM @starts WHERE key = use ->> 1 ORDER BY at DESC LIMIT 1
            ));
        END IF;
        PERFORM @wake(use ->> 1, 1, moment);
    END LOOP;
END
$$;

-- Jobs that wait for a slot (`on_conflict`), with what becomes due when they get it. `has_line`: somebody may wait.
ALTER TABLE @slots ADD COLUMN has_line bool NOT NULL DEFAULT false;

CREATE TABLE @slot_line (
    slot text NOT NULL,
    n int8 GENERATED ALWAYS AS IDENTITY,
    job_id uuid NOT NULL,
    due bytea NOT NULL,
    PRIMARY KEY (slot, n),
    UNIQUE (slot, job_id)
);
