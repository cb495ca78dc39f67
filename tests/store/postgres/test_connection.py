"""Opening a PostgreSQL store: addresses, schemas that move forward only, and what the self-check finds."""

from __future__ import annotations

import asyncio
import builtins
import sys
from typing import Any

import asyncpg
import pytest

from packhorse.errors import SchemaTooNew, SettingError, StoreUnavailable
from packhorse.factory import open_store
from packhorse.store.base import Filter
from packhorse.store.postgres import PostgresStore
from packhorse.store.postgres.connection import Session, address_from
from packhorse.store.postgres.store import MIGRATIONS, migrate
from tests.contract.builders import claim_one, finish, held, ids, submit
from tests.contract.second_process import ROOT
from tests.servers import postgres
from tests.servers.ports import free_port
from tests.store.postgres.inside import LIMIT, Raw, connected, schema_of

FIRST = (1, "CREATE TABLE @things (name text); INSERT INTO @things VALUES ('old');")
SECOND = (2, "ALTER TABLE @things ADD COLUMN size integer DEFAULT 7; CREATE TABLE @more (x integer);")
KNOWN = max(version for version, _ in MIGRATIONS)
NEWEST = f"{KNOWN}\n".encode()

TABLES = "SELECT relname FROM pg_class WHERE relnamespace = $1::text::regnamespace ORDER BY relname"


# addresses


async def test_an_address_opens_the_store(url: str) -> None:
    store = await open_store(url)

    assert isinstance(store, PostgresStore)
    assert await store.find(Filter()) == []
    await store.close()


async def test_two_schemas_of_one_server_are_two_stores(pg: PostgresStore) -> None:
    other = await PostgresStore.open(postgres.server().url())
    mine, theirs = await submit(pg), await submit(other)

    assert ids(await pg.find(Filter())) == [mine.id]
    assert ids(await other.find(Filter())) == [theirs.id]
    assert (await claim_one(other)).job.id == theirs.id
    await other.close()


async def test_a_commit_in_one_schema_wakes_nobody_in_another(pg: PostgresStore) -> None:
    other = await PostgresStore.open(postgres.server().url())
    mark = await pg.wait_for_change(None, 0)

    await submit(other)

    assert await pg.wait_for_change(mark, 0.05) == mark
    await other.close()


def test_an_address_without_a_schema_means_our_own() -> None:
    assert address_from("postgresql://h/db").schema == "packhorse"


@pytest.mark.parametrize(
    "option", ["schema=a-b", 'schema=a"b', "schema=A", "schema=" + "a" * 60, "statement_cache_size=x"]
)
def test_an_option_that_cannot_be_meant_is_refused(option: str) -> None:
    with pytest.raises(SettingError, match=r"schema|statement_cache_size"):
        address_from(f"postgresql://h/db?{option}")


def test_other_options_are_left_to_the_driver() -> None:
    address = address_from("postgresql://h/db?sslmode=require&schema=s")

    assert (address.server, address.schema) == ("postgresql://h/db?sslmode=require", "s")


async def test_a_store_that_cannot_be_reached_is_told_without_its_password() -> None:
    url = f"postgresql://ann:canary@127.0.0.1:{free_port()}/jobs"

    with pytest.raises(StoreUnavailable) as refusal:
        await PostgresStore.open(url)

    assert "127.0.0.1" in refusal.value.message
    assert "canary" not in refusal.value.message


async def test_a_database_that_is_not_there_is_told(url: str) -> None:
    with pytest.raises(StoreUnavailable, match="nowhere"):
        await PostgresStore.open(url.replace("/postgres?", "/nowhere?"))


async def test_a_user_who_may_make_nothing_is_told(url: str) -> None:
    async with connected(url) as raw:
        await raw.execute("DROP ROLE IF EXISTS guest; CREATE ROLE guest LOGIN")

    with pytest.raises(StoreUnavailable, match="permission denied"):
        await PostgresStore.open(url.replace("postgres@", "guest@"))


