"""The view of speech jobs on PostgreSQL: what other parts of a product join with their own tables.

``python -m packhorse_speech.view postgresql://…`` makes it, or makes it anew.
"""

from __future__ import annotations

import asyncio
import sys
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

from packhorse_speech.app import STATUSES

VIEW = """
CREATE OR REPLACE VIEW {schema}.speech_jobs AS
SELECT
    job.id,
    job.tenant,
    job.user_id,
    job.pipeline AS job_type,
    CASE job.status {statuses} ELSE job.status END AS status,
    coalesce(job.parameters ->> 'provider', 'espeak-ng') AS provider,
    job.parameters AS input_params,
    jsonb_array_length(job.parameters -> 'turns') AS turns,
    made.audio_file,
    (job.result ->> 'duration_ms')::integer AS duration_ms,
    job.result - 'audio' AS result_metadata,
    job.error_message,
    job.retry_count,
    job.created_at,
    job.started_at,
    job.completed_at,
    job.purge_at AS expires_at
FROM {schema}.jobs AS job
LEFT JOIN LATERAL (
    SELECT convert_from(result.body, 'UTF8')::jsonb #>> '{{files,0,file,key}}' AS audio_file
    FROM {schema}.results AS result
    WHERE result.job_id = job.id AND result.stage = 'join' AND job.status = 'completed'
) AS made ON true
WHERE job.pipeline = 'multi_role_tts'
"""


async def create(url: str) -> None:
    """``url`` is that of the store, as in PACKHORSE_STORE."""
    import asyncpg

    parts = urlsplit(url)
    options = dict(parse_qsl(parts.query))
    schema = options.pop("schema", "packhorse")
    db = await asyncpg.connect(urlunsplit(parts._replace(query=urlencode(options))))
    try:
        words = " ".join(f"WHEN '{status}' THEN '{called}'" for status, called in STATUSES.items())
        await db.execute(VIEW.format(schema=schema, statuses=words))
    finally:
        await db.close()


if __name__ == "__main__":
    asyncio.run(create(sys.argv[1]))
