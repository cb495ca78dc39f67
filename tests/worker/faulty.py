"""A thin wrapper around a store or an object store through which a test breaks, delays or watches single calls."""

from __future__ import annotations

import asyncio
import inspect
from collections import defaultdict, deque
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple, TypeVar, cast

T = TypeVar("T")

Make = Callable[[], Awaitable[Any]]
Way = Callable[[Make], Awaitable[Any]]
"""How one call goes: it is given the real call, to be made, or not, or with something before or after."""


class Call(NamedTuple):
    name: str
    args: tuple[Any, ...]


class Hold:
    """A call that has arrived and is not let through yet."""

    def __init__(self) -> None:
        self.arrived = asyncio.Event()
        self.release = asyncio.Event()


class Faults:
    """What is going to happen to the next calls of a name, in turn; and what was called, in order."""

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self._ways: dict[str, deque[Way]] = defaultdict(deque)

    def names(self) -> list[str]:
        return [call.name for call in self.calls]

    def args(self, name: str) -> list[tuple[Any, ...]]:
        """Of each call of that name."""
        return [call.args for call in self.calls if call.name == name]

    def refuse(self, name: str, error: Callable[[], Exception], times: int = 1) -> None:
        """Raise, and do not make the call."""

        async def way(_make: Make) -> Any:
            raise error()

        self._ways[name].extend([way] * times)

    def lose_answer(self, name: str, error: Callable[[], Exception], times: int = 1) -> None:
        """Make the call, and raise all the same."""

        async def way(make: Make) -> Any:
            await make()
            raise error()

        self._ways[name].extend([way] * times)

    def before(self, name: str, do: Callable[[], Awaitable[Any]]) -> None:
        """Let somebody else be faster."""

        async def way(make: Make) -> Any:
            await do()
            return await make()

        self._ways[name].append(way)

    def after(self, name: str, do: Callable[[], Awaitable[Any]]) -> None:
        """Let something happen while the answer is on its way."""

        async def way(make: Make) -> Any:
            answer = await make()
            await do()
            return answer

        self._ways[name].append(way)

    def alter(self, name: str, change: Callable[[Any], Any]) -> None:
        """Make the call, and answer something else."""

        async def way(make: Make) -> Any:
            return change(await make())

        self._ways[name].append(way)

    def hold(self, name: str) -> Hold:
        held = Hold()

        async def way(make: Make) -> Any:
            held.arrived.set()
            await held.release.wait()
            return await make()

        self._ways[name].append(way)
        return held

    def mend(self) -> None:
        """From now on everything goes well."""
        self._ways.clear()

    async def go(self, name: str, args: tuple[Any, ...], make: Make) -> Any:
        self.calls.append(Call(name, args))
        ways = self._ways[name]
        return await (ways.popleft()(make) if ways else make())


def wrapped(real: T, faults: Faults) -> T:
    """The same, with every coroutine going by way of ``faults``."""
    return cast(T, _Wrapper(real, faults))


class _Wrapper:
    def __init__(self, real: object, faults: Faults) -> None:
        self._real = real
        self._faults = faults

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._real, name)
        if not inspect.iscoroutinefunction(found):
            return found

        async def call(*args: Any, **options: Any) -> Any:
            return await self._faults.go(self._full_name(name, args), args, lambda: found(*args, **options))

        return call

    def _full_name(self, name: str, args: tuple[Any, ...]) -> str:
        """Calls of a store about records are named by the kind of record, too: ``put delivery``, ``scan endpoint``."""
        if not hasattr(self._real, "commit"):
            return name
        if name in ("fetch", "scan", "take"):
            return f"{name} {args[0]}"
        return f"put {args[0][0].kind}" if name == "put" and args[0] else name
