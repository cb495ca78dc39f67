"""A second process on the same store: told what to do by its arguments, when to begin by a line, and reports by lines.

python -m tests.contract.second_process ADDRESS ROLE [ARGUMENT ...]
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from packhorse.core.models import TaskId
from packhorse.errors import PackhorseError
from packhorse.store.base import Charge, Store
from packhorse.store.counters import QUARTER, Tally
from tests.contract import builders, keys
from tests.contract.stores import STORES, open_at

ROOT = Path(__file__).parents[2]
GO = b"go\n"
LIMIT = 60.0
"""Seconds after which a process that has not answered is taken for hanging."""

between_processes = pytest.mark.parametrize("address", [each for each in STORES if each != "model"], indirect=True)
"""For tests with a second process. The model lives in one process."""


# Asked from the first process


class Second:
    """The second process, open on the store and waiting for the word."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    async def answer(self) -> Any:
        """Let it begin, and wait for what it has to say."""
        out, _ = await asyncio.wait_for(self._process.communicate(GO), LIMIT)
        assert self._process.returncode == 0
        return json.loads(out)


@contextlib.asynccontextmanager
async def second(address: str, role: str, *arguments: object) -> AsyncIterator[Second]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.contract.second_process", address, role, *map(str, arguments)),
        cwd=ROOT,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        assert process.stdout is not None
        assert await asyncio.wait_for(process.stdout.readline(), LIMIT) == b"ready\n"
        yield Second(process)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


# Done by whoever is on the store: the second process, and threads of the first


async def claim_all(store: Store, worker: str, most: int) -> list[tuple[str, str, int, str]]:
    """Claim in small steps until nothing is left."""
    found: list[tuple[str, str, int, str]] = []
    while claims := await builders.claim(store, most, worker=worker):
        found += [(claimed.job.id, *claimed.task, claimed.token) for claimed in claims]
    return found


async def submit_all(store: Store, first: int, count: int, key: str = "") -> dict[str, str]:
    """Submit that many jobs for one slot at once, under one idempotency key if there is one; what each has heard."""

    async def one(n: int) -> tuple[str, str]:
        plan = builders.ONE if key else builders.SLOTTED
        change = builders.submission(plan, job_id=builders.job_id(n), now=store.now(), key=key or None)
        [error] = await store.commit([change])
        return change.after.id, _heard(error)

    return dict(await asyncio.gather(*(one(n) for n in range(first, first + count))))


async def work(store: Store, job_id: str, first: int, last: int) -> int:
    """Start and finish some elements of a job, each step decided on the job as it was read; how many steps."""
    now = store.now()
    for at in (TaskId("page", element) for element in range(first, last)):
        token = f"t-{at.element}"
        await builders.settled(store, job_id, builders.start_of(at, token, now))
        await builders.settled(store, job_id, builders.finish_of(at, token, now))
    return 2 * (last - first)


def _heard(error: PackhorseError | None) -> str:
    return "" if error is None else error.type()


# The second process itself

ROLES: dict[str, Callable[..., Awaitable[object]]] = {
    "claim": lambda store, worker, most: claim_all(store, worker, int(most)),
    "submit": lambda store, first, count, key="": submit_all(store, int(first), int(count), key),
    "work": lambda store, job_id, first, last: work(store, job_id, int(first), int(last)),
    "spend": lambda store, *charge: _admitted(store, *charge),
    "take": lambda store, most: _taken(store, int(most)),
    "tally": lambda store, at, times: _tallied(store, int(at), int(times)),
    "read": lambda store, *job_ids: _versions(store, job_ids),
}


async def _versions(store: Store, job_ids: tuple[str, ...]) -> list[int | None]:
    return [None if job is None else job.version for job in await store.get(job_ids)]


async def _admitted(store: Store, name: str, times: str, limit: str, window: str) -> int:
    answers = await keys.spend_each(store, int(times), Charge(name, 1, int(limit), float(window)))
    return [spent.refused for spent in answers].count(None)


async def _taken(store: Store, most: int) -> list[str]:
    return [delivery.id for delivery in await keys.take_all(store, most)]


async def _tallied(store: Store, at: int, times: int) -> int:
    kinds = {"finish": 1, "fail": 2}
    for _ in range(times):
        await store.tally({Tally(QUARTER, at, "convert", "onnx", name): n for name, n in kinds.items()})
    return times


async def _main(address: str, role: str, *arguments: str) -> None:
    store = await open_at(address)
    print("ready", flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    print(json.dumps(await ROLES[role](store, *arguments)))
    await store.close()


if __name__ == "__main__":
    asyncio.run(_main(*sys.argv[1:]))
