-- The tables `jobs` and `audio_files` of the speech service's design, in a schema of their own, with its names, types
-- and statuses. Both are views of packhorse's tables, so they always match the jobs and are deleted with them.
-- @schema is the schema of the store. The app declares this file; a worker runs it with the role of the store.

CREATE SCHEMA IF NOT EXISTS @schema_speech;

CREATE OR REPLACE VIEW @schema_speech.jobs AS
SELECT
    job.id,
    job.user_id,
    job.pipeline::varchar(50) AS job_type,
    (CASE job.status WHEN 'running' THEN 'processing' ELSE job.status END)::varchar(20) AS status,
    coalesce(job.parameters ->> 'provider', 'espeak-ng')::varchar(50) AS provider,
    job.parameters AS input_params,
    CASE WHEN job.status = 'completed' THEN md5(job.id::text || '/audio')::uuid END AS audio_file_id,
    job.result - 'audio' AS result_metadata,
    left(job.error_message, 500)::varchar(500) AS error_message,
    job.retry_count,
    job.created_at,
    job.started_at,
    job.completed_at,
    job.tenant,
    job.purge_at AS expires_at
FROM @schema.jobs AS job
WHERE job.pipeline = 'multi_role_tts';

CREATE OR REPLACE VIEW @schema_speech.audio_files AS
SELECT
    md5(job.id::text || '/audio')::uuid AS id,
    made.file ->> 'key' AS storage_path,
    substring(made.file ->> 'key' from '[^.]+$')::varchar(10) AS format,
    (job.result ->> 'duration_ms')::integer AS duration_ms,
    (made.file ->> 'size')::bigint AS size
FROM @schema.jobs AS job
CROSS JOIN LATERAL (
    SELECT convert_from(result.body, 'UTF8')::jsonb #> '{files,0,file}' AS file
    FROM @schema.results AS result
    WHERE result.job_id = job.id AND result.stage = 'join'
) AS made
WHERE job.pipeline = 'multi_role_tts' AND job.status = 'completed';

-- concurrently
-- The indexes of the design, with its names and columns. The expressions are those of the view, so that queries of the
-- view use them. They contain the jobs of this app only.
-- A worker creates each that is missing, outside of the transaction. Jobs can be written meanwhile.
CREATE INDEX CONCURRENTLY IF NOT EXISTS idx_jobs_user_status ON @schema.jobs
    (user_id, ((CASE status WHEN 'running' THEN 'processing' ELSE status END)::varchar(20)))
    WHERE pipeline = 'multi_role_tts';
CREATE INDEX CONCURRENTLY IF NOT EXISTS idx_jobs_created_at ON @schema.jobs (created_at DESC)
    WHERE pipeline = 'multi_role_tts';
CREATE INDEX CONCURRENTLY IF NOT EXISTS idx_jobs_pending ON @schema.jobs
    (((CASE status WHEN 'running' THEN 'processing' ELSE status END)::varchar(20)), created_at)
    WHERE pipeline = 'multi_role_tts' AND (CASE status WHEN 'running' THEN 'processing' ELSE status END)::varchar(20) = 'pending';
CREATE INDEX CONCURRENTLY IF NOT EXISTS idx_jobs_processing_timeout ON @schema.jobs
    (((CASE status WHEN 'running' THEN 'processing' ELSE status END)::varchar(20)), started_at)
    WHERE pipeline = 'multi_role_tts' AND (CASE status WHEN 'running' THEN 'processing' ELSE status END)::varchar(20) = 'processing';
CREATE INDEX CONCURRENTLY IF NOT EXISTS idx_jobs_completed_cleanup ON @schema.jobs
    (((CASE status WHEN 'running' THEN 'processing' ELSE status END)::varchar(20)), completed_at)
    WHERE pipeline = 'multi_role_tts' AND (CASE status WHEN 'running' THEN 'processing' ELSE status END)::varchar(20) IN ('completed', 'failed', 'cancelled');
