"""Schemas that tests use one after the other: none of them finds anything of the one before."""

from __future__ import annotations

import asyncio

import asyncpg
import pytest

from packhorse.store.base import Line
from packhorse.store.collections import workers
from packhorse.store.collections.webhooks import add_endpoint
from packhorse.store.postgres import PostgresStore
from tests.contract.builders import ONLY, card, claim, submit
from tests.contract.failures import failing, wrong
from tests.contract.keys import endpoint
from tests.servers import postgres, schemas
from tests.store.postgres.inside import connected

Rows = dict[str, list[str]]

TABLES = "SELECT tablename FROM pg_tables WHERE schemaname = current_schema"
LARGE = "SELECT pg_relation_size($1::text::regclass) > 65536"


async def kept(url: str) -> Rows:
    """Every row of every table, and whether a table takes much room: dead rows of a small one do not matter."""
    async with connected(url) as raw:
        tables = [row[0] for row in await raw.fetch(TABLES)]
        rows = {
            each: [row[0] for row in await raw.fetch(f"SELECT t::text FROM {each} t ORDER BY 1")] for each in tables
        }
        return {each: [*rows[each], f"large: {await raw.fetchval(LARGE, each)}"] for each in tables}


async def new(url: str) -> Rows:
    store = await PostgresStore.open(url)
    await store.close()
    return await kept(url)


async def used(url: str) -> None:
    store = await PostgresStore.open(url)
    job = await submit(store)
    await claim(store)
    await failing(store, wrong("It broke."))
    await store.log([Line(job.id, ONLY, 1, 1.0, f"hello {number} " * 20) for number in range(500)], keep=1000)
    await workers.enroll(store, card())
    await add_endpoint(store, endpoint())
    await store.erase(job.id)
    await store.trim()
    await store.close()


def test_what_is_lent_again_is_as_new() -> None:
    lending = schemas.shared()
    with lending.lent() as first:
        asyncio.run(used(first))
        before = asyncio.run(kept(first))

    with lending.lent() as second:
        after = asyncio.run(kept(second))

    fresh = asyncio.run(new(postgres.server().url()))
    assert second == first
    assert before != fresh
    assert after == fresh


def test_two_that_are_lent_at_once_are_apart() -> None:
    lending = schemas.shared()

    with lending.lent() as one, lending.lent() as two:
        asyncio.run(used(one))

        assert asyncio.run(kept(two)) == asyncio.run(new(postgres.server().url()))


def test_who_is_still_there_when_it_is_given_back_is_cut_off() -> None:
    """A transaction that is open would hold up the next test, or be made in it."""
    lending = schemas.shared()
    loop = asyncio.new_event_loop()
    with lending.lent() as url:
        straggler = loop.run_until_complete(opened(url))

    with pytest.raises(asyncpg.PostgresConnectionError):
        loop.run_until_complete(straggler.execute("COMMIT"))

    loop.close()
    with lending.lent() as again:
        assert again == url
        assert asyncio.run(kept(again)) == asyncio.run(new(postgres.server().url()))


async def opened(url: str) -> asyncpg.Connection[asyncpg.Record]:
    connection = await asyncpg.connect(url.partition("?")[0])
    schema = url.rpartition("=")[2]
    await connection.execute(f"BEGIN; INSERT INTO {schema}.slots VALUES ('b', gen_random_uuid())")
    return connection
