"""The client of a server: its address, a few connections, bounded waiting, errors that say what was sent, its clock."""

from __future__ import annotations

import asyncio
import hashlib
import re
import select
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import cache
from importlib.resources import files
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, unquote, urlencode, urlsplit

import msgspec
from msgspec import Struct
from redis import exceptions
from redis.asyncio.connection import AbstractConnection, Connection, parse_url

from packhorse.crashpoints import reach
from packhorse.errors import SettingError, StoreError, StoreUnavailable, UnknownOutcome
from packhorse.settings import REDIS_PREFIX, without_secrets

TIMEOUT = 5.0
"""Seconds to wait for an answer. A server that syncs every commit to a slow disk needs one or two of them."""
SENTINEL_PORT = 26_379

TAG = re.compile(r"\{[^}]+\}")
"""The part of a name that a cluster goes by. Without one, every key would be in a slot of its own."""

CONNECTIONS = 6
"""At most, and one more for the watcher. Writes travel together, so it is reads that need more than one."""
CONNECT = 2.0
"""Seconds to wait for a connection."""
FRESH = 60.0
"""Seconds for which a better measurement of the clock is preferred to a newer one."""
JUMP = 1.0
"""Seconds by which a measurement may contradict an earlier one before only the newer one counts."""
QUESTIONS = 100
"""Answered by one script, so that it does not keep others waiting."""
HOPS = 4
"""Redirections followed for one command."""

# What a server says when it has not begun: nothing of it was made.
NOT_BEGUN = (
    exceptions.AskError, exceptions.AuthenticationError, exceptions.BusyLoadingError, exceptions.ClusterDownError,
    exceptions.ClusterError, exceptions.MasterDownError, exceptions.OutOfMemoryError, exceptions.ReadOnlyError,
    exceptions.TryAgainError,
)  # fmt: skip
NOT_BEGUN_WORDS = ("BUSY", "MISCONF", "NOREPLICAS", "NOPERM", "NOAUTH", "CROSSSLOT", "UNKILLABLE")

_pack = msgspec.msgpack.Encoder().encode

WRITES = frozenset({"append", "claim", "commit", "log", "put", "renew", "report", "spend", "take", "view"})
_EFFECTS, _RECORDS = ("lib", "record_lib", "effects", "limits"), ("lib", "record_lib")
LIBRARIES = {"commit": _EFFECTS, "claim": _EFFECTS, "put": _RECORDS, "take": _RECORDS}
"""What is put in front of a script, if it is not only `lib`."""


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
    """The URL without secrets, for messages."""

    def prefix_in(self, *, is_cluster: bool) -> str:
        """The prefix; in a cluster, with braces where the operator put none, so that all keys are in one slot."""
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


class Script(NamedTuple):
    body: str
    sha: str
    is_write: bool


@cache
def script(name: str) -> Script:
    """A Lua file with what several of them share in front of it."""
    lua, is_write = files(__package__).joinpath("lua"), name in WRITES
    parts = [lua.joinpath(f"{part}.lua").read_text() for part in (*LIBRARIES.get(name, ("lib",)), name)]
    body = "\n".join(["#!lua" if is_write else "#!lua flags=no-writes", *parts])
    return Script(body, hashlib.sha1(body.encode(), usedforsecurity=False).hexdigest(), is_write)