async def test_without_its_driver_the_setting_is_refused_with_what_to_install(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in sys.modules if name.startswith(("asyncpg", "packhorse.store.postgres"))]:
        monkeypatch.delitem(sys.modules, name)
    real = builtins.__import__

    def without(name: str, *rest: Any, **options: Any) -> Any:
        if name.startswith("asyncpg"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return real(name, *rest, **options)

    monkeypatch.setattr(builtins, "__import__", without)

    with pytest.raises(SettingError) as refusal:
        await open_store(url)

    assert refusal.value.message.endswith("pip install packhorse[postgres]")


async def test_a_server_that_lost_the_plans_is_told_them_again(url: str, pg: PostgresStore, raw: Raw) -> None:
    """As after a failover to a replica that lacks them: a job without its plan could never be read."""
    await submit(pg)
    await raw.execute("DELETE FROM plans")
    for session in pg._connections._idle:
        session.connection.terminate()

    job = await submit(pg)

    other = await PostgresStore.open(url)
    assert await held(other, job.id) == job
    await other.close()


@pytest.mark.parametrize("pool", ["", "&statement_cache_size=0"])
async def test_a_transaction_in_which_nothing_is_said_is_given_up_behind_a_pool_too(url: str, pool: str) -> None:
    """Else a worker that is suspended in one keeps the rows that it has locked from everybody."""
    store = await PostgresStore.open(url + pool)

    async with store._connections.transaction() as session:
        during = await session.value("SELECT current_setting('idle_in_transaction_session_timeout')")
    async with store._connections.session() as session:
        after = await session.connection.fetchval("SELECT current_setting('idle_in_transaction_session_timeout')")
    await store.close()

    assert during == "10s"
    assert after == ("0" if pool else "10s")  # a pool may give the connection to somebody else


async def test_behind_a_pool_nothing_is_expected_to_stay_prepared(url: str) -> None:
    store = await PostgresStore.open(f"{url}&statement_cache_size=0")
    mark = await store.wait_for_change(None, 0)

    job = await submit(store)
    done = await finish(store, await claim_one(store))

    assert await asyncio.wait_for(store.wait_for_change(mark, 2 * LIMIT), LIMIT) != mark
    assert await held(store, job.id) == done
    async with connected(url) as raw:
        assert await raw.fetchval("SELECT count(*) FROM pg_stat_activity WHERE query ILIKE 'LISTEN%'") == 0
    await store.close()


# migrations


async def _session(raw: Raw, url: str) -> Session:
    return Session(raw, schema_of(url))


async def test_an_empty_schema_gets_every_script(url: str) -> None:
    async with connected(url) as raw:
        found = await migrate(await _session(raw, url), schema_of(url), [FIRST, SECOND])

        assert (found, await raw.fetchval("SELECT version FROM version")) == (0, 2)
        assert [tuple(row) for row in await raw.fetch("SELECT name, size FROM things")] == [("old", 7)]


async def test_an_older_schema_gets_only_what_it_lacks_and_keeps_its_rows(url: str) -> None:
    async with connected(url) as raw:
        session = await _session(raw, url)
        await migrate(session, schema_of(url), [FIRST])
        await raw.execute("INSERT INTO things VALUES ('new')")

        found = await migrate(session, schema_of(url), [FIRST, SECOND])

        assert (found, await raw.fetchval("SELECT version FROM version")) == (1, 2)
        assert [tuple(row) for row in await raw.fetch("SELECT * FROM things")] == [("old", 7), ("new", 7)]


async def test_a_current_schema_is_left_as_it_is(url: str, raw: Raw) -> None:
    before = await raw.fetch(TABLES, schema_of(url))

    found = await migrate(await _session(raw, url), schema_of(url))

    assert found == [version for version, _ in MIGRATIONS][-1]
    assert await raw.fetch(TABLES, schema_of(url)) == before


async def test_a_script_that_fails_leaves_the_schema_as_it_was(url: str) -> None:
    broken = (3, "CREATE TABLE @even_more (x integer); CREATE NONSENSE;")
    async with connected(url) as raw:
        session = await _session(raw, url)
        await migrate(session, schema_of(url), [FIRST])

        with pytest.raises(asyncpg.PostgresSyntaxError):
            await migrate(session, schema_of(url), [FIRST, SECOND, broken])

        tables = [row["relname"] for row in await raw.fetch(TABLES, schema_of(url))]
        assert (tables, await raw.fetchval("SELECT version FROM version")) == (["things", "version"], 1)


async def test_a_schema_made_by_somebody_else_is_used(url: str) -> None:
    async with connected(url) as raw:
        await raw.execute(f"CREATE SCHEMA {schema_of(url)}")

    store = await PostgresStore.open(url)

    assert await store.find(Filter()) == []
    await store.close()


async def test_a_newer_schema_is_refused_with_a_sentence_and_not_touched(url: str, raw: Raw) -> None:
    await migrate(await _session(raw, url), schema_of(url), [*MIGRATIONS, (9_999, "CREATE TABLE @later (x integer)")])
    before = await raw.fetch(TABLES, schema_of(url))

    with pytest.raises(SchemaTooNew) as refusal:
        await PostgresStore.open(url)

    assert refusal.value.message == f"The store has schema 9999, which is newer than this packhorse supports ({KNOWN})."
    assert await raw.fetch(TABLES, schema_of(url)) == before


OPENING = """
import asyncio, sys
import asyncpg
from packhorse.store.postgres.connection import Session
from packhorse.store.postgres.store import migrate

async def main(url, schema):
    connection = await asyncpg.connect(url)
    print("ready", flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    print(await migrate(Session(connection, schema), schema))
    await connection.close()

asyncio.run(main(*sys.argv[1:]))
"""


async def test_processes_that_open_a_new_schema_together_migrate_it_once(url: str) -> None:
    server, schema = url.partition("?")[0], schema_of(url)
    processes = [
        await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", OPENING, server, schema), cwd=ROOT, stdin=-1, stdout=-1, stderr=-1
        )
        for _ in range(3)
    ]
    for process in processes:
        assert process.stdout is not None
        assert await asyncio.wait_for(process.stdout.readline(), LIMIT) == b"ready\n"

    answers = await asyncio.wait_for(asyncio.gather(*(p.communicate(b"go\n") for p in processes)), LIMIT)

    assert sorted(answers) == [(b"0\n", b""), (NEWEST, b""), (NEWEST, b"")]


