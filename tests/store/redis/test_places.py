"""The ways to a server: TLS, a socket, a password, sentinels, and the servers of a cluster."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from packhorse.errors import StoreUnavailable
from packhorse.store.base import Store
from packhorse.store.collections.workers import get_bookmark, put_bookmark
from packhorse.store.redis import RedisStore
from tests.contract.builders import claim_one, finish, held, submit
from tests.contract.stores import quick_folder
from tests.servers import tls, valkey
from tests.servers.ports import free_port
from tests.store.blocked import until
from tests.store.redis.inside import OpenRedis


async def works(store: Store) -> None:
    job = await submit(store)
    mark = await store.wait_for_change(None, 0)
    done = await finish(store, await claim_one(store))
    assert await store.wait_for_change(mark, 10.0) != mark
    assert await held(store, job.id) == done


# TLS, socket, password


@pytest.fixture(scope="module")
def pair() -> Iterator[tuple[Path, Path]]:
    with quick_folder() as folder:
        yield tls.certificate(folder)


async def test_a_server_is_reached_by_tls(pair: tuple[Path, Path], prefix: str) -> None:
    async with tls.proxy(valkey.shared().port, *pair) as port:
        store = await RedisStore.open(f"rediss://127.0.0.1:{port}?prefix={prefix}&ssl_ca_certs={pair[1]}")
        await works(store)
        await store.close()


async def test_a_certificate_nobody_vouches_for_is_refused(pair: tuple[Path, Path], prefix: str) -> None:
    async with tls.proxy(valkey.shared().port, *pair) as port:
        with pytest.raises(StoreUnavailable, match=r"(?i)certificate"):
            await RedisStore.open(f"rediss://127.0.0.1:{port}?prefix={prefix}")


async def test_a_server_is_reached_by_its_socket(open_redis: OpenRedis, prefix: str) -> None:
    await works(await open_redis(f"unix://{valkey.shared().socket}?prefix={prefix}"))


async def test_a_password_is_asked_for(open_redis: OpenRedis) -> None:
    server = valkey.Valkey("--requirepass", "s3cret/")
    server.password = "s3cret/"
    server.start()
    try:
        store = await open_redis(server.url("p:").replace("//", "//:s3cret%2F@"))
        await works(store)
        for url in (server.url("p:"), server.url("p:").replace("//", "//:wrong@")):
            with pytest.raises(StoreUnavailable):
                await open_redis(url)
        await store.close()
    finally:
        server.remove()


async def test_a_database_of_its_own_is_its_own(open_redis: OpenRedis, prefix: str) -> None:
    here, there = [await open_redis(f"redis://127.0.0.1:{valkey.shared().port}/{n}?prefix={prefix}") for n in (0, 3)]
    await put_bookmark(here, "b", "here")

    assert await get_bookmark(there, "b") is None
    await works(there)
    with valkey.shared().client(db=3) as client:
        client.flushdb()


# sentinels


class Watched:
    """A master, its replica and a sentinel over them."""

    def __init__(self) -> None:
        self.master = valkey.Valkey().start()
        self.replica = valkey.Valkey("--replicaof", "127.0.0.1", str(self.master.port)).start()
        self.sentinel = valkey.Sentinel("mymaster", self.master.port)
        self.sentinel.start()

    def remove(self) -> None:
        for server in (self.sentinel, self.replica, self.master):
            server.remove()


@pytest.fixture
def watched() -> Iterator[Watched]:
    found = Watched()
    yield found
    found.remove()


async def test_sentinels_lead_to_the_master_and_after_a_failover_to_the_next(
    watched: Watched, open_redis: OpenRedis
) -> None:
    nobody = free_port()
    url = f"redis+sentinel://127.0.0.1:{nobody},127.0.0.1:{watched.sentinel.port}/mymaster?prefix=p:"
    store = await open_redis(url)
    job = await submit(store)
    with watched.replica.client() as client, watched.sentinel.client() as sentinel:
        await until(lambda: client.exists(f"p:job:{job.id}") == 1)
        await until(lambda: knows_replica(sentinel))

        watched.master.kill()
        sentinel.execute_command("SENTINEL", "FAILOVER", "mymaster")
        await until(lambda: client.info("replication")["role"] == "master")
        await until(lambda: leads_to(sentinel) == watched.replica.port)

    done = await finish(store, await claim_one_after_a_loss(store))

    assert (done.id, done.status) == (job.id, "completed")


def knows_replica(sentinel: redis.Redis) -> bool:
    return len(sentinel.execute_command("SENTINEL", "REPLICAS", "mymaster")) == 1  # type: ignore[no-untyped-call]


def leads_to(sentinel: redis.Redis) -> int:
    return int(sentinel.execute_command("SENTINEL", "GET-MASTER-ADDR-BY-NAME", "mymaster")[1])  # type: ignore[no-untyped-call]


async def claim_one_after_a_loss(store: Store) -> Any:
    """The first call may still meet the connection that died."""
    try:
        return await claim_one(store)
    except StoreUnavailable:
        return await claim_one(store)


async def test_a_name_no_sentinel_knows_is_told(watched: Watched, open_redis: OpenRedis) -> None:
    with pytest.raises(StoreUnavailable, match="elsewhere"):
        await open_redis(f"redis+sentinel://127.0.0.1:{watched.sentinel.port}/elsewhere")


# cluster


class Pair:
    """Two servers of one cluster, each with half of the slots."""

    def __init__(self) -> None:
        self.low, self.high = valkey.Cluster(0, 8191), valkey.Cluster(8192, 16383)
        for server in (self.low, self.high):
            server.begin()
        with self.low.client() as low, self.high.client() as high:
            low.execute_command("CLUSTER", "MEET", "127.0.0.1", self.high.port, self.high.bus)
            self.low.settle()
            self.high.settle()
            self.ids = [client.execute_command("CLUSTER", "MYID").decode() for client in (low, high)]

    def remove(self) -> None:
        self.low.remove()
        self.high.remove()


@pytest.fixture(scope="module")
def nodes() -> Iterator[Pair]:
    found = Pair()
    yield found
    found.remove()


LOW, HIGH = "{b}:", "{a}:"
"""Prefixes whose slots are 3300 and 15495."""


@pytest.mark.parametrize("prefix", [LOW, HIGH])
async def test_a_cluster_leads_to_the_server_that_has_the_slot(nodes: Pair, open_redis: OpenRedis, prefix: str) -> None:
    store = await open_redis(nodes.low.url(prefix, "redis+cluster"))

    await works(store)

    home = nodes.low if prefix == LOW else nodes.high
    with home.client() as client:
        assert client.exists(f"{prefix}feed") == 1


async def test_a_cluster_is_found_by_any_of_the_servers_that_were_named(nodes: Pair, open_redis: OpenRedis) -> None:
    nobody = free_port()

    store = await open_redis(f"redis+cluster://127.0.0.1:{nobody},127.0.0.1:{nodes.low.port}?prefix=%7Ba%7D:x:")

    await works(store)


async def test_while_a_slot_is_moved_nothing_is_done_on_half_of_its_data(nodes: Pair, open_redis: OpenRedis) -> None:
    store = await open_redis(nodes.low.url(LOW, "redis+cluster"))
    job = await submit(store)
    with nodes.low.client() as low, nodes.high.client() as high:
        low.execute_command("CLUSTER", "SETSLOT", 3300, "MIGRATING", nodes.ids[1])
        high.execute_command("CLUSTER", "SETSLOT", 3300, "IMPORTING", nodes.ids[0])

        with pytest.raises(StoreUnavailable):
            await asyncio.wait_for(store.get([job.id]), 10.0)

        for client in (low, high):
            client.execute_command("CLUSTER", "SETSLOT", 3300, "STABLE")
    assert await held(store, job.id) == job
