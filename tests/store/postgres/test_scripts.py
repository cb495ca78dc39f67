"""SQL files of apps: each version runs once, as a whole or not at all, and only on PostgreSQL."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from pathlib import Path

import asyncpg
import pytest

from packhorse.errors import StoreUnavailable
from packhorse.factory import run_app_sql
from packhorse.settings import Settings
from packhorse.store.postgres import PostgresStore
from packhorse.store.postgres.connection import SQL, address_from
from packhorse.worker.pool import describe
from tests.servers import postgres
from tests.store.postgres.inside import Raw, connected, schema_of, somebody_waits_for

SCRIPT = "CREATE TABLE @schema.made (n int); INSERT INTO @schema.made VALUES (1);"
WITH_INDEX = f"{SCRIPT}\n-- concurrently\nCREATE INDEX CONCURRENTLY IF NOT EXISTS made_n ON @schema.made (n);"
VALID = """SELECT relname, indisvalid FROM pg_index JOIN pg_class ON oid = indexrelid
WHERE indrelid = 'made'::regclass"""


async def indexes(raw: Raw) -> list[tuple[str, bool]]:
    """The indexes of the table by name, and whether each is valid."""
    return [(name, is_valid) for name, is_valid in await raw.fetch(VALID)]


async def test_each_version_of_a_file_runs_once(url: str, pg: PostgresStore, raw: Raw) -> None:
    other = await PostgresStore.open(url)

    both = await asyncio.gather(pg.install("mine", SCRIPT), other.install("mine", SCRIPT))
    again = await pg.install("mine", SCRIPT)
    changed = await pg.install("mine", "INSERT INTO @schema.made VALUES (2);")

    assert (sorted(both), again, changed) == ([False, True], False, True)
    assert [row[0] for row in await raw.fetch("SELECT n FROM made ORDER BY n")] == [1, 2]
    await other.close()


async def test_a_file_that_fails_leaves_nothing(pg: PostgresStore, raw: Raw) -> None:
    with pytest.raises(StoreUnavailable, match="the SQL file of mine"):
        await pg.install("mine", f"{SCRIPT} SELECT 1 / 0;")

    assert await raw.fetchval("SELECT to_regclass('made')") is None
    assert await pg.install("mine", SCRIPT)


async def test_an_at_sign_in_the_file_stays_as_it_is(pg: PostgresStore, raw: Raw) -> None:
    await pg.install(
        "mine",
        """CREATE TABLE @schema.made (mail text, is_in boolean);
        INSERT INTO @schema.made SELECT 'a@b.c d@schema.org', '{"a": 1, "b": 2}'::jsonb @> '{"a": 1}';""",
    )

    assert tuple(*await raw.fetch("SELECT mail, is_in FROM made")) == ("a@b.c d@schema.org", True)


@pytest.fixture
async def guest(url: str, pg: PostgresStore, raw: Raw) -> AsyncIterator[PostgresStore]:
    """The same store for a role that may use its tables and create nothing."""
    schema, role = schema_of(url), f"guest_{schema_of(url)}"
    await pg.install("mine", WITH_INDEX)
    await raw.execute(f"CREATE ROLE {role} LOGIN; GRANT USAGE ON SCHEMA {schema} TO {role}")
    await raw.execute(f"GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA {schema} TO {role}")
    opened = PostgresStore(address_from(postgres.server().url(schema, role)))
    yield opened
    await opened.close()
    await raw.execute(f"DROP OWNED BY {role}; DROP ROLE {role}")


async def test_a_role_that_may_not_create_anything_finds_what_is_there(guest: PostgresStore) -> None:
    assert not await guest.install("mine", WITH_INDEX)
    with pytest.raises(StoreUnavailable, match="permission denied"):
        await guest.install("mine", f"{SCRIPT} SELECT 1;")


async def test_a_file_stops_waiting_for_a_lock_that_others_hold_for_long(
    pg: PostgresStore, raw: Raw, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("packhorse.store.postgres.store.MIGRATING", 20.0)
    monkeypatch.setitem(SQL.__dict__, "limit_lock_wait", SQL.limit_lock_wait.replace("5s", "5ms"))
    async with raw.transaction():
        await raw.execute("LOCK TABLE jobs IN SHARE MODE")
        with pytest.raises(StoreUnavailable, match="lock timeout"):
            await pg.install("mine", "ALTER TABLE @schema.jobs ADD COLUMN extra int;")


async def test_an_index_is_made_while_others_write(pg: PostgresStore, raw: Raw, url: str) -> None:
    await pg.install("mine", SCRIPT)
    async with connected(url) as writer, raw.transaction():
        await raw.execute("INSERT INTO made VALUES (3)")
        made = asyncio.create_task(pg.install("mine", WITH_INDEX))
        await somebody_waits_for(raw)
        await writer.execute("SET lock_timeout = '5s'; INSERT INTO made VALUES (4)")
        assert not made.done()

    assert not await made
    assert await indexes(raw) == [("made_n", True)]


async def test_two_processes_that_start_together_make_an_index_once(url: str, pg: PostgresStore, raw: Raw) -> None:
    other = await PostgresStore.open(url)

    both = await asyncio.gather(pg.install("mine", WITH_INDEX), other.install("mine", WITH_INDEX))

    assert sorted(both) == [False, True]
    assert await indexes(raw) == [("made_n", True)]
    await other.close()


async def test_an_index_that_fails_is_dropped_and_tried_again(pg: PostgresStore, raw: Raw) -> None:
    unique = WITH_INDEX.replace("CREATE INDEX", "CREATE UNIQUE INDEX")
    await pg.install("mine", SCRIPT)
    await raw.execute("INSERT INTO made VALUES (1)")

    with pytest.raises(StoreUnavailable, match="made_n: could not create unique index"):
        await pg.install("mine", unique)
    left = await indexes(raw)
    await raw.execute("TRUNCATE made")
    await pg.install("mine", unique)

    assert (left, await indexes(raw)) == ([], [("made_n", True)])


async def test_an_index_that_was_left_invalid_is_made_anew(pg: PostgresStore, raw: Raw) -> None:
    await pg.install("mine", SCRIPT)
    await raw.execute("INSERT INTO made VALUES (1)")
    with pytest.raises(asyncpg.UniqueViolationError):
        await raw.execute("CREATE UNIQUE INDEX CONCURRENTLY made_n ON made (n)")
    left = await indexes(raw)

    await pg.install("mine", WITH_INDEX)

    assert (left, await indexes(raw)) == ([("made_n", False)], [("made_n", True)])


async def test_only_indexes_are_made_outside_of_the_transaction(pg: PostgresStore, raw: Raw) -> None:
    with pytest.raises(ValueError, match="CREATE INDEX CONCURRENTLY IF NOT EXISTS"):
        await pg.install("mine", f"{SCRIPT}\n-- concurrently\nDROP TABLE @schema.jobs;")

    assert await raw.fetchval("SELECT to_regclass('made')") is None


@pytest.fixture
def app(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    package = tmp_path / "scripted"
    package.mkdir()
    (package / "__init__.py").write_text("raise AssertionError('it was imported')")
    (package / "postgres.sql").write_text(f"{SCRIPT} SELECT 1 / 0;")
    (package / "postgres.sql").chmod(0o644)
    monkeypatch.syspath_prepend(tmp_path)
    return "scripted:app"


async def test_a_worker_goes_on_without_views_that_cannot_be_made(
    url: str, pg: PostgresStore, app: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "packhorse"):
        await run_app_sql(Settings(store=url, app=app), "postgres.sql")

    assert "views or indexes of scripted are missing or old" in caplog.text


async def test_a_file_that_the_app_does_not_declare_does_not_run(
    url: str, pg: PostgresStore, raw: Raw, app: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "scripted" / "postgres.sql").write_text(SCRIPT)

    await run_app_sql(Settings(store=url, app=app), None)

    assert await raw.fetchval("SELECT to_regclass('made')") is None
    await run_app_sql(Settings(store=url, app=app), "postgres.sql")
    assert await raw.fetchval("SELECT n FROM made") == 1


@pytest.mark.parametrize(
    ("content", "mode", "name", "why"),
    [
        (SCRIPT.encode(), 0o664, "postgres.sql", "group or others may write to"),
        (SCRIPT.encode(), 0o646, "postgres.sql", "group or others may write to"),
        (b"SELECT '\xff';", 0o644, "postgres.sql", "can't decode byte 0xff"),
        (b"-- concurrently\nSELECT 1;", 0o644, "postgres.sql", "CREATE INDEX CONCURRENTLY"),
        (b"", 0o644, "other.sql", "No such file"),
        (b"", 0o644, "../outside.sql", "is outside of"),
    ],
    ids=["group", "others", "encoding", "statement", "absent", "outside"],
)
async def test_a_file_that_cannot_be_trusted_or_read_is_refused_and_the_worker_goes_on(
    url: str, pg: PostgresStore, raw: Raw, app: str, tmp_path: Path, caplog: pytest.LogCaptureFixture,
    content: bytes, mode: int, name: str, why: str,
) -> None:  # fmt: skip
    script = tmp_path / "scripted" / "postgres.sql"
    script.write_bytes(content)
    script.chmod(mode)
    (tmp_path / "outside.sql").write_text(SCRIPT)

    await run_app_sql(Settings(store=url, app=app), name)

    assert why in caplog.text
    assert await raw.fetchval("SELECT to_regclass('made')") is None


async def test_an_app_declares_its_file(tmp_path: Path) -> None:
    text = (
        "from packhorse import App\n"
        "app = App('a', postgres='views.sql')\n"
        "@app.job\ndef nothing(x: int) -> int:\n    return x\n"
    )
    (tmp_path / "declared.py").write_text(text)

    assert (await describe(str(tmp_path / "declared.py"))).postgres == "views.sql"


async def test_another_store_has_no_views(tmp_path: Path, app: str, caplog: pytest.LogCaptureFixture) -> None:
    await run_app_sql(Settings(store=f"sqlite://{tmp_path}/store.db", app=app), "postgres.sql")

    assert caplog.text == ""
    assert not (tmp_path / "store.db").exists()