async def test_handles_that_open_a_new_schema_together_all_work(url: str) -> None:
    stores = await asyncio.gather(*(PostgresStore.open(url) for _ in range(4)))

    jobs = [await submit(store) for store in stores]

    assert [await held(stores[0], job.id) for job in jobs] == jobs
    for store in stores:
        await store.close()


# the self-check


async def test_the_self_check_finds_the_promise_kept(pg: PostgresStore) -> None:
    findings = {finding.name: (finding.is_ok, finding.value) for finding in await pg.check()}

    assert findings["synchronous_commit"] == (True, "on")
    assert findings["fsync"] == (True, "on")
    assert all(is_ok for is_ok, _ in findings.values())


async def test_the_self_check_finds_a_server_that_acknowledges_what_it_has_not_written(url: str) -> None:
    store = await PostgresStore.open(f"{url}&synchronous_commit=off")

    findings = {finding.name: (finding.is_ok, finding.value) for finding in await store.check()}

    assert findings["synchronous_commit"] == (False, "off")
    await store.close()


async def test_the_self_check_finds_a_clock_that_differs(pg: PostgresStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("packhorse.store.postgres.store.DRIFT", 0.0)

    findings = {finding.name: finding.is_ok for finding in await pg.check()}

    assert not findings["clock"]
