"""Servers that die, go silent and come back: nothing is lost, and everybody goes on without being restarted."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Protocol

import asyncpg
import httpx2
import pytest

from packhorse.core.models import Job
from packhorse.core.plan import Status
from packhorse.define import File
from packhorse.errors import PackhorseError
from packhorse.runtime import Handle
from tests.journey.site import Site, descendants, until
from tests.servers import seaweed
from tests.servers.flaky import FlakyHttp
from tests.servers.ports import free_port
from tests.servers.postgres import Postgres
from tests.servers.valkey import Valkey, fresh_prefix

BACK = 30.0
"""Seconds after the return of a store within which everybody consumes again. On a machine that does nothing else, five
are promised; tests run on busy ones."""
LEASE = 3.0
"""Seconds: what starts again on a busy machine may take one of them until it renews."""
LONG = float(os.environ.get("JOURNEY_OUTAGE", "8"))
"""Seconds of an outage: several leases. The same with a minute of it is a question of patience only."""


class Server(Protocol):
    """Of the test's own, to be killed. From the thread of the test: it dies with the thread that started it."""

    address: str

    def kill(self) -> object: ...
    def start(self) -> object: ...
    async def cut(self, n: int) -> int:
        """Cut the n-th connection of all there are, in turn; how many there were."""


class OwnRedis(Valkey):
    def __init__(self) -> None:
        super().__init__()
        self.address = self.url(fresh_prefix())

    async def cut(self, n: int) -> int:
        with self.client() as client:
            others = [each["id"] for each in client.client_list() if each["id"] != str(client.client_id())]
            client.client_kill_filter(_id=sorted(others, key=int)[n % len(others)])
        return len(others)


class OwnPostgres(Postgres):
    def __init__(self) -> None:
        super().__init__()
        self.address = self.url()

    async def cut(self, n: int) -> int:
        own = await asyncpg.connect(self.address.partition("?")[0])
        others = await own.fetch(
            "SELECT pid FROM pg_stat_activity WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()"
            " ORDER BY backend_start"
        )
        await own.execute("SELECT pg_terminate_backend($1)", others[n % len(others)]["pid"])
        await own.close()
        return len(others)


@pytest.fixture(params=["postgresql", "redis"])
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    if request.param == "redis":
        redis = OwnRedis()
        redis.start()
        yield redis
        redis.remove()
    else:
        postgres = OwnPostgres()
        yield postgres
        postgres.close()


@pytest.fixture
async def site(tmp_path: Path, server: Server) -> AsyncIterator[Site]:
    made = Site(tmp_path, store=server.address, lease=LEASE)
    try:
        yield made
    finally:
        await made.close()


async def test_a_store_killed_under_load_loses_nothing(site: Site, server: Server) -> None:
    for _ in range(2):
        site.start_worker()
    acknowledged: list[Handle[Any]] = []
    async with submitting(site, acknowledged):
        await everybody_consumes(site, within=40)  # who starts while the store is away ends with a reason
        for _ in range(2):
            await more(acknowledged, 20)
            server.kill()
            server.start()
            await everybody_consumes(site)

    for handle in acknowledged:
        assert (await site.ended(handle)).status is Status.COMPLETED
    await quiet(site)
    await site.assert_whole()


async def test_an_outage_of_many_leases_spends_nobodys_attempt(site: Site, server: Server) -> None:
    worker = site.start_worker()
    running = await site.submit("polite", seconds=LONG + 2)
    await site.started(running)

    server.kill()
    await asyncio.sleep(LONG)
    server.start()

    await goes_on(site)
    job = await site.ended(running)
    assert (job.status, job.retry_count) == (Status.COMPLETED, 0)
    assert worker.poll() is None
    await quiet(site)
    await site.assert_whole()


async def test_a_server_says_that_it_is_not_ready_while_its_store_is_away(site: Site, server: Server) -> None:
    async with serving(site) as client:
        server.kill()
        assert (await client.get("/readyz")).status_code == 503
        refused = await client.post("/api/v1/jobs", json={"pipeline": "says", "parameters": {"text": "x"}})
        assert refused.status_code == 503  # no answer that promises what is not durable

        server.start()
        await until(lambda: ready(client), BACK, lambda: "not ready again")


