"""Where a Redis is, as an operator writes it."""

from __future__ import annotations

import builtins
from typing import Any

import pytest
from redis.asyncio.connection import Connection, SSLConnection, UnixDomainSocketConnection

from packhorse.errors import SettingError, StoreUnavailable
from packhorse.factory import open_store
from packhorse.settings import without_secrets
from packhorse.store.collections.workers import get_bookmark, put_bookmark
from packhorse.store.redis.client import address
from tests.servers import valkey
from tests.servers.ports import free_port


@pytest.mark.parametrize(
    ("url", "connection", "node"),
    [
        ("redis://h", Connection, {"host": "h", "port": 6379}),
        ("redis://h:7000/3", Connection, {"host": "h", "port": 7000}),
        ("valkey://h:7000", Connection, {"host": "h", "port": 7000}),
        ("rediss://h", SSLConnection, {"host": "h", "port": 6379}),
        ("valkeys://h", SSLConnection, {"host": "h", "port": 6379}),
        ("unix:///run/redis.sock", UnixDomainSocketConnection, {"path": "/run/redis.sock"}),
    ],
)
def test_an_address_says_how_to_connect(url: str, connection: type, node: dict[str, Any]) -> None:
    found = address(url)

    assert found.connection is connection
    assert found.nodes == (node,)
    assert found.master is None


def test_a_database_and_a_login_go_with_every_connection() -> None:
    found = address("redis://ann:s%3Acret@h/3")

    assert found.options == {"db": 3, "username": "ann", "password": "s:cret"}


@pytest.mark.parametrize("scheme", ["redis+cluster", "valkey+cluster"])
def test_a_cluster_is_named_by_several_of_its_servers(scheme: str) -> None:
    found = address(f"{scheme}://:pw@a:7000,b:7001?prefix=x:")

    assert [node["host"] for node in found.nodes] == ["a", "b"]
    assert (found.options["password"], found.prefix) == ("pw", "x:")


def test_sentinels_are_asked_for_a_master_by_name() -> None:
    found = address("redis+sentinel://:pw@a,b:26380/mymaster/2?sentinel_password=spw")

    assert found.master == "mymaster"
    assert [(node["host"], node["port"], node["password"]) for node in found.nodes] == [
        ("a", 26_379, "spw"),
        ("b", 26_380, "spw"),
    ]
    assert found.options == {"db": 2, "password": "pw"}


def test_sentinels_may_be_behind_tls() -> None:
    assert address("rediss+sentinel://a/mymaster").connection is SSLConnection


@pytest.mark.parametrize(
    "url", ["redis+sentinel://a", "redis://h?nonsense=1", "redis://h:port", "redis://h?timeout=soon", "redis://h?db=x"]
)
def test_what_cannot_be_meant_is_refused(url: str) -> None:
    with pytest.raises(SettingError):
        address(url)


@pytest.mark.parametrize(
    ("prefix", "alone", "in_a_cluster"),
    [
        ("packhorse:", "packhorse:", "{packhorse}:"),
        ("prod", "prod", "{prod}"),
        ("{prod}:", "{prod}:", "{prod}:"),
        ("a{b}c:", "a{b}c:", "a{b}c:"),
        ("a{}:", "a{}:", "{a{}}:"),
    ],
)
def test_the_prefix_is_the_operators_and_has_braces_in_a_cluster(prefix: str, alone: str, in_a_cluster: str) -> None:
    found = address("redis://h", prefix)

    assert found.prefix_in(is_cluster=False) == alone
    assert found.prefix_in(is_cluster=True) == in_a_cluster


def test_the_prefix_of_the_url_wins() -> None:
    assert address("redis://h?prefix=%7Bdev%7D%3A", "prod:").prefix == "{dev}:"


@pytest.mark.parametrize(
    "url",
    ["redis://ann:canary@h:1/x", "redis://h?password=canary&db=1", "redis+sentinel://h/m?sentinel_password=canary"],
)
def test_no_password_is_shown(url: str) -> None:
    assert "canary" not in without_secrets(url)
    assert "h" in without_secrets(url)


async def test_no_password_is_told_with_an_error() -> None:
    port = free_port()

    with pytest.raises(StoreUnavailable) as error:
        await open_store(f"redis://:canary@127.0.0.1:{port}")

    assert str(port) in error.value.message
    assert "canary" not in error.value.message


async def test_a_wrong_url_is_told_without_its_password() -> None:
    with pytest.raises(SettingError) as error:
        await open_store("redis://:canary@h?nonsense=1")

    assert "nonsense" in error.value.message
    assert "canary" not in f"{error.value.message} {error.value.facts}"


async def test_a_missing_driver_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *args: Any, **kw: Any) -> Any:
        if name == "packhorse.store.redis":
            raise ImportError(name)
        return real(name, *args, **kw)

    monkeypatch.setattr(builtins, "__import__", without)

    with pytest.raises(SettingError) as error:
        await open_store("redis://:canary@h")

    assert error.value.message.endswith("pip install packhorse[redis]")
    assert "canary" not in error.value.message


@pytest.mark.parametrize("scheme", ["redis", "valkey", "redis+cluster", "valkey+cluster"])
async def test_the_wiring_opens_what_a_url_names_under_the_prefix_of_the_settings(scheme: str, prefix: str) -> None:
    store = await open_store(valkey.shared().url(scheme=scheme), prefix)

    await put_bookmark(store, "here", "now")

    assert await get_bookmark(store, "here") == "now"
    await store.close()
    with valkey.shared().client(decode_responses=True) as client:
        assert client.hget(f"{prefix}record:bookmark:here", "body") == '"now"'
