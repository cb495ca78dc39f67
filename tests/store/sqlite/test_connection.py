"""Opening a database file: settings that are read back, and schemas that move forward only."""

from __future__ import annotations

import asyncio
import os
import stat
import sys
from pathlib import Path
from typing import Any

import apsw
import pytest

from packhorse.errors import SchemaTooNew, StoreUnavailable
from packhorse.store.base import Filter
from packhorse.store.sqlite import SqliteStore, connection
from packhorse.store.sqlite.connection import MIGRATIONS, connect, migrate
from tests.contract.builders import held, submit
from tests.contract.second_process import ROOT
from tests.store.blocked import LIMIT

FULL = 2
FIRST = (1, "CREATE TABLE things (name TEXT); INSERT INTO things VALUES ('old');")
SECOND = (2, "ALTER TABLE things ADD COLUMN size INTEGER DEFAULT 7; CREATE TABLE more (x);")
KNOWN = max(version for version, _ in MIGRATIONS)
NEWEST = f"{KNOWN}\n".encode()


def _settings(db: apsw.Connection) -> tuple[Any, Any]:
    return db.pragma("journal_mode"), db.pragma("synchronous")


# settings


async def test_what_is_written_is_synced_before_anybody_is_told(store: SqliteStore) -> None:
    assert await store._writer.run(_settings) == ("wal", FULL)


async def test_every_new_folder_is_synced_into_the_one_above_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a power cut takes the folder, and the database in it, although every commit was synced."""
    synced: set[int] = set()
    fsync = os.fsync

    def noting(fd: int) -> None:
        synced.add(os.fstat(fd).st_ino)
        fsync(fd)

    monkeypatch.setattr(os, "fsync", noting)

    await (await SqliteStore.open(tmp_path / "a/b/c/store.db")).close()

    assert synced >= {(tmp_path / above).stat().st_ino for above in (".", "a", "a/b", "a/b/c")}


async def test_every_other_connection_has_the_same_settings(store: SqliteStore) -> None:
    assert _settings(store._watcher) == ("wal", FULL)
    assert await store._read(_settings) == ("wal", FULL)


async def test_who_only_reads_cannot_write(store: SqliteStore) -> None:
    with pytest.raises(StoreUnavailable):
        await store._read(lambda db: db.execute("DELETE FROM jobs").fetchall())


async def test_a_database_in_memory_is_refused_and_no_file_is_created(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    with pytest.raises(StoreUnavailable, match="needs a file"):
        await SqliteStore.open(Path(":memory:"))

    assert list(tmp_path.iterdir()) == []


class NoLog(connection.Session):
    """Stays without a write-ahead log, as on a network file system."""

    def pragma(self, name: str, *value: Any, **options: Any) -> Any:
        return "delete" if name == "journal_mode" else super().pragma(name, *value, **options)


async def test_a_database_that_cannot_have_a_write_ahead_log_is_refused_with_what_it_has(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "Session", NoLog)

    with pytest.raises(StoreUnavailable, match="journal_mode=delete"):
        await SqliteStore.open(path)


class Stubborn(connection.Session):
    """Takes the setting, and does not have it afterwards."""

    def pragma(self, name: str, *value: Any, **options: Any) -> Any:
        weaker = ("normal",) if name == "synchronous" and value else value
        return super().pragma(name, *weaker, **options)


async def test_a_database_that_does_not_sync_is_refused_with_what_it_has(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "Session", Stubborn)

    with pytest.raises(StoreUnavailable, match=r"synchronous=1 .* need wal, 2"):
        await SqliteStore.open(path)


async def test_a_file_that_is_no_database_is_refused(path: Path) -> None:
    path.write_bytes(b"Dear diary, " * 100)

    with pytest.raises(StoreUnavailable, match=r"store\.db"):
        await SqliteStore.open(path)


async def test_a_folder_in_the_place_of_the_file_is_refused(path: Path) -> None:
    path.mkdir()

    with pytest.raises(StoreUnavailable, match=r"store\.db"):
        await SqliteStore.open(path)


async def test_a_file_in_the_place_of_the_folder_is_refused(path: Path) -> None:
    path.write_text("x")

    with pytest.raises(StoreUnavailable, match=r"inner\.db"):
        await SqliteStore.open(path / "inner.db")


async def test_a_missing_folder_is_made(path: Path) -> None:
    store = await SqliteStore.open(path.parent / "a" / "b" / "store.db")

    assert await store.find(Filter()) == []
    await store.close()


async def test_a_new_database_is_for_its_owner_only_whatever_the_umask(path: Path) -> None:
    mask = os.umask(0o022)
    try:
        store = await SqliteStore.open(path)
        await submit(store)
        modes = {each.name: stat.S_IMODE(each.stat().st_mode) for each in path.parent.glob(f"{path.name}*")}
        await store.close()
    finally:
        os.umask(mask)

    assert modes == {f"{path.name}{suffix}": 0o600 for suffix in ("", "-wal", "-shm")}


async def test_the_self_check_finds_the_promise_kept(store: SqliteStore) -> None:
    findings = {finding.name: (finding.is_ok, finding.value) for finding in await store.check()}

    assert findings["journal_mode"] == (True, "wal")
    assert findings["synchronous"] == (True, "2")
    assert findings["SQLite version"][0]


# migrations


def test_an_empty_database_gets_every_script(path: Path) -> None:
    db = connect(path)

    found = migrate(db, [FIRST, SECOND])

    assert (found, db.pragma("user_version")) == (0, 2)
    assert db.execute("SELECT name, size FROM things").fetchall() == [("old", 7)]
    db.close()


def test_an_older_database_gets_only_what_it_lacks_and_keeps_its_rows(path: Path) -> None:
    db = connect(path)
    migrate(db, [FIRST])
    db.execute("INSERT INTO things VALUES ('new')")

    found = migrate(db, [FIRST, SECOND])

    assert (found, db.pragma("user_version")) == (1, 2)
    assert db.execute("SELECT name, size FROM things").fetchall() == [("old", 7), ("new", 7)]
    db.close()


def test_a_current_database_is_left_as_it_is(path: Path) -> None:
    db = connect(path)
    migrate(db)
    before = db.execute("SELECT name, sql FROM sqlite_schema").fetchall()

    found = migrate(db)

    assert found == [version for version, _ in MIGRATIONS][-1]
    assert db.execute("SELECT name, sql FROM sqlite_schema").fetchall() == before
    db.close()


def test_a_script_that_fails_leaves_the_database_as_it_was(path: Path) -> None:
    db = connect(path)
    migrate(db, [FIRST])
    broken = (3, "CREATE TABLE even_more (x); CREATE NONSENSE;")

    with pytest.raises(apsw.SQLError):
        migrate(db, [FIRST, SECOND, broken])

    tables = [name for (name,) in db.execute("SELECT name FROM sqlite_schema")]
    assert (tables, db.pragma("user_version"), db.in_transaction) == (["things"], 1, False)
    db.close()


async def test_a_store_with_jobs_in_it_is_migrated_with_them(path: Path) -> None:
    store = await SqliteStore.open(path)
    job = await submit(store)
    await store.close()
    db = connect(path)

    migrate(db, [*MIGRATIONS, (9_999, "CREATE TABLE later (x)")])

    assert db.execute("SELECT id FROM jobs").fetchall() == [(job.id,)]
    db.close()


async def test_a_newer_database_is_refused_with_a_sentence_and_not_touched(path: Path) -> None:
    db = connect(path)
    migrate(db, [*MIGRATIONS, (9_999, "CREATE TABLE later (x)")])
    before = db.execute("SELECT name, sql FROM sqlite_schema").fetchall()

    with pytest.raises(SchemaTooNew) as refusal:
        await SqliteStore.open(path)

    assert refusal.value.message == f"The store has schema 9999, which is newer than this packhorse supports ({KNOWN})."
    assert db.pragma("user_version") == 9_999
    assert db.execute("SELECT name, sql FROM sqlite_schema").fetchall() == before
    db.close()


async def test_a_database_that_stays_locked_is_refused(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("packhorse.store.sqlite.connection.PATIENCE", 0.01)
    db = connect(path)
    db.execute("BEGIN IMMEDIATE")

    with pytest.raises(StoreUnavailable, match="locked"):
        await SqliteStore.open(path)

    db.close()


OPENING = """
import asyncio, sys
from pathlib import Path
from packhorse.store.sqlite.connection import connect, migrate

