"""`python -m bench.peers.side.client MODULE`: submits what it is told line by line, and says when in JSON.

A module has `put`, `put_chain` and `put_long` for one job each, and where its library has them `put_many`, `setup`,
`connect` and `close`; all of them coroutine functions or none.
"""

from __future__ import annotations

import asyncio
import importlib
import inspect
import json
import sys
import time
from collections.abc import Callable, Coroutine, Generator, Iterator
from typing import Any

CALLERS = 64
"""Chains are submitted by so many callers at once where the library has coroutines; the worker is what is measured."""

Script = Generator[Any, None, dict[str, Any]]
"""Yields what the library's calls return, seconds to wait as a float, or a list of coroutine functions to run at once.

Written once for libraries with coroutines and without.
"""

clock = time.monotonic_ns


def submit(library: Any, begin: int, count: int) -> Script:
    began = clock()
    for i in range(begin, begin + count):
        yield library.put(i)
    return {"began": began, "ended": clock()}


def bulk(library: Any, begin: int, count: int) -> Script:
    if not hasattr(library, "put_many"):
        return {}
    began = clock()
    for start in range(begin, begin + count, 1000):
        yield library.put_many(range(start, min(start + 1000, begin + count)))
    return {"began": began, "ended": clock()}


def chains(library: Any, begin: int, count: int) -> Script:
    began = clock()
    if inspect.iscoroutinefunction(library.put_chain):
        left = iter(range(begin, begin + count))

        async def call() -> None:
            for i in left:
                await library.put_chain(i)

        yield [call] * CALLERS
    else:
        for i in range(begin, begin + count):
            library.put_chain(i)
    return {"began": began, "ended": clock()}


def apart(library: Any, begin: int, count: int, gap: str) -> Script:
    """One by one, so many seconds apart."""
    asked: dict[int, int] = {}
    began = time.monotonic()
    for n in range(count):
        yield max(0.0, began + n * float(gap) - time.monotonic())
        asked[begin + n] = clock()
        yield library.put(begin + n)
    return {"asked": asked}


def long(library: Any, begin: int, count: int) -> Script:
    for i in range(begin, begin + count):
        yield library.put_long(i)
    return {}


def once(name: str) -> Callable[[Any], Script]:
    def call(library: Any) -> Script:
        if hasattr(library, name):
            yield getattr(library, name)()
        return {}

    return call


PHASES: dict[str, Callable[..., Script]] = {
    "submit": submit,
    "bulk": bulk,
    "chains": chains,
    "apart": apart,
    "long": long,
    **{name: once(name) for name in ("setup", "connect", "close")},
}


def scripts(library: Any) -> Iterator[Script]:
    for line in sys.stdin:
        phase, *words = line.split()
        yield PHASES[phase](library, *(int(word) for word in words[:2]), *words[2:])


async def perform_async(library: Any) -> None:
    waiting = scripts(library)
    while (script := await asyncio.to_thread(next, waiting, None)) is not None:
        say(await _performed(script))


async def _performed(script: Script) -> dict[str, Any]:
    while True:
        try:
            step = next(script)
        except StopIteration as end:
            return dict(end.value)
        if isinstance(step, float):
            await asyncio.sleep(step)
        elif isinstance(step, list):
            await asyncio.gather(*(call() for call in step))
        elif inspect.isawaitable(step):
            await step


def perform(library: Any) -> None:
    for script in scripts(library):
        while True:
            try:
                step = next(script)
            except StopIteration as end:
                say(end.value)
                break
            if isinstance(step, float):
                time.sleep(step)


def say(answer: dict[str, Any]) -> None:
    print(json.dumps(answer), flush=True)


def main() -> None:
    library = importlib.import_module(f"bench.peers.side.{sys.argv[1]}")
    if not inspect.iscoroutinefunction(library.put):
        perform(library)
        return
    _runner()(perform_async(library))


def _runner() -> Callable[[Coroutine[Any, Any, None]], None]:
    """The faster loop, for those whose environment has it."""
    try:
        import uvloop
    except ImportError:
        return asyncio.run
    return uvloop.run


if __name__ == "__main__":
    main()
