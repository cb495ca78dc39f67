"""Where a Redis is: one server, a cluster, or whatever its sentinels say; and the prefix of every key there."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import parse_qsl, unquote, urlencode, urlsplit

from msgspec import Struct
from redis.asyncio.connection import Connection, parse_url

from packhorse.errors import SettingError
from packhorse.settings import REDIS_PREFIX, without_secrets

TIMEOUT = 5.0
"""Seconds to wait for an answer. A server that syncs every commit to a slow disk needs one or two of them."""
SENTINEL_PORT = 26_379

TAG = re.compile(r"\{[^}]+\}")
"""The part of a name that a cluster goes by. Without one, every key would be in a slot of its own."""


class Address(Struct, frozen=True):
    nodes: tuple[Mapping[str, Any], ...]
    """How to make a connection to each server that was named: Redis servers, or the sentinels."""
    connection: type[Connection]
    options: Mapping[str, Any]
    """What every connection to a Redis server is made with, whichever server it is."""
    prefix: str
    timeout: float
    master: str | None = None
    """The name the sentinels know it by."""
    name: str = ""
    """What people are told: the URL without what is secret."""

    def prefix_in(self, *, is_cluster: bool) -> str:
        """The prefix; in a cluster, with braces where the operator put none, so that all keys lie in one slot."""
        if not is_cluster or TAG.search(self.prefix):
            return self.prefix
        name = self.prefix.rstrip(":")
        return f"{{{name}}}{self.prefix[len(name) :]}"


def address(url: str, prefix: str = REDIS_PREFIX) -> Address:
    """Read ``redis://``, ``rediss://``, ``unix://``, ``redis+cluster://a,b`` or ``redis+sentinel://a,b/master``.

    The same with ``valkey`` for ``redis``. In the query, ``prefix`` and ``timeout`` are ours, the rest is redis-py's.
    """
    parts = urlsplit(url)
    transport, _, sort = parts.scheme.replace("valkey", "redis").partition("+")
    query = dict(parse_qsl(parts.query, keep_blank_values=True))
    prefix = query.pop("prefix", prefix)
    path, master = parts.path, None
    if sort == "sentinel":
        master, _, database = parts.path.strip("/").partition("/")
        path = f"/{database}"
        if not master:
            raise _wrong(url, "name the master behind the sentinels, as in redis+sentinel://host:26379/mymaster")
    login, _, hosts = parts.netloc.rpartition("@")
    try:
        timeout = float(query.pop("timeout", TIMEOUT))
        sentinel = {name: query.pop(f"sentinel_{name}", None) for name in ("username", "password")}
        tail = f"{path}?{urlencode(query)}"
        found = [parse_url(f"{transport}://{host}{tail}") for host in (hosts.split(",") if hosts else [""])]
        options: dict[str, Any] = dict(found[0])
        connection = options.pop("connection_class", Connection)
        nodes = tuple({"host": "localhost", "port": 6379, **_place(each, is_sentinel=bool(master))} for each in found)
        if "path" in options:
            nodes = ({"path": options["path"]},)
        for name in ("host", "port", "path"):
            options.pop(name, None)
        options |= _login(login)
        connection(**nodes[0], **options)  # makes no connection yet, but refuses what it does not know
    except (ValueError, TypeError) as error:
        raise _wrong(url, str(error)) from error
    if master is not None:
        nodes = tuple({**node, **{k: v for k, v in sentinel.items() if v}} for node in nodes)
    named = f"{parts.scheme}://{hosts or unquote(parts.path)}"
    return Address(nodes, connection, options, prefix, timeout, master, named)


def _place(found: Mapping[str, Any], *, is_sentinel: bool) -> dict[str, Any]:
    place = {name: found[name] for name in ("host", "port") if name in found}
    return {"port": SENTINEL_PORT, **place} if is_sentinel else place


def _login(text: str) -> dict[str, str]:
    if not text:
        return {}
    user, _, password = text.partition(":")
    return {k: unquote(v) for k, v in {"username": user, "password": password}.items() if v}


def _wrong(url: str, reason: str) -> SettingError:
    return SettingError(
        f"PACKHORSE_STORE cannot be {without_secrets(url)!r}: {reason}.", name="store", value=without_secrets(url)
    )