print("ready", flush=True)
sys.stdin.readline()
print(migrate(connect(Path(sys.argv[1]))))
"""


async def test_processes_that_open_a_new_database_together_migrate_it_once(path: Path) -> None:
    processes = [
        await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", OPENING, str(path)), cwd=ROOT, stdin=-1, stdout=-1, stderr=-1
        )
        for _ in range(3)
    ]
    for process in processes:
        assert process.stdout is not None
        assert await asyncio.wait_for(process.stdout.readline(), LIMIT) == b"ready\n"

    answers = await asyncio.wait_for(asyncio.gather(*(p.communicate(b"go\n") for p in processes)), LIMIT)

    assert sorted(answers) == [(b"0\n", b""), (NEWEST, b""), (NEWEST, b"")]


class Busy(connection.Session):
    """Another process is just making the same file, and SQLite does not ask the busy handler whether to wait."""

    times = 3

    def pragma(self, name: str, *value: Any, **options: Any) -> Any:
        if name == "journal_mode" and value and Busy.times > 0:
            Busy.times -= 1
            raise apsw.BusyError("database is locked")
        return super().pragma(name, *value, **options)


async def test_a_file_that_somebody_else_is_just_making_is_asked_again(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "Session", Busy)
    monkeypatch.setattr(Busy, "times", 3)

    store = await SqliteStore.open(path)

    assert Busy.times == 0
    assert _settings(store._watcher) == ("wal", FULL)
    await store.close()


async def test_a_file_that_somebody_else_never_gives_free_is_refused(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("packhorse.store.sqlite.connection.PATIENCE", 0.01)
    monkeypatch.setattr(connection, "Session", Busy)
    monkeypatch.setattr(Busy, "times", 1_000_000)

    with pytest.raises(StoreUnavailable, match="locked"):
        await SqliteStore.open(path)


async def test_handles_that_open_a_new_database_together_all_work(path: Path) -> None:
    stores = await asyncio.gather(*(SqliteStore.open(path) for _ in range(4)))

    jobs = [await submit(store) for store in stores]

    assert [await held(stores[0], job.id) for job in jobs] == jobs
    for store in stores:
        await store.close()
