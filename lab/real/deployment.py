"""packhorse as it is deployed: a server and workers, all of them real processes, under load from callers over HTTP."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import httpx2
import psutil
from tests.journey.site import Site, descendants, until
from tests.servers.forks import Started
from tests.servers.ports import free_port

from lab.real.places import Place
from packhorse.core.models import Job
from packhorse.jobs.artifacts import referenced_keys

WORKERS = 2
LEASE = 5.0
"""Seconds. On a machine that is busy with several rounds, a worker may be kept waiting for one of them."""
MAIN = "import sys; from packhorse.cli import main; sys.exit(main())"
START = 180.0
"""Seconds for processes to start, of which the first compile every module."""


@dataclass
class Acknowledged:
    """A job of which a caller was told that it is accepted."""

    key: str
    expected: str | None = None
    """The content of its result, where it is known."""


@dataclass
class Load:
    """What callers have sent, and were told. packhorse cannot write to it."""

    jobs: dict[str, Acknowledged] = field(default_factory=dict)
    cancelled: set[str] = field(default_factory=set)
    """Jobs that a caller wanted to cancel, whether or not it got an answer."""
    twice: list[str] = field(default_factory=list)
    """Keys for which two jobs were acknowledged."""
    keys: dict[str, str] = field(default_factory=dict)

    def accept(self, job_id: str, job: Acknowledged) -> None:
        if self.keys.setdefault(job.key, job_id) != job_id:
            self.twice.append(job.key)
        self.jobs[job_id] = job


class Deployment(Site):
    """A site with a server, whose processes each have their own way to the store."""

    def __init__(self, place: Place, seed: int, **settings: Any) -> None:
        given = {"scratch": str(place.folder / "scratch"), "lease": LEASE, "sweep": 1.0, "slots": 4, "backoff": 0.1}
        super().__init__(place.folder, **(given | place.settings(None) | settings))
        self.place = place
        self.chance = random.Random(seed)
        self.port = free_port()
        self.load = Load()
        self.server: subprocess.Popen[bytes] | None = None
        self.may_refuse = False
        """Whether the server may refuse a valid request, because the store has lost what it needs to know."""
        self.env.pop("PYTHONDONTWRITEBYTECODE", None)  # each process would compile every module anew
        self._numbers = itertools.count(1)

    # Processes.

    async def open(self) -> None:
        await self.store()  # the schema is there before several processes want to make it
        self.start_server()
        for number in range(1, WORKERS + 1):
            self.start_numbered_worker(number)
        await self.until_ready()
        for _ in range(2 * WORKERS):
            if await self.probe(START) >= START:
                raise RuntimeError("Before any fault, a job was not completed in time.")

    def start_server(self) -> None:
        self.server = subprocess.Popen(
            [sys.executable, "-m", "packhorse.web"],
            env=self._env(0) | {"PACKHORSE_PORT": str(self.port), "PACKHORSE_KEYLESS": "yes"},
            cwd=self.folder,
            stdout=self.log,
            stderr=self.log,
        )

    def start_numbered_worker(self, number: int) -> subprocess.Popen[bytes]:
        """With the way to the store, and the clock, of that number."""
        worker = subprocess.Popen(
            [sys.executable, "-c", MAIN, "worker"],
            env=self._env(number),
            cwd=self.folder,
            stdout=self.log,
            stderr=self.log,
        )
        self.workers.append(worker)
        return worker

    async def restart_all(self) -> None:
        """As an operator does, one after the other, and at once."""
        for process in [self.server, *self.living_workers()]:
            assert process is not None
            process.kill()
            process.wait()
        self.start_server()
        for number in range(1, WORKERS + 1):
            self.start_numbered_worker(number)
        await self.until_ready()

    def run_command(self, *words: str) -> None:
        """Run the command line with the settings of the server."""
        subprocess.run(
            [sys.executable, "-c", MAIN, *words],
            env=self._env(0),
            cwd=self.folder,
            stdout=self.log,
            stderr=self.log,
            check=True,
            timeout=START,
        )

    def _env(self, number: int) -> dict[str, str]:
        settings = {f"PACKHORSE_{name.upper()}": value for name, value in self.place.settings(number).items()}
        return self.env | settings | self.place.env(number)

    def living_workers(self) -> list[Started]:
        return [worker for worker in self.workers if worker.poll() is None]

    def stage_processes(self) -> list[psutil.Process]:
        return [child for worker in self.living_workers() for child in descendants(worker)]

    async def close(self) -> None:
        for process in [self.server, *self.workers]:
            if process is not None and process.poll() is None:
                children = list(descendants(process))
                process.send_signal(signal.SIGCONT)
                process.kill()
                process.wait()
                for child in children:
                    with contextlib.suppress(psutil.Error):
                        child.kill()
        await super().close()

    async def until_ready(self) -> None:
        """Wait for the server to reach its stores."""
        async with httpx2.AsyncClient(timeout=5) as client:

            async def is_ready() -> bool:
                with contextlib.suppress(httpx2.HTTPError):
                    return (await client.get(f"http://127.0.0.1:{self.port}/readyz")).is_success
                return False

            await until(is_ready, START, lambda: f"LAB: the server is not ready\n{self.log_text()[-4000:]}")

    # Callers.

    @contextlib.asynccontextmanager
    async def under_load(self, callers: int = 3, pause: float = 0.15) -> AsyncIterator[None]:
        """Callers submit all the time, and send what was not answered again, with the same key."""
        enough = asyncio.Event()
        async with httpx2.AsyncClient(timeout=8, base_url=f"http://127.0.0.1:{self.port}/api/v1/") as client:
            tasks = [asyncio.create_task(self._call(client, enough, pause)) for _ in range(callers)]
            try:
                yield
            finally:
                enough.set()
                await asyncio.gather(*tasks)

    async def _call(self, client: httpx2.AsyncClient, enough: asyncio.Event, pause: float) -> None:
        while not enough.is_set():
            job_id = await self._submit(client, enough)
            if job_id is not None and self.chance.random() < 0.05:
                self.load.cancelled.add(job_id)
                with contextlib.suppress(httpx2.HTTPError):
                    await client.post(f"jobs/{job_id}/cancel")
            await asyncio.sleep(pause)

    async def _submit(self, client: httpx2.AsyncClient, enough: asyncio.Event) -> str | None:
        number = next(self._numbers)
        key, user = f"lab-{number}", f"user {number}"
        drawn = self.chance.random()
        job: dict[str, Any] = {"user_id": user}
        if drawn < 0.5:
            accepted = Acknowledged(key)
            job |= {"pipeline": "says", "parameters": {"text": "x"}}
            request: dict[str, Any] = {"json": job}
        elif drawn < 0.65:
            accepted = Acknowledged(key)
            seconds = self.chance.uniform(0, LEASE)
            job |= {"pipeline": "beat", "parameters": {"mark": "tick", "seconds": seconds}}
            request = {"json": job}
        else:
            words = ["x" * self.chance.randrange(1, 9) for _ in range(self.chance.randrange(1, 4))]
            accepted = Acknowledged(key, ",".join(str(len(word)) for word in words))
            fields = {"pipeline": "words", "user_id": user, "seconds": "0.05"}
            request = {"data": fields, "files": {"text": ("words.txt", " ".join(words).encode())}}
        while True:
            with contextlib.suppress(httpx2.HTTPError, ValueError):
                answer = await client.post("jobs", **request, headers={"Idempotency-Key": key})
                if answer.status_code in (200, 201, 202):
                    job_id = str(answer.json()["job_id"])
                    self.load.accept(job_id, accepted)
                    return job_id
                if answer.status_code < 500 and answer.status_code not in (408, 409, 429) and not self.may_refuse:
                    raise RuntimeError(f"A submit was refused with {answer.status_code}: {answer.text[:500]}")
            if enough.is_set():
                return None
            await asyncio.sleep(0.2)

    async def burst(self, count: int = 40) -> None:
        """Submit more than the workers take at once, so that a fault finds claims in flight and tasks that wait."""
        async with httpx2.AsyncClient(timeout=8, base_url=f"http://127.0.0.1:{self.port}/api/v1/") as client:
            for _ in range(count):
                key = f"burst-{next(self._numbers)}"
                parameters = {"mark": "tick", "seconds": self.chance.uniform(0.1, 1.0)}
                job = {"pipeline": "beat", "user_id": key, "parameters": parameters}
                with contextlib.suppress(httpx2.HTTPError, ValueError, KeyError):
                    answer = (await client.post("jobs", json=job, headers={"Idempotency-Key": key})).json()
                    self.load.accept(answer["job_id"], Acknowledged(key))

    async def probe(self, within: float) -> float:
        """Seconds until a new job was completed; ``within`` if none was. If one fails, the next is submitted."""
        began, key = time.monotonic(), ""
        async with httpx2.AsyncClient(timeout=5, base_url=f"http://127.0.0.1:{self.port}/api/v1/") as client:
            while time.monotonic() - began < within:
                key = key or f"probe-{next(self._numbers)}"
                job = {"pipeline": "says", "user_id": key, "parameters": {"text": "x"}}
                with contextlib.suppress(httpx2.HTTPError, ValueError, KeyError):
                    headers = {"Idempotency-Key": key, "Prefer": "wait=2"}
                    answer = (await client.post("jobs", json=job, headers=headers)).json()
                    self.load.accept(answer["job_id"], Acknowledged(key))
                    if answer["status"] == "completed":
                        return time.monotonic() - began
                    if answer["status"] == "failed":
                        key = ""
                await asyncio.sleep(0.1)
        return within

    # After quiet.

    async def unfinished(self) -> list[Job]:
        return [job for job in await self.jobs() if not job.status.is_terminal]

    async def settle(self, within: float) -> tuple[float, list[Job]]:
        """Wait until every job has ended: the seconds that took, and what has not ended by then."""
        began = time.monotonic()
        while left := await self.unfinished():
            if time.monotonic() - began > within:
                return time.monotonic() - began, left
            await asyncio.sleep(0.1)
        return time.monotonic() - began, []

    async def result_text(self, job: Job) -> str:
        store, blobs = await self.runtime.open()
        [spec] = (await store.results([job.id])).values()
        [key] = [key for key in referenced_keys(spec) if "/join/" in key]
        return b"".join([part async for part in blobs.read(key)]).decode()
