"""The section `mission`: each stack once per round: small files, large files, then the killing of its processes."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import httpx2

from bench.book import Book, at_least, percentile
from bench.mission.stacks import PEER, STACKS, Running, Stack
from bench.mission.users import File, User, until_up, write_file
from bench.servers import STORES, Server
from bench.sizes import Sizes

SECTION = "mission"
USERS = 16
MB = 1_000_000
WITHIN = 120.0
"""Seconds for a stack to come up, and for any one measurement."""
NUDGED = 5.0  # seconds between new jobs while lost ones are waited for
TARGET = 1.5
"""How many times as many jobs a second packhorse should do as the stack by hand."""


class MissionSection:
    def __init__(self, folder: Path, sizes: Sizes) -> None:
        self._folder = folder
        self._sizes = sizes
        self._stores: dict[str, Server] = {}
        self._numbers = itertools.count(1)
        self._small = write_file(folder / "small", MB)
        self._large = write_file(folder / "large", sizes.mission_large * MB)

    async def round(self, book: Book) -> None:
        rates: dict[str, dict[str, float]] = {}
        for stack in sorted(STACKS, key=lambda each: each is not PEER):  # the one that others are compared with
            if not stack.is_there:
                book.remark(SECTION, f"{stack.name} is left out: `make peers` has made no environment.")
                continue
            rates[stack.name] = await self._measure(book, stack, rates.get(PEER.name, {}))

    async def close(self) -> None:
        for server in self._stores.values():
            await server.close()

    async def _measure(self, book: Book, stack: Stack, peer: dict[str, float]) -> dict[str, float]:
        kind, number = stack.store or "redis", next(self._numbers)
        if kind not in self._stores:
            self._stores[kind] = STORES[kind](self._folder / kind)
        running = Running(stack, self._folder / f"stack-{number}", await self._stores[kind].empty(number))
        limits = httpx2.Limits(max_connections=None, max_keepalive_connections=4 * USERS)
        try:
            async with httpx2.AsyncClient(timeout=WITHIN, limits=limits, trust_env=False) as client:
                await until_up(running, client, self._small, WITHIN)
                rates = {}
                for file, times in ((self._small, self._sizes.mission_jobs), (self._large, 1)):
                    rates[file.path.name] = await self._load(book, running, client, file, times, peer)
                book.note(SECTION, "code", stack.lines(), "lines", of=stack.name)
                await self._crash_worker(book, running, client)
                await self._crash_web(book, running, client)
                return rates
        finally:
            running.stop()

    async def _load(
        self, book: Book, stack: Running, client: httpx2.AsyncClient, file: File, times: int, peer: dict[str, float]
    ) -> float:
        took: list[float] = []
        peak = [stack.memory()]

        async def work(n: int) -> None:
            user = User(stack, client, f"user-{n}")
            took.extend([await user.job(file) for _ in range(times)])

        async def sample() -> None:
            while True:
                peak.append(await asyncio.to_thread(stack.memory))
                await asyncio.sleep(1.0)

        sampling = asyncio.create_task(sample())
        began, used = time.monotonic(), stack.cpu()
        async with asyncio.timeout(4 * WITHIN), asyncio.TaskGroup() as group:
            for n in range(USERS):
                group.create_task(work(n))
        rate, used = len(took) / (time.monotonic() - began), stack.cpu() - used
        sampling.cancel()
        name, size = stack.stack.name, f"{file.size // MB} MB"
        other = peer.get(file.path.name)
        ratio = rate / other if stack.stack.is_ours and other else None
        bound = None if ratio is None else at_least(TARGET, of_ratio=True)
        book.note(SECTION, size, rate, "jobs/s", of=name, ratio=ratio, to="of Celery by hand", bound=bound)
        book.note(SECTION, f"{size} p50", percentile(took, 0.5), "s", of=name)
        book.note(SECTION, f"{size} p99", percentile(took, 0.99), "s", of=name)
        book.note(SECTION, f"{size} CPU", used / len(took), "s/job", of=name)
        book.note(SECTION, f"{size} memory", max(peak), "MiB", of=name)
        return rate

    async def _crash_worker(self, book: Book, stack: Running, client: httpx2.AsyncClient) -> None:
        """All worker processes are killed while jobs run, and started again at once."""
        users = self._users(stack, client, "crash")
        jobs = await asyncio.gather(*(user.submit(self._small, self._sizes.mission_slow) for user in users))
        async with asyncio.timeout(WITHIN):
            await users[0].watch(jobs[0], until="progress" if stack.stack.is_ours else "running")
        await asyncio.to_thread(stack.kill_workers)
        await self._note_survivors(book, users, jobs, "after kill -9 of the worker", stack.stack.name)

    async def _crash_web(self, book: Book, stack: Running, client: httpx2.AsyncClient) -> None:
        """The web server is killed while half of the users have their answer, and started again at once."""
        users = self._users(stack, client, "web")
        submits = [asyncio.create_task(user.submit(self._small, self._sizes.mission_slow)) for user in users]
        for done in itertools.islice(asyncio.as_completed(submits), len(submits) // 2):
            with suppress(httpx2.TransportError):
                await done
        await asyncio.to_thread(stack.kill_web)
        await asyncio.wait(submits)
        known = [(user, each.result()) for user, each in zip(users, submits, strict=True) if each.exception() is None]
        users, jobs = [user for user, _ in known], [job_id for _, job_id in known]
        await self._note_survivors(book, users, jobs, "after kill -9 of the web server", stack.stack.name)

    def _users(self, stack: Running, client: httpx2.AsyncClient, name: str) -> list[User]:
        return [User(stack, client, f"{name}-{n}") for n in range(USERS // 2)]

    async def _note_survivors(self, book: Book, users: Sequence[User], jobs: Sequence[str], name: str, of: str) -> None:
        began, ends = time.monotonic(), list[float]()

        async def follow(user: User, job_id: str) -> None:
            if await user.watch(job_id) == "completed":
                ends.append(time.monotonic() - began)

        async def nudge() -> None:
            """Some queues look for lost jobs only when a new one arrives."""
            while True:
                await asyncio.sleep(NUDGED)
                with suppress(httpx2.TransportError, AssertionError):
                    await users[0].submit(self._small)

        nudging = asyncio.create_task(nudge())
        with suppress(TimeoutError):
            async with asyncio.timeout(self._sizes.mission_watched):
                await asyncio.gather(*(follow(user, job_id) for user, job_id in zip(users, jobs, strict=True)))
        nudging.cancel()
        book.note(SECTION, f"completed {name}", 100 * len(ends) / max(1, len(jobs)), "%", of=of)
        if ends:
            book.note(SECTION, f"the last {name}", max(ends), "s", of=of)
