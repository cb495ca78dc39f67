"""One contender at work: a client that submits, worker processes, and the ledger its jobs write."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any

import psutil

from bench.peers.contenders import SIDE, Contender
from bench.peers.ledger import Ledger

LOOK = 0.1
"""Seconds between looks at the ledger: what is measured has its time written down where it happens."""
ANSWER = 180.0
"""Seconds after which a client that does not answer has failed."""


class Failed(Exception):
    """A contender did not do what it was asked; the others are measured all the same."""


class Worker:
    def __init__(self, command: list[str], env: dict[str, str], folder: Path) -> None:
        with (folder / "worker.log").open("ab") as log:
            self.process = subprocess.Popen(
                command,
                env=env,
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def kill(self) -> None:
        """SIGKILL to it and to everything it has started, all at once."""
        for process in self._tree():
            with suppress(psutil.NoSuchProcess):
                process.kill()
        self.process.wait()

    def memory(self) -> float:
        """Resident MiB, of it and all it has started."""
        found = 0.0
        for process in self._tree():
            with suppress(psutil.NoSuchProcess):
                found += process.memory_info().rss / 2**20
        return found

    def _tree(self) -> list[psutil.Process]:
        try:
            own = psutil.Process(self.process.pid)
            return [own, *own.children(recursive=True)]
        except psutil.NoSuchProcess:
            return []


class Running:
    """Used with ``async with``, which ends every process it has started."""

    def __init__(self, contender: Contender, url: str, folder: Path, settings: dict[str, str]) -> None:
        folder.mkdir(parents=True)
        self.contender = contender
        self.folder = folder
        self.ledger = Ledger(folder / "ledger")
        self._env = contender.env() | {"BENCH_URL": url, "BENCH_LEDGER": str(folder / "ledger")}
        if contender.is_ours:
            self._env |= {
                "PACKHORSE_APP": str(SIDE / "ours_app.py"),
                "PACKHORSE_STORE": url,
                "PACKHORSE_BLOBS": f"file://{folder / 'blobs'}",
                "PACKHORSE_SCRATCH": str(folder / "scratch"),
            }
        self._env |= settings
        self._next = 0
        self._workers: list[Worker] = []
        self._client: subprocess.Popen[bytes] | None = None
        self._log = (folder / "client.log").open("ab")

    async def __aenter__(self) -> Running:
        return self

    async def __aexit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        for worker in self._workers:
            worker.kill()
        if self._client is not None:
            self._client.kill()
            self._client.wait()
        self._log.close()

    async def connect(self) -> None:
        """Prepare the store as the library wants it, and start the client."""
        await self._ask_one_off("setup")
        self._client = self._start_client()
        await self.ask("connect")

    async def ask(self, phase: str, jobs: range | None = None, *words: object) -> dict[str, Any]:
        """Have the client do it, and hear when it began and ended."""
        assert self._client is not None
        numbers = () if jobs is None else (jobs.start, len(jobs))
        return await self._told(self._client, f"{phase} {' '.join(map(str, (*numbers, *words)))}\n")

    def jobs(self, count: int) -> range:
        """Numbers that no job of this contender has had."""
        self._next += count
        return range(self._next - count, self._next)

    def start_worker(self, *, is_crash: bool = False, **env: str) -> Worker:
        worker = Worker(self.contender.command(is_crash=is_crash), self._env | env, self.folder)
        self._workers.append(worker)
        return worker

    async def warm(self, worker: Worker) -> None:
        """Until the worker has run a job."""
        one = self.jobs(1)
        await self.ask("submit", one)
        await self.noted("job", one, 60, worker)

    async def noted(self, kind: str, jobs: range, within: float, worker: Worker) -> None:
        """Until every job has a line of this kind; `Failed` if not, or if the worker has ended."""
        if not await self.until(lambda: len(self.ledger.times(kind, jobs)) == len(jobs), within, worker):
            found = len(self.ledger.times(kind, jobs))
            raise Failed(f"{found} of {len(jobs)} jobs had a line {kind!r} after {within:.0f} s{self._last_words()}")

    async def until(self, is_so: Callable[[], bool], within: float, worker: Worker) -> bool:
        deadline = time.monotonic() + within
        while not is_so():
            if worker.process.poll() is not None:
                raise Failed(f"its worker ended with {worker.process.returncode}{self._last_words()}")
            if time.monotonic() > deadline:
                return False
            await asyncio.sleep(LOOK)
        return True

    async def _ask_one_off(self, phase: str) -> None:
        """In a process of its own: some libraries cannot be set up and used by the same one."""
        client = self._start_client()
        try:
            await self._told(client, f"{phase}\n")
        finally:
            client.kill()
            client.wait()

    def _start_client(self) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            self.contender.client(),
            env=self._env,
            cwd=self.folder,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            start_new_session=True,
        )

    async def _told(self, client: subprocess.Popen[bytes], line: str) -> dict[str, Any]:
        assert client.stdin is not None
        assert client.stdout is not None
        try:
            client.stdin.write(line.encode())
            client.stdin.flush()
            answer = await asyncio.wait_for(asyncio.to_thread(_answer, client.stdout), ANSWER)
        except (OSError, TimeoutError) as error:
            raise Failed(f"its client: {error!r}{self._last_words()}") from error
        if answer is None:
            raise Failed(f"its client ended{self._last_words()}")
        return answer

    def _last_words(self) -> str:
        said = [path.read_text(errors="replace")[-800:] for path in self.folder.glob("*.log")]
        return "".join(f"\n{text}" for text in said if text)


def _answer(output: Any) -> dict[str, Any] | None:
    """The next line that is ours; libraries say other things there, too."""
    for line in output:
        if line.startswith(b"{"):
            return dict(json.loads(line))
    return None
