"""What the server's settings mean, said by the self-check; and whose clock it is."""

from __future__ import annotations

import time
from typing import Any

import pytest
import redis

from packhorse.store.base import Finding
from packhorse.store.redis import RedisStore
from packhorse.store.redis.client import FRESH, ServerClock
from packhorse.store.redis.store import findings as judge
from tests.contract.builders import LEASE, claim, claim_one, lease_of, started, submit
from tests.servers import valkey
from tests.store.redis.inside import OpenRedis


async def findings(store: RedisStore) -> dict[str, Finding]:
    return {finding.name: finding for finding in await store.check()}


async def test_a_server_as_it_should_be_has_nothing_wrong(server: valkey.Valkey, open_redis: OpenRedis) -> None:
    found = await findings(await open_redis(server.url("p:")))

    assert [finding for finding in found.values() if not finding.is_ok] == []
    assert found["server version"].value.startswith("Valkey 9")
    assert found["appendfsync"].meaning == "an acknowledged job survives a power cut"


@pytest.mark.parametrize(
    ("setting", "value", "name", "meaning"),
    [
        ("appendfsync", "everysec", "appendfsync", "up to a second of acknowledged jobs can be lost in a power cut"),
        ("appendfsync", "no", "appendfsync", "is lost in a power cut"),
        ("appendonly", "no", "append-only file", "a restart loses all jobs since the last snapshot"),
        ("maxmemory-policy", "allkeys-lru", "maxmemory-policy", "deletes jobs when memory runs short"),
    ],
)
async def test_a_setting_that_weakens_the_promise_is_named_with_what_it_means(
    server: valkey.Valkey, open_redis: OpenRedis, setting: str, value: str, name: str, meaning: str
) -> None:
    store = await open_redis(server.url("p:"))
    with server.client() as client:
        client.config_set(setting, value)

    found = await findings(store)

    assert not found[name].is_ok
    assert meaning in found[name].meaning


async def test_a_server_that_does_not_say_its_settings_is_not_taken_for_safe(
    server: valkey.Valkey, open_redis: OpenRedis
) -> None:
    with server.client() as client:
        client.acl_setuser(
            "ann",
            enabled=True,
            passwords=["+pw"],
            keys=["*"],
            channels=["*"],
            categories=["+@all"],
            commands=["-config"],
        )
    store = await open_redis(server.url("p:").replace("//", "//ann:pw@"))

    found = await findings(store)

    assert (found["appendfsync"].is_ok, found["maxmemory-policy"].is_ok) == (False, False)
    assert found["appendfsync"].value == "cannot be asked"


@pytest.mark.parametrize(
    ("info", "is_ok"),
    [
        ({"redis_version": "7.0.0"}, True),
        ({"redis_version": "8.2.1"}, True),
        ({"redis_version": "7.2.4", "valkey_version": "9.1.2"}, True),
        ({"redis_version": "6.2.19"}, False),
    ],
)
def test_servers_before_seven_are_too_old(info: dict[str, str], is_ok: bool) -> None:
    [version, *_] = judge(info, "always", "noeviction", "p:", 0.0)

    assert (version.name, version.is_ok) == ("server version", is_ok)


def test_a_failed_write_of_the_file_is_told() -> None:
    info = {"redis_version": "8.0.0", "aof_enabled": "1", "aof_last_write_status": "err"}

    found = judge(info, "always", "noeviction", "p:", 0.0)

    assert [(each.name, each.value) for each in found if not each.is_ok] == [
        ("last write of the file", "aof_last_write_status")
    ]


async def test_the_prefix_in_a_cluster_is_told(open_redis: OpenRedis, prefix: str) -> None:
    store = await open_redis(valkey.shared_cluster().url(prefix, "redis+cluster"))

    found = await findings(store)

    assert found["prefix"].value == f"{{{prefix[:-1]}}}: (cluster)"


# the clock


class Elsewhere(ServerClock):
    """The clock of a machine that is an hour wrong."""

    def __call__(self) -> float:
        return super().__call__() + 3600.0


async def test_leases_go_by_the_servers_clock_and_not_the_workers(
    redis_store: RedisStore, open_redis: OpenRedis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("packhorse.store.redis.session.ServerClock", Elsewhere)
    wrong = await open_redis()
    claimed = await started(redis_store, lease=LEASE)
    here = time.time
    monkeypatch.setattr(time, "time", lambda: here() + 3600.0)

    assert wrong.now() > redis_store.now() + LEASE
    assert (await wrong.overdue(limit=10)).tasks == []
    assert (await redis_store.held_by("w", limit=10))[0][0] == claimed.job


@pytest.mark.parametrize("wrong", [-86_400.0, 86_400.0])
async def test_a_lease_is_granted_and_renewed_by_the_servers_clock_whatever_the_hosts_says(
    redis_store: RedisStore, raw: redis.Redis, prefix: str, wrong: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    await submit(redis_store)
    here = time.time
    monkeypatch.setattr(time, "time", lambda: here() + wrong)
    redis_store.now._offset += wrong
    monkeypatch.setattr(redis_store.now, "learn", lambda *_: None)

    def left() -> float:
        found: Any = raw.zrange(f"{prefix}leases", 0, -1, withscores=True)
        return float(found[0][1]) - raw.time()[0]

    claimed = await claim_one(redis_store, lease=LEASE)
    granted = left()
    await redis_store.renew([lease_of(claimed)], 10 * LEASE)
    renewed = left()

    assert 0 < granted <= LEASE + 1
    assert LEASE + 1 < renewed <= 10 * LEASE + 1
    assert (await redis_store.overdue(limit=10)).tasks == []


async def test_what_is_due_at_once_is_due_at_once_by_the_servers_clock_too(redis_store: RedisStore) -> None:
    for _ in range(50):
        await submit(redis_store)

        assert len(await claim(redis_store)) == 1


async def test_the_time_of_the_store_is_that_of_the_server(redis_store: RedisStore, raw: redis.Redis) -> None:
    def asked() -> float:
        seconds, micros = raw.time()
        return float(seconds) + micros / 1e6

    before, said, after = asked(), redis_store.now(), asked()

    assert before - 1.0 < said < after + 0.05


def test_a_clock_takes_the_measurement_it_can_doubt_least(monkeypatch: pytest.MonkeyPatch) -> None:
    at = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: at)
    clock = ServerClock()

    clock.learn(1000.0, sent=99.9)
    clock.learn(995.0, sent=90.0)

    assert clock() == 1000.0
    at += FRESH + 1
    clock.learn(2000.0, sent=at - 5)
    assert clock() == 2000.0
