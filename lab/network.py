"""The servers of a simulation, and what machines reach them through: a network that loses, delays and repeats."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from lab.clock import EPOCH
from lab.faults import Faults, Stream
from lab.loop import Loop, Machine, set_exception, set_result
from lab.model_blobs import Objects, collect
from lab.model_store import METHODS, Held, Key, State
from packhorse.blobs.base import CHUNK, Blobs, Sum, check_key
from packhorse.core.changes import Change
from packhorse.errors import BlobUnavailable, PackhorseError, StoreError, StoreUnavailable, UnknownOutcome
from packhorse.store.base import Store, is_own_work

TIMEOUT = 2.7
"""Seconds after which a caller of the store gives up: two thirds of a lease, as with the defaults."""
RENEWAL, OTHER = 0.2, 0.03
"""How much less likely than a call that changes a job a fault strikes another one."""
BLOB_TIMEOUT = 3.0
LATE = 0.9
"""Leases after which a commit may still land when its caller has given up."""
SYNC = 1.0
"""Seconds between the states that a lagging replica may have."""
WRITES = frozenset(
    {
        "commit", "claim", "report", "log", "sample", "erase", "trim", "put", "take", "append", "spend", "refund",
        "tally", "dismiss_failures", "forget_failures", "set_limit",
    }
)  # fmt: skip
STORE_FAULTS = ("store.refused", "store.reply lost", "store.late", "store.slow", "store.twice")
BLOB_FAULTS = ("blobs.refused", "blobs.reply lost", "blobs.late", "blobs.slow")


class Server:
    """The store's server: its state and its clock."""

    def __init__(self, loop: Loop) -> None:
        self.state = State()
        self.frozen_until = 0.0
        self.frozen_since = 0.0
        self.generation = 0
        """Counts fail-overs: who was connected before has to connect again."""
        self.glitch = 0.0
        """Seconds by which the clock is wrong for a moment."""
        self.made: Callable[[Change, float, Mapping[Key, Held]], None] = lambda _change, _now, _leases: None
        """Is told of every change that was made, when, and what was leased before."""
        self.erased: Callable[[str, float], None] = lambda _job_id, _now: None
        self._loop = loop
        self._error = 0.0
        self._rate = 0.0
        self._since = 0.0
        self._replicas: list[tuple[float, State]] = []
        self._watchers: list[tuple[bool, Callable[[], None]]] = []
        self.work = 0
        """Changes that those who carry out stages have to hear of."""
        self._seen = (0, 0)
        self._leases: dict[Key, Held] = {}

    # The clock.

    def now(self) -> float:
        return self.steady_now() + self.glitch

    def steady_now(self) -> float:
        """Without what is wrong for a moment."""
        return EPOCH + self._loop.time() + self.clock_error()

    def clock_error(self) -> float:
        return self._error + self._rate * (self._loop.time() - self._since)

    def move_clock(self, seconds: float, rate: float) -> None:
        """Jump, and from now on gain so many seconds per second."""
        self._error, self._since, self._rate = self.clock_error() + seconds, self._loop.time(), rate

    # Operations.

    def execute(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The answer, an error being one."""
        now = self.now()
        self._leases = dict(self.state.leases)
        try:
            if name in ("commit", "start"):
                found = getattr(self.state, name)(*args, now=now, made=self._tell)
            else:
                found = getattr(self.state, METHODS.get(name, name))(*args, now=now, **kwargs)
        except PackhorseError as error:
            return error
        if name == "erase":
            self.erased(args[0], now)
        if (self.state.mark, self.work) != self._seen:
            is_work, self._seen = self.work != self._seen[1], (self.state.mark, self.work)
            watchers, self._watchers = self._watchers, []
            for is_working, tell in watchers:
                if is_working and not is_work:
                    self._watchers.append((is_working, tell))
                else:
                    tell()
        return found

    def _tell(self, change: Change, now: float) -> None:
        self.work += not is_own_work(change)
        self.made(change, now, self._leases)
        self._leases = dict(self.state.leases)

    def mark(self, *, is_working: bool) -> int:
        return self.work if is_working else self.state.mark

    def watch(self, tell: Callable[[], None], *, is_working: bool) -> None:
        self._watchers.append((is_working, tell))

    # Replicas.

    def keep_replica(self) -> None:
        self._replicas = [*self._replicas[-5:], (self._loop.time(), self.state.copy())]

    def fail_over(self, severity: float) -> float:
        """Go on with what a replica has; the time from which on everything is lost."""
        if not self._replicas:
            return self._loop.time()
        at, state = self._replicas[int(severity * len(self._replicas))]
        mark = self.state.mark
        self.state = state.copy()
        self.state.locked.clear()
        self.state.mark = mark + 1
        self.generation += 1
        return at


class Network:
    """What machines send to the servers, and what becomes of it."""

    def __init__(self, loop: Loop, server: Server, objects: Objects, faults: Faults, seed: int, lease: float) -> None:
        self.loop = loop
        self.server = server
        self.objects = objects
        self.lease = lease
        self._faults = faults
        self._rng = random.Random(f"network {seed}")
        self._cut: dict[int, float] = {}
        self._handles: Counter[str] = Counter()
        self.clock_age = self._rng.choice((0.0, 5.0, 30.0))
        """Seconds for which a machine trusts what it knows of the server's clock."""
        self.started_unknown: Callable[[Sequence[str]], None] = lambda _: None
        """Is told the tokens of claims whose worker will never be told."""

    def store(self, machine: Machine) -> Store:
        return cast(Store, RemoteStore(self, machine))

    def blobs(self, machine: Machine) -> Blobs:
        return RemoteBlobs(self, machine)

    def stream(self, what: str, machine: Machine) -> Stream:
        """A new one for each handle: a machine may have several."""
        name = f"{what} of {machine}"
        self._handles[name] += 1
        return Stream(name if self._handles[name] == 1 else f"{name} {self._handles[name]}")

    def cut_off(self, machine: Machine, seconds: float) -> None:
        self._cut[machine.number] = self.loop.time() + seconds
        self.disturb(machine, seconds)

    def is_cut_off(self, machine: Machine) -> bool:
        return self._cut.get(machine.number, 0.0) > self.loop.time()

    def reconnect(self) -> None:
        """Nobody is cut off any more."""
        self._cut.clear()

    def disturb(self, machine: Machine, seconds: float) -> None:
        """Remember that the machine cannot be expected to have renewed its leases for so long."""
        until = self.loop.time() + seconds
        machine.healthy_since, machine.hurt_until = max(machine.healthy_since, until), max(machine.hurt_until, until)

    def freeze(self, seconds: float, machines: Iterable[Machine]) -> None:
        """Let the server answer nobody for so long."""
        now = self.loop.time()
        if self.server.frozen_until < now:
            self.server.frozen_since = now
        self.server.frozen_until = max(self.server.frozen_until, now + seconds)
        for machine in machines:
            machine.healthy_since = max(machine.healthy_since, self.server.frozen_until)

    def _weight(self, name: str, args: tuple[Any, ...]) -> float:
        """How much depends on the call, as far as one can tell before it arrives."""
        if name == "claim":
            wants, kinds, _ = args
            is_work = any(self.server.state.has_ready(queue, kinds, self.server.now()) for queue in wants)
            return 1.0 if is_work else OTHER
        return {"commit": 1.0, "has_change": 1.0, "renew": RENEWAL}.get(name, OTHER)

    def latency(self) -> float:
        return 0.0005 + 0.004 * self._rng.random()

    def ask(self, store: RemoteStore, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> asyncio.Future[Any]:
        loop, machine, server = self.loop, store.machine, self.server
        future: asyncio.Future[Any] = loop.create_future()
        is_write = name in WRITES or (name == "renew" and args[1] is not None)
        struck = self._faults.strike(store.faults, STORE_FAULTS, self._weight(name, args))
        if self.is_cut_off(machine) or store.generation != server.generation:
            store.generation = server.generation
            self.disturb(machine, 0.1)
            loop.call_later(0.05, set_exception, future, StoreUnavailable("No connection."))
            return future
        kind, severity = struck or ("", 0.0)
        arrival = self.latency()
        frozen = server.frozen_until - loop.time() - arrival
        if frozen > 0:
            arrival += frozen + self.latency()
            machine.healthy_since = max(machine.healthy_since, loop.time() + arrival)  # and everybody's
        landing, reply = self.latency() / 4, self.latency()
        is_answered = True
        match kind:
            case "store.refused":
                self.disturb(machine, arrival)
                loop.call_later(min(arrival, TIMEOUT), set_exception, future, StoreUnavailable("Refused."))
                return future
            case "store.reply lost":
                is_answered = False
            case "store.late":
                landing, is_answered = TIMEOUT + severity * LATE * self.lease, False
            case "store.slow" if severity < 0.5:
                arrival += 2.0 * TIMEOUT * severity
            case "store.slow":
                reply += 2.0 * TIMEOUT * (severity - 0.5)
        answer_after = arrival + landing + reply
        if not is_answered or answer_after > TIMEOUT:
            if kind:
                self.disturb(machine, max(TIMEOUT, arrival + landing))
            failure = UnknownOutcome if is_write else StoreUnavailable
            loop.call_later(TIMEOUT, set_exception, future, failure("No answer."))
        elif kind:
            self.disturb(machine, answer_after)
        send = _Request(self, store, name, args, kwargs, future if is_answered else None, landing, reply)
        loop.call_on(loop.server, arrival, send.arrive)
        if kind == "store.twice" and name != "claim":
            again = _Request(self, store, name, args, kwargs, None, landing, reply)
            loop.call_on(loop.server, arrival + landing + 0.01 * severity, again.arrive)
        return future

    async def ask_blobs(self, machine: Machine, faults: Stream, act: Callable[[], Any]) -> Any:
        """The answer of the object store. After an error the operation may have happened, or happen later."""
        loop, lag = self.loop, self.latency()
        struck = self._faults.strike(faults, BLOB_FAULTS)
        if self.is_cut_off(machine):
            await asyncio.sleep(0.05)
            raise BlobUnavailable(reason="no connection")
        kind, severity = struck or ("", 0.0)
        if kind == "blobs.refused":
            await asyncio.sleep(lag)
            raise BlobUnavailable(reason="refused")
        if kind == "blobs.late":
            loop.call_on(loop.server, BLOB_TIMEOUT + 15.0 * severity, _ignore, act)
            await asyncio.sleep(BLOB_TIMEOUT)
            raise BlobUnavailable(reason="timeout")
        future: asyncio.Future[Any] = loop.create_future()
        loop.call_on(loop.server, lag, self._act, machine, act, future, 4.0 * severity if kind else 0.0)
        if kind == "blobs.reply lost":
            await asyncio.sleep(BLOB_TIMEOUT)
            raise BlobUnavailable(reason="timeout")
        return await future

    def _act(self, machine: Machine, act: Callable[[], Any], future: asyncio.Future[Any], delay: float) -> None:
        try:
            self.loop.call_on(machine, self.latency() + delay, set_result, future, act())
        except PackhorseError as error:
            self.loop.call_on(machine, self.latency() + delay, set_exception, future, error)


def _ignore(act: Callable[[], Any]) -> None:
    """Nobody waits for the answer any more."""
    try:
        act()
    except PackhorseError:
        return


class _Request:
    """One request on its way: it arrives, it lands, it is answered."""

    def __init__(
        self,
        network: Network,
        store: RemoteStore,
        name: str,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        future: asyncio.Future[Any] | None,
        landing: float,
        reply: float,
    ) -> None:
        self._network = network
        self._store = store
        self._name = name
        self._args = args
        self._kwargs = kwargs
        self._future = future
        self._landing = landing
        self._reply = reply
        self._generation = network.server.generation
        self._locked: set[str] = set()

    def arrive(self) -> None:
        """A claim reads and decides now; what it decided lands later, as a commit does that waits for a disk."""
        server, name, args = self._network.server, self._name, self._args
        if name == "claim":
            wants, kinds, decide = args
            picked = server.state.pick(wants, kinds, decide, server.now())
            self._locked = {each.after.id for each in picked if isinstance(each, Change)}
            server.state.locked |= self._locked
            name, args = "start", (picked,)
        self._network.loop.call_later(self._landing, self._land, name, args)

    def _land(self, name: str, args: tuple[Any, ...]) -> None:
        server, loop = self._network.server, self._network.loop
        server.state.locked -= self._locked
        if server.generation != self._generation:  # the server that had it is gone
            answer: Any = UnknownOutcome("The connection was lost.")
        else:
            answer = server.execute(name, args, self._kwargs)
            if name == "start" and (self._future is None or self._future.done()) and not isinstance(answer, Exception):
                self._network.started_unknown([claim.token for claim in answer])
        if self._future is not None:
            loop.call_on(self._store.machine, self._reply, self._answer, self._future, answer, server.now())

    def _answer(self, future: asyncio.Future[Any], answer: Any, at: float) -> None:
        self._store.learn(at)
        if isinstance(answer, StoreError) and self._name == "commit" and self._store.luck() < 0.5:
            set_result(future, [answer] * len(self._args[0]))
        elif isinstance(answer, PackhorseError):
            set_exception(future, answer)
        else:
            set_result(future, answer)


class RemoteStore:
    """A machine's handle on the store: every method of the contract goes over the network."""

    def __init__(self, network: Network, machine: Machine) -> None:
        self.machine = machine
        self.generation = network.server.generation
        self.faults = network.stream("store", machine)
        self._network = network
        self._offset = network.server.now() - network.loop.time()
        self._learned_at = network.loop.time()

    def now(self) -> float:
        return self._network.loop.time() + self._offset

    def learn(self, at: float) -> None:
        """Of the server's clock, from an answer, if what is known has become old."""
        now = self._network.loop.time()
        if now - self._learned_at >= self._network.clock_age:
            self._offset, self._learned_at = at - now, now

    def luck(self) -> float:
        return self._network.latency() * 1000 % 1.0

    def __getattr__(self, name: str) -> Any:
        if name not in METHODS:
            raise AttributeError(name)

        async def method(*args: Any, **kwargs: Any) -> Any:
            return await self._network.ask(self, name, args, kwargs)

        setattr(self, name, method)
        return method

    async def wait_for_change(self, mark: int | None, timeout: float, *, is_working: bool = False) -> int:
        network, loop, server = self._network, self._network.loop, self._network.server
        if network.is_cut_off(self.machine) or self.generation != server.generation:
            self.generation = server.generation
            await asyncio.sleep(0.05)
            raise StoreUnavailable("No connection.")
        future: asyncio.Future[int] = loop.create_future()

        def tell() -> None:
            if not future.done():
                loop.call_on(self.machine, network.latency(), set_result, future, server.mark(is_working=is_working))

        if server.mark(is_working=is_working) == mark:
            server.watch(tell, is_working=is_working)
            loop.call_later(timeout, set_result, future, mark)
        else:
            tell()
        return await future

    async def close(self) -> None: ...


class RemoteBlobs:
    """A machine's handle on the object store."""

    def __init__(self, network: Network, machine: Machine) -> None:
        self._network = network
        self._machine = machine
        self._objects = network.objects
        self._faults = network.stream("blobs", machine)

    async def _ask(self, act: Callable[[], Any]) -> Any:
        return await self._network.ask_blobs(self._machine, self._faults, act)

    async def put(self, key: str, chunks: AsyncIterator[bytes], *, limit: int | None = None) -> Sum:
        data = await collect(check_key(key), chunks, limit)
        return cast(Sum, await self._ask(lambda: self._objects.put(key, data)))

    async def put_file(self, key: str, path: Path) -> Sum:
        data = path.read_bytes()
        return cast(Sum, await self._ask(lambda: self._objects.put(check_key(key), data)))

    async def copy(self, source: str, key: str) -> None:
        await self._ask(lambda: self._objects.copy(source, key))

    async def read(self, key: str, *, start: int = 0, length: int | None = None) -> AsyncIterator[bytes]:
        data: bytes = await self._ask(lambda: self._objects.get(key))
        end = len(data) if length is None else min(len(data), start + length)
        for at in range(start, end, CHUNK):
            yield data[at : min(end, at + CHUNK)]

    async def size(self, key: str) -> int | None:
        return cast(int | None, await self._ask(lambda: self._objects.size(key)))

    async def fetch(self, key: str, to: Path) -> None:
        data: bytes = await self._ask(lambda: self._objects.get(key))
        with to.open("xb") as file:
            file.write(data)

    async def keys(self, prefix: str, *, after: str | None = None, limit: int = 1000) -> list[str]:
        return cast(list[str], await self._ask(lambda: self._objects.keys(prefix, after, limit)))

    async def folders(self, prefix: str, *, after: str | None = None, limit: int = 1000) -> list[str]:
        return cast(list[str], await self._ask(lambda: self._objects.folders(prefix, after, limit)))

    async def delete(self, keys: Sequence[str]) -> None:
        if keys:
            await self._ask(lambda: self._objects.delete(keys))

    async def delete_all(self, prefix: str) -> None:
        await self._ask(lambda: self._objects.delete_all(prefix))

    async def abandon(self, older_than: float, *, everywhere: bool = False) -> int:  # noqa: ARG002 (a put is never unfinished)
        return 0

    async def presign(self, key: str, *, seconds: int, filename: str, content_type: str) -> str | None:  # noqa: ARG002
        return None

    async def close(self) -> None: ...