class Link:
    def __init__(self, address: Address) -> None:
        self.address = address
        self.prefix = address.prefix
        self._idle: list[tuple[AbstractConnection, int]] = []
        self._free = asyncio.Semaphore(CONNECTIONS)
        self._here: dict[str, Any] | None = None
        """The server that answered last: where a cluster or the sentinels sent us."""
        self._age = 0
        """Rises when we leave a server; connections to it are not used again."""
        self.is_cluster = False
        self.is_closed = False

    async def run(self, name: str, *arguments: str | bytes | float) -> Any:
        """Run a script. A server that has lost it, after a restart or a failover, gets it again."""
        each = script(name)
        try:
            return await self.call("EVALSHA", each.sha, 1, self.prefix, *arguments, is_write=each.is_write)
        except exceptions.NoScriptError:
            return await self.call("EVAL", each.body, 1, self.prefix, *arguments, is_write=each.is_write)

    async def ask(self, questions: Sequence[Sequence[str]]) -> list[Any]:
        """Answers to commands that only read, their keys without the prefix. Each hundred of one state."""
        answers: list[Any] = []
        for first in range(0, len(questions), QUESTIONS):
            answers += await self.run("ask", _pack(questions[first : first + QUESTIONS]))
        return answers

    async def call(self, *command: str | bytes | float, is_write: bool = False) -> Any:
        """One command, one answer. Nothing is ever sent twice unless the server said that it has not begun.

        Raises `StoreUnavailable` if it was certainly not carried out, `UnknownOutcome` if a write may have been.
        """
        if is_write:
            reach("store.write.before")
        for _ in range(HOPS):
            try:
                reply = await self._once(command, is_write=is_write)
            except exceptions.MovedError as moved:
                here = self._here or self.address.nodes[0]
                self._leave()
                self._here = {"host": moved.host or str(here.get("host")), "port": moved.port}
                continue
            if is_write:
                reach("store.write.after")
            return reply
        raise StoreUnavailable(f"Redis: the cluster sends us round in circles ({self.address.name}).")

    async def info(self) -> dict[str, str]:
        """INFO, its lines by their names."""
        text = (await self.call("INFO")).decode()
        pairs = (line.partition(":") for line in text.splitlines() if line and not line.startswith("#"))
        return {name: value for name, _, value in pairs}

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[AbstractConnection]:
        """A connection of one's own, for who waits long for an answer."""
        connection = await self._connect()
        try:
            yield connection
        finally:
            await connection.disconnect(nowait=True)

    async def close(self) -> None:
        self.is_closed = True
        idle, self._idle = self._idle, []
        for connection, _ in idle:
            await connection.disconnect()

    # One command

    async def _once(self, command: Sequence[str | bytes | float], *, is_write: bool) -> Any:
        """The time to wait for a connection counts: all who wait for a server that stands still get the error at once.

        A write gets its own time once it is sent, because when that is cut short its outcome is unknown.
        """
        is_sent = False
        try:
            async with asyncio.timeout(self.address.timeout) as limit, self._free:
                connection, age = await self._get(), self._age
                try:
                    is_sent = True
                    if is_write:
                        limit.reschedule(asyncio.get_running_loop().time() + self.address.timeout)
                    reply = await self._exchange(connection, command, is_write=is_write)
                except BaseException as error:
                    if isinstance(error, exceptions.ResponseError | StoreError) and connection.is_connected:
                        await self._put(connection, age)
                    else:
                        await connection.disconnect(nowait=True)
                    raise
                await self._put(connection, age)
                return reply
        except TimeoutError as error:
            if is_sent:
                raise self._translate_error(error, is_write=is_write) from error
            raise StoreUnavailable(f"Redis at {self.address.name}: no connection became free in time") from error

    async def _exchange(
        self, connection: AbstractConnection, command: Sequence[str | bytes | float], *, is_write: bool
    ) -> Any:
        try:
            packed = connection.pack_command(*command)
            await connection.send_packed_command(packed, check_health=False)
            if is_write:
                reach("store.write.open")
            return await connection.read_response(disconnect_on_error=False)
        except (exceptions.MovedError, exceptions.NoScriptError):
            raise
        except (exceptions.RedisError, OSError) as error:
            if not isinstance(error, exceptions.ResponseError):
                await connection.disconnect(nowait=True)
            raise self._translate_error(error, is_write=is_write) from error

    def _translate_error(self, error: Exception, *, is_write: bool) -> StoreError:
        why = f"Redis at {self.address.name}: {_reason(error)}"
        if isinstance(error, exceptions.ReadOnlyError) or not isinstance(error, exceptions.ResponseError):
            self._leave()  # a failover may have moved it
        if isinstance(error, NOT_BEGUN) or str(error).startswith(NOT_BEGUN_WORDS):
            return StoreUnavailable(why)
        if is_write:
            return UnknownOutcome(why)
        return StoreError(why) if isinstance(error, exceptions.ResponseError) else StoreUnavailable(why)

    # Connections

    async def _get(self) -> AbstractConnection:
        if self.is_closed:
            raise StoreUnavailable("The store is closed.")
        while self._idle:
            connection, age = self._idle.pop()
            if age == self._age and connection.is_connected and not _has_ended(connection):
                return connection
            await connection.disconnect(nowait=True)
        return await self._connect()

    async def _put(self, connection: AbstractConnection, age: int) -> None:
        if self.is_closed or age != self._age:
            await connection.disconnect(nowait=True)
        else:
            self._idle.append((connection, age))

    async def _connect(self) -> AbstractConnection:
        """To the server that answered last, else to the first that answers."""
        if self.is_closed:
            raise StoreUnavailable("The store is closed.")
        reason: Exception | None = None
        try:
            for place in await self._places():
                try:
                    connection = await self._connect_to({**self.address.options, **place})
                except (exceptions.RedisError, OSError) as error:
                    reason = error
                    continue
                self._here = dict(place)
                return connection
        except (exceptions.RedisError, OSError) as error:
            reason = error
        self._leave()
        raise StoreUnavailable(f"Redis at {self.address.name}: {_reason(reason)}") from reason

    async def _connect_to(self, options: dict[str, Any]) -> AbstractConnection:
        # No timeout of theirs for reading and writing: ours covers both, and theirs costs a task per command.
        common = {"socket_connect_timeout": CONNECT, "socket_timeout": None, "protocol": 2, "driver_info": None}
        connection = self.address.connection(**{**common, **options})
        try:
            async with asyncio.timeout(CONNECT):  # theirs does not cover the greeting
                await connection.connect()  # type: ignore[no-untyped-call]
        except BaseException:
            await connection.disconnect(nowait=True)
            raise
        return connection

    async def _places(self) -> list[dict[str, Any]]:
        if self._here is not None:
            others = [] if self.address.master else [dict(n) for n in self.address.nodes if dict(n) != self._here]
            return [self._here, *others]
        if self.address.master is None:
            return [dict(node) for node in self.address.nodes]
        return [await self._ask_sentinels(self.address.master)]

    async def _ask_sentinels(self, master: str) -> dict[str, Any]:
        reason: Exception = StoreUnavailable(f"no sentinel knows a master {master!r}")
        tls = {k: v for k, v in self.address.options.items() if k.startswith("ssl")}
        for node in self.address.nodes:
            try:
                connection = await self._connect_to({**tls, **node})
                try:
                    async with asyncio.timeout(CONNECT):
                        await connection.send_command("SENTINEL", "GET-MASTER-ADDR-BY-NAME", master)
                        found = await connection.read_response()
                finally:
                    await connection.disconnect(nowait=True)
            except (exceptions.RedisError, OSError) as error:
                reason = error
                continue
            if found is not None:
                return {"host": found[0].decode(), "port": int(found[1])}
        raise StoreUnavailable(f"Redis sentinels at {self.address.name}: {_reason(reason)}") from reason

    def _leave(self) -> None:
        """The next answer may come from another server."""
        self._here = None
        self._age += 1


