"""PostgreSQL goes away and comes back: who asks meanwhile is told soon, and afterwards all goes on by itself."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from msgspec.structs import replace

from packhorse import crashpoints
from packhorse.core import lifecycle
from packhorse.errors import StoreUnavailable, UnknownOutcome
from packhorse.store.base import Renewal
from packhorse.store.postgres import PostgresStore, connection
from tests.contract.builders import LEASE, claim, claim_one, held, lease_of, made, started, submission, submit, sure
from tests.servers.postgres import HOST, Postgres
from tests.store.postgres.inside import LIMIT, backends, connected

NEVER = 1000.0


@pytest.fixture(scope="module")
def server() -> Iterator[Postgres]:
    """One of our own, for it is going to be killed."""
    started = Postgres()
    yield started
    started.close()


@pytest.fixture
def url(server: Postgres) -> str:
    return server.url()


# gone and back


@pytest.mark.parametrize("end", ["stop", "kill"])
async def test_a_store_whose_server_is_gone_says_so_and_works_again_when_it_is_back(
    server: Postgres, pg: PostgresStore, end: str
) -> None:
    claimed = await started(pg)
    getattr(server, end)()

    change = submission(now=1.0)
    for call in (
        pg.get([claimed.job.id]),
        pg.renew([lease_of(claimed)], LEASE),
        claim(pg),
        pg.wait_for_change(None, 0),
    ):
        with pytest.raises(StoreUnavailable):
            await asyncio.wait_for(call, LIMIT)
    # Last, when every connection has heard of it: one statement sent at the moment of the kill is rightly unknown.
    [commit] = await asyncio.wait_for(pg.commit([change]), LIMIT)
    server.start()

    assert isinstance(commit, StoreUnavailable)
    assert await pg.existing_ids([change.after.id]) == set()
    assert await held(pg, claimed.job.id) == claimed.job
    assert (await pg.renew([lease_of(claimed)], LEASE)).lost == frozenset()
    job = await submit(pg)
    assert (await claim_one(pg)).job.id == job.id


async def test_what_was_acknowledged_before_a_kill_is_there_after_it(server: Postgres, pg: PostgresStore) -> None:
    jobs = [await submit(pg) for _ in range(20)]

    server.kill()
    server.start()

    assert await pg.get([job.id for job in jobs]) == jobs


async def test_who_waits_during_an_outage_is_told_and_may_wait_again_afterwards(
    server: Postgres, pg: PostgresStore
) -> None:
    mark = await pg.wait_for_change(None, 0)
    woken = asyncio.create_task(pg.wait_for_change(mark, NEVER))
    await asyncio.sleep(0)
    server.kill()
    with pytest.raises(StoreUnavailable):
        await asyncio.wait_for(woken, LIMIT)
    server.start()
    woken = asyncio.create_task(pg.wait_for_change(mark, NEVER))

    await submit(pg)

    assert await asyncio.wait_for(woken, LIMIT) != mark


async def test_connections_that_are_cut_one_by_one_are_replaced(url: str, pg: PostgresStore) -> None:
    async with connected(url) as raw:
        for _ in range(5):
            await submit(pg)
            for pid in await backends(raw):
                await raw.execute("SELECT pg_terminate_backend($1, 10000)", pid)

    job = await submit(pg)

    assert await held(pg, job.id) == job


async def test_a_server_that_stands_still_keeps_nobody_waiting(
    server: Postgres, pg: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = await submit(pg)
    monkeypatch.setattr(connection, "PATIENCE", 0.2)
    server.pause()
    try:
        with pytest.raises(StoreUnavailable):
            await asyncio.wait_for(pg.get([job.id]), LIMIT)
        [outcome] = await asyncio.wait_for(pg.commit([submission(now=1.0)]), LIMIT)
        assert isinstance(outcome, StoreUnavailable)
    finally:
        server.resume()

    monkeypatch.undo()
    assert await held(pg, job.id) == job


async def test_who_waits_for_somebody_elses_lock_too_long_is_told_and_leaves_nothing(
    url: str, pg: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = await submit(pg)
    stop = sure(lifecycle.cancel(job, now=1.0))
    async with connected(url) as raw, raw.transaction():
        await raw.execute("SELECT FROM jobs FOR UPDATE")
        monkeypatch.setattr(connection, "PATIENCE", 0.2)
        [outcome] = await pg.commit([stop])

    monkeypatch.undo()
    assert isinstance(outcome, StoreUnavailable)
    assert await held(pg, job.id) == job


# the commit itself


@asynccontextmanager
async def dying_at(point: str, server: Postgres) -> AsyncIterator[None]:
    """The server is killed when a write passes this point for the first time."""
    killed: list[str] = []

    def hook(passed: str, _by: object) -> None:
        if passed == point and not killed:
            killed.append(passed)
            server.kill()

    crashpoints.hook = hook
    try:
        yield
    finally:
        crashpoints.hook = None
        assert killed == [point]


async def test_a_server_that_dies_before_the_commit_has_made_nothing(server: Postgres, pg: PostgresStore) -> None:
    change = replace(submission(now=1.0), id="c")

    async with dying_at("store.write.before", server):
        [outcome] = await pg.commit([change])

    server.start()
    assert type(outcome) is StoreUnavailable
    assert not await pg.has_change(change.after.id, "c")


async def test_a_server_that_dies_during_the_commit_leaves_it_open_whether_it_was_made(
    server: Postgres, pg: PostgresStore
) -> None:
    change = replace(submission(now=1.0), id="c")

    async with dying_at("store.write.open", server):
        [outcome] = await pg.commit([change])

    server.start()
    assert type(outcome) is UnknownOutcome
    assert not await pg.has_change(change.after.id, "c")
    assert await made(pg, change) == change.after


async def test_a_server_that_dies_after_the_commit_has_made_it(server: Postgres, pg: PostgresStore) -> None:
    change = replace(submission(now=1.0), id="c")

    async with dying_at("store.write.after", server):
        [outcome] = await pg.commit([change])

    server.start()
    assert outcome is None
    assert await pg.has_change(change.after.id, "c")


class Wire:
    """Between the store and its server. It loses the answer to what it is told."""

    def __init__(self, port: int) -> None:
        self._port = port
        self.loses: bytes | None = None

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[int]:
        served: list[asyncio.Task[None]] = []
        listener = await asyncio.start_server(
            lambda *ends: served.append(asyncio.create_task(self._serve(*ends))), HOST, 0
        )
        yield listener.sockets[0].getsockname()[1]
        listener.close()
        await listener.wait_closed()
        await asyncio.gather(*served)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        answers, server = await asyncio.open_connection(HOST, self._port)
        has_lost = asyncio.Event()

        async def ask() -> None:
            while data := await reader.read(65_536):
                if self.loses is not None and self.loses in data:
                    has_lost.set()
                server.write(data)

        async def answer() -> None:
            while (data := await answers.read(65_536)) and not has_lost.is_set():
                writer.write(data)
            writer.close()

        await asyncio.wait([asyncio.ensure_future(each) for each in (ask(), answer())])
        for end in (server, writer):
            end.close()


LOSING: dict[str, tuple[bytes, dict[str, Any]]] = {
    "one statement": (b"the-change", {}),
    "a transaction": (b"COMMIT\x00", {"key": "once"}),
}


@pytest.mark.parametrize("how", LOSING)
async def test_a_change_whose_acknowledgement_was_lost_is_found_as_made(server: Postgres, url: str, how: str) -> None:
    assert server.port is not None
    wire = Wire(server.port)
    losing, options = LOSING[how]
    change = replace(submission(now=1.0, **options), id="the-change")
    async with wire.listening() as port:
        store = await PostgresStore.open(url.replace(f":{server.port}", f":{port}"))
        wire.loses = losing

        [outcome] = await store.commit([change])

        wire.loses = None
        assert type(outcome) is UnknownOutcome
        assert await store.has_change(change.after.id, "the-change")
        assert await held(store, change.after.id) == change.after
        await store.close()


# silent


async def test_who_falls_silent_in_a_transaction_does_not_keep_its_rows_from_others_for_ever(
    url: str,
) -> None:
    stopped, other = await PostgresStore.open(url), await PostgresStore.open(url)
    claimed, renewed = await started(other), list[Renewal]()

    async def falls_silent() -> None:
        async with stopped._connections.transaction() as session:
            assert len(await session.fetch("SELECT FROM @leases FOR UPDATE")) == 1
            assert await session.value("SHOW idle_in_transaction_session_timeout") == f"{connection.PATIENCE:.0f}s"
            await session.connection.execute("SET LOCAL idle_in_transaction_session_timeout = '200ms'")
            renewed.append(await asyncio.wait_for(other.renew([lease_of(claimed)], LEASE), LIMIT))

    with pytest.raises((StoreUnavailable, UnknownOutcome), match=r"idle-in-transaction|connection|commit"):
        await falls_silent()

    assert [each.lost for each in renewed] == [frozenset()]
    assert await held(stopped, claimed.job.id) is not None
    await stopped.close()
    await other.close()