async def test_connections_that_are_cut_one_by_one_are_made_again(site: Site, server: Server) -> None:
    """The one on which a worker listens for news, too."""
    site.start_worker()
    await site.ended(await patiently(site, "first"))

    n, many = 0, 1
    while n < many:
        many = await server.cut(n)
        n += 1
        assert (await site.ended(await patiently(site, f"number {n}"), within=BACK + 5)).status is Status.COMPLETED

    assert n > 2
    await quiet(site)
    await site.assert_whole()


async def test_objects_that_fail_now_and_then_and_are_gone_for_a_while(tmp_path: Path) -> None:
    bucket, keys = seaweed.running(), seaweed.KEYS
    async with FlakyHttp(bucket.port) as way:
        place = bucket.place(way.port)
        site = Site(tmp_path, blobs=place, s3_access_key=keys.access, s3_secret_key=keys.secret)
        try:
            site.start_worker()
            way.rates = {"503": 0.04, "cut": 0.03, "lost": 0.03}
            for n in range(8):
                assert (await words(site, f"one two {n}")).status is Status.COMPLETED
            assert way.struck > 0

            way.darken()
            waiting = asyncio.create_task(words(site, "three"))
            await asyncio.sleep(1.0)
            way.lighten()
            assert (await waiting).status is Status.COMPLETED

            way.rates = {}
            await quiet(site)
            await site.assert_whole()
        finally:
            await site.close()


# How it is done


@asynccontextmanager
async def submitting(site: Site, acknowledged: list[Handle[Any]]) -> AsyncIterator[None]:
    """Somebody submits all the time, and keeps what was acknowledged; what was not may be there or not."""
    has_enough = asyncio.Event()

    async def submit() -> None:
        while not has_enough.is_set():
            try:
                acknowledged.append(await site.submit("says", user=f"user {len(acknowledged)}", text="x"))
            except PackhorseError:
                await asyncio.sleep(0.05)

    callers = [asyncio.create_task(submit()) for _ in range(3)]
    try:
        yield
    finally:
        has_enough.set()
        await asyncio.gather(*callers)


async def more(acknowledged: list[Handle[Any]], count: int) -> None:
    enough = len(acknowledged) + count

    async def look() -> bool | None:
        return len(acknowledged) >= enough or None

    await until(look, 40, lambda: f"only {len(acknowledged)} were acknowledged")


async def everybody_consumes(site: Site, within: float = BACK) -> None:
    """Each worker begins something new within the promised time, as its own children write down."""
    begun = len(site.ledger())

    async def look() -> bool | None:
        busy = {entry.pid for entry in site.ledger()[begun:]}
        return all(busy & {child.pid for child in descendants(worker)} for worker in site.workers) or None

    await until(look, within, lambda: f"not everybody consumes\n{site.log_text()[-3000:]}")


async def goes_on(site: Site) -> None:
    """The store is back: within the promised time a job comes in and is done."""
    end = time.monotonic() + BACK
    handle = await patiently(site, "after the outage")
    assert (await site.ended(handle, within=end - time.monotonic())).status is Status.COMPLETED


async def patiently(site: Site, text: str) -> Handle[Any]:
    """Submitted as soon as the store takes it."""
    end = time.monotonic() + BACK
    while True:
        try:
            return await site.submit("says", text=text)
        except PackhorseError:
            assert time.monotonic() < end, "the store took no job in time"
            await asyncio.sleep(0.05)


async def words(site: Site, text: str) -> Job:
    path = site.folder / "in.txt"
    path.write_text(text)
    return await site.ended(await site.submit("words", text=File(path)))


async def quiet(site: Site) -> None:
    """Also what was never acknowledged, and was stored all the same, has come to its end."""

    async def look() -> bool | None:
        return all(job.status.is_terminal for job in await site.jobs()) or None

    await until(look, 40, site.log_text)


async def ready(client: httpx2.AsyncClient) -> bool | None:
    return (await client.get("/readyz")).status_code == 200 or None


@asynccontextmanager
async def serving(site: Site) -> AsyncIterator[httpx2.AsyncClient]:
    port = free_port()
    env = site.env | {"PACKHORSE_PORT": str(port), "PACKHORSE_KEYLESS": "yes"}
    process = subprocess.Popen(
        [sys.executable, "-m", "packhorse.web"], env=env, cwd=site.folder, stdout=site.log, stderr=site.log
    )
    try:
        async with httpx2.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=30) as client:

            async def look() -> bool | None:
                try:
                    return await ready(client)
                except httpx2.HTTPError:
                    return None

            await until(look, 40, site.log_text)
            yield client
    finally:
        process.terminate()
        process.wait(20)