def _has_ended(connection: AbstractConnection) -> bool:
    """What can be read while nothing was asked is the end: it was closed at the other side.

    Asked of the system, for the event loop may not have looked since.
    """
    assert connection._writer is not None
    number = connection._writer.get_extra_info("socket").fileno()
    looking = select.poll()
    if number >= 0:
        looking.register(number, select.POLLIN)
    return number < 0 or bool(looking.poll(0))


def _reason(error: Exception | None) -> str:
    return str(error) or type(error).__name__


class ServerClock:
    """Runs on between measurements by a clock that nobody can set. Rather behind the server's than ahead of it: what is
    due now by this clock is then due there too."""

    def __init__(self, given: Callable[[], float] | None = None) -> None:
        self._given = given
        self._offset = time.time() - time.monotonic()
        self._doubt = float("inf")
        self._at = 0.0

    def __call__(self) -> float:
        return self._given() if self._given is not None else time.monotonic() + self._offset

    def argument(self) -> str:
        """The time that scripts get: none, so that they ask the server, unless the clock was handed in."""
        return "" if self._given is None else repr(self._given())

    def learn(self, server: float, sent: float) -> None:
        """The server's time somewhere between ``sent`` and now, both of the monotonic clock."""
        received = time.monotonic()
        doubt = received - sent
        is_set = not -doubt - JUMP < server - received - self._offset < self._doubt + JUMP
        if doubt <= self._doubt or received - self._at > FRESH or is_set:
            self._offset, self._doubt, self._at = server - received, doubt, received

    @property
    def ahead(self) -> float:
        """Seconds by which the server's clock is ahead of this machine's."""
        return time.monotonic() + self._offset - time.time()
