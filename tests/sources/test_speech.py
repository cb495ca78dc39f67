"""The data model of the speech service, word for word: its JSON over HTTP, its columns, queries and indexes in SQL."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Iterator
from typing import Any, TypeAlias

import asyncpg
import pytest
import pytest_asyncio

from tests.apps.places import PLACES, Stand, stand
from tests.apps.test_speech import DESIGN

pytestmark = pytest.mark.asyncio(loop_scope="module")

FOR_LONG = 120.0
COLUMNS = {  # of the SQLAlchemy model
    "id": "UUID(as_uuid=True)",
    "user_id": "UUID(as_uuid=True)",
    "job_type": "Enum(JobType)",
    "status": "Enum(JobStatus)",
    "provider": "String(50)",
    "input_params": "JSONB",
    "audio_file_id": "UUID(as_uuid=True)",
    "result_metadata": "JSONB",
    "error_message": "String(500)",
    "retry_count": "Integer",
    "created_at": "DateTime(timezone=True)",
    "started_at": "DateTime(timezone=True)",
    "completed_at": "DateTime(timezone=True)",
}
TYPES = {
    "UUID(as_uuid=True)": "uuid",
    "Enum(JobType)": "character varying(50)",
    "Enum(JobStatus)": "character varying(20)",
    "String(50)": "character varying(50)",
    "String(500)": "character varying(500)",
    "JSONB": "jsonb",
    "Integer": "integer",
    "DateTime(timezone=True)": "timestamp with time zone",
}
INDEXES = """
CREATE INDEX idx_jobs_user_status ON jobs(user_id, status);
CREATE INDEX idx_jobs_created_at ON jobs(created_at DESC);
CREATE INDEX idx_jobs_pending ON jobs(status, created_at)
    WHERE status = 'pending';
CREATE INDEX idx_jobs_processing_timeout ON jobs(status, started_at)
    WHERE status = 'processing';
CREATE INDEX idx_jobs_completed_cleanup ON jobs(status, completed_at)
    WHERE status IN ('completed', 'failed', 'cancelled');
"""
INDEX = re.compile(r"CREATE INDEX (\w+) ON jobs\((.+)\)(?:\s+WHERE (.+))?;")
TYPES_OF = """
SELECT attname, format_type(atttypid, atttypmod) FROM pg_attribute WHERE attrelid = $1::regclass AND attnum > 0
"""
IS_VALID = """
SELECT indisvalid FROM pg_index JOIN pg_class c ON c.oid = indexrelid JOIN pg_namespace n ON n.oid = relnamespace
WHERE relname = $1 AND nspname || '_speech' = current_schema
"""

Db: TypeAlias = "asyncpg.Connection[asyncpg.Record]"


@pytest.fixture(scope="module")
def speech(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stand]:
    with stand(tmp_path_factory.mktemp("speech"), "packhorse_speech:app", PLACES["postgresql"], slots=1) as found:
        found.work()  # two that start at once
        found.ready("multi_role_tts")
        yield found


@pytest.fixture(scope="module")
def completed(speech: Stand) -> dict[str, Any]:
    job = speech.client.submit("multi_role_tts", json.loads(DESIGN), user="carol")
    return speech.client.wait(job["job_id"], FOR_LONG)


@pytest.fixture(scope="module")
def failed(speech: Stand) -> dict[str, Any]:
    wrong = {"turns": [{"speaker": "A", "text": "<voice>" + "x" * 600 + "</voice><break/>"}]}
    return speech.client.wait(speech.client.submit("multi_role_tts", wrong, user="carol")["job_id"], FOR_LONG)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def db(speech: Stand, completed: dict[str, Any]) -> AsyncIterator[Db]:
    """Where the tables of the design are found by their names."""
    address, _, schema = speech.server.place.settings.store.partition("?schema=")
    db = await asyncpg.connect(address, server_settings={"search_path": f"{schema}_speech"})
    await db.execute("SET enable_seqscan = off; SET enable_bitmapscan = off")
    yield db
    await db.close()


async def test_columns_have_the_names_and_types_of_the_model(db: Db) -> None:
    jobs = {row[0]: row[1] for row in await db.fetch(TYPES_OF, "jobs")}
    files = {row[0]: row[1] for row in await db.fetch(TYPES_OF, "audio_files")}

    expected = {name: TYPES[type] for name, type in COLUMNS.items()} | {"user_id": "text"}
    assert {name: jobs[name] for name in COLUMNS} == expected
    assert files == {
        "id": "uuid",
        "storage_path": "text",
        "format": "character varying(10)",
        "duration_ms": "integer",
        "size": "bigint",
    }


async def test_a_completed_job_has_the_documents_of_the_design_and_one_audio_file(
    db: Db, completed: dict[str, Any]
) -> None:
    [row] = await db.fetch(f"SELECT {', '.join(COLUMNS)} FROM jobs WHERE user_id = 'carol' AND status = 'completed'")
    [file] = await db.fetch("SELECT * FROM audio_files WHERE id = $1", row["audio_file_id"])

    assert (str(row["id"]), row["job_type"]) == (completed["job_id"], "multi_role_tts")
    assert json.loads(row["input_params"]) == json.loads(DESIGN)
    metadata = json.loads(row["result_metadata"])
    assert {"duration_ms", "latency_ms", "turn_timings"} <= metadata.keys()
    assert metadata["synthesis_mode"] == "segmented"
    assert [each.keys() for each in metadata["turn_timings"]] == [{"turn_index", "start_ms", "end_ms"}] * 2
    assert [each["turn_index"] for each in metadata["turn_timings"]] == [0, 1]
    assert (row["provider"], row["error_message"], row["retry_count"]) == ("espeak-ng", None, 0)
    assert row["created_at"] <= row["started_at"] <= row["completed_at"]
    assert (file["storage_path"], file["format"]) == (completed["result_object_keys"]["join"], "mp3")
    assert file["duration_ms"] == metadata["duration_ms"]
    assert file["size"] > 1000


async def test_a_failed_job_has_a_message_and_no_audio_file(db: Db, failed: dict[str, Any]) -> None:
    [row] = await db.fetch("SELECT * FROM jobs WHERE id = $1", failed["job_id"])

    assert (row["status"], row["audio_file_id"], row["result_metadata"]) == ("failed", None, None)
    assert 0 < len(row["error_message"]) <= 500
    assert row["retry_count"] <= 3
    assert row["completed_at"] is not None


@pytest.mark.parametrize(("name", "columns", "where"), INDEX.findall(INDEXES), ids=lambda value: value[:30])
async def test_each_index_of_the_design_is_there_and_used(db: Db, name: str, columns: str, where: str) -> None:
    asked = f"SELECT id FROM jobs WHERE {where or 'true'} ORDER BY {columns} LIMIT 10"
    is_valid = await db.fetchval(IS_VALID, name)

    plan = "\n".join(row[0] for row in await db.fetch(f"EXPLAIN {asked}"))

    assert is_valid
    assert re.search(r"using (idx_jobs_\w+|jobs_by_age)", plan)  # with few rows, PostgreSQL may prefer another of them


async def test_the_queries_of_background_tasks_run_unchanged(db: Db) -> None:
    for status, column, age in (("pending", "created_at", "24 hours"), ("processing", "started_at", "10 minutes")):
        late = f"SELECT id FROM jobs WHERE status = '{status}' AND {column} < now() - interval '{age}'"
        assert await db.fetch(late) == []
