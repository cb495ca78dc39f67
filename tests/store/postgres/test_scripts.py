"""Scripts of apps: carried out once per version, whole or not at all, and only where there is PostgreSQL."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

import pytest

from packhorse.errors import StoreUnavailable
from packhorse.factory import install_views
from packhorse.settings import Settings
from packhorse.store.postgres import PostgresStore
from packhorse.store.sqlite import SqliteStore
from tests.store.postgres.inside import Raw

SCRIPT = "CREATE TABLE @schema.made (n int); INSERT INTO @schema.made VALUES (1);"


async def test_each_version_of_a_script_is_carried_out_once(url: str, pg: PostgresStore, raw: Raw) -> None:
    other = await PostgresStore.open(url)

    both = await asyncio.gather(pg.install("mine", SCRIPT), other.install("mine", SCRIPT))
    again = await pg.install("mine", SCRIPT)
    changed = await pg.install("mine", "INSERT INTO @schema.made VALUES (2);")

    assert (sorted(both), again, changed) == ([False, True], False, True)
    assert [row[0] for row in await raw.fetch("SELECT n FROM made ORDER BY n")] == [1, 2]
    await other.close()


async def test_a_script_that_fails_leaves_nothing(pg: PostgresStore, raw: Raw) -> None:
    with pytest.raises(StoreUnavailable, match=r"postgres\.sql of mine"):
        await pg.install("mine", f"{SCRIPT} SELECT 1 / 0;")

    assert await raw.fetchval("SELECT to_regclass('made')") is None
    assert await pg.install("mine", SCRIPT)


@pytest.fixture
def app(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    package = tmp_path / "scripted"
    package.mkdir()
    (package / "__init__.py").write_text("raise AssertionError('it was imported')")
    (package / "postgres.sql").write_text(f"{SCRIPT} SELECT 1 / 0;")
    monkeypatch.syspath_prepend(tmp_path)
    return "scripted:app"


async def test_a_worker_goes_on_without_views_that_cannot_be_made(
    url: str, pg: PostgresStore, app: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "packhorse"):
        await install_views(pg, Settings(store=url, app=app))

    assert "the views of scripted are missing or old" in caplog.text


async def test_another_store_has_no_views(tmp_path: Path, app: str, caplog: pytest.LogCaptureFixture) -> None:
    store = await SqliteStore.open(tmp_path / "store.db")

    await install_views(store, Settings(store=f"sqlite://{tmp_path}/store.db", app=app))

    assert caplog.text == ""
    await store.close()
