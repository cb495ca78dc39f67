"""Kill -9 of a whole worker amid twenty running jobs: which finish, which twice, and when each runs again."""

from __future__ import annotations

import asyncio
import signal
import time
from pathlib import Path

from msgspec import Struct

from bench.peers.contenders import Contender
from bench.peers.ledger import repeated
from bench.peers.places import Place
from bench.peers.running import Running, Worker
from bench.sizes import Sizes

START = 60.0
"""Seconds in which a worker has to begin."""
NUDGE = 2.0
"""Seconds between new jobs for those who look for lost ones only then."""


class Crash(Struct):
    hit: int
    """Jobs that were running when their worker was killed."""
    finished: int
    twice: int
    """Run twice to the end."""
    resumed: float | None
    """Seconds from the kill until the last of those ran again; None if not all of them did while we watched."""


async def crashed(contender: Contender, place: Place, folder: Path, sizes: Sizes, n: int = 0) -> Crash:
    """The worker is killed with all its processes and started again at once, on the same host."""
    url = await place.emptied(contender, n)
    async with Running(contender, url, folder, _settings(contender, sizes)) as running:
        await running.connect()
        victim = running.start_worker(is_crash=True)
        await running.warm(victim)
        jobs, hit = await _interrupted(running, victim, sizes)
        killed_at = time.monotonic_ns()
        victim.kill()
        heir = running.start_worker(is_crash=True)
        return await _watched(running, heir, jobs, hit, killed_at, sizes)


async def crashed_elsewhere(contender: Contender, place: Place, folder: Path, sizes: Sizes) -> Crash:
    """Nobody starts ours again, and the worker that is left believes that it runs on another machine."""
    url = await place.emptied(contender)
    async with Running(contender, url, folder, _settings(contender, sizes)) as running:
        await running.connect()
        survivor = running.start_worker()
        await running.warm(survivor)
        survivor.signal(signal.SIGUSR1)  # it claims nothing more
        await asyncio.sleep(1.2 * sizes.lease)  # as long as it takes until it may judge what it sees
        victim = running.start_worker(BENCH_BOOT="of-another-machine")
        jobs, hit = await _interrupted(running, victim, sizes)
        survivor.signal(signal.SIGUSR2)
        killed_at = time.monotonic_ns()
        victim.kill()
        return await _watched(running, survivor, jobs, hit, killed_at, sizes)


def _settings(contender: Contender, sizes: Sizes) -> dict[str, str]:
    found = {"BENCH_SAFE": "1", "BENCH_SLOTS": str(sizes.crashed), "BENCH_LONG": str(sizes.peers_long)}
    return found | ({"PACKHORSE_LEASE": str(sizes.lease)} if contender.is_ours else {})


async def _interrupted(running: Running, victim: Worker, sizes: Sizes) -> tuple[range, set[int]]:
    """The jobs, and those of them that run."""
    jobs = running.jobs(sizes.crashed)
    await running.ask("long", jobs)

    def is_time() -> bool:
        """All run, or as many as can: the first has ended."""
        begun, ended = (running.ledger.times(kind, jobs) for kind in ("begin", "end"))
        return len(begun) == len(jobs) or bool(ended)

    await running.until(is_time, START, victim)
    return jobs, running.ledger.times("begin", jobs).keys() - running.ledger.times("end", jobs).keys()


async def _watched(running: Running, worker: Worker, jobs: range, hit: set[int], killed_at: int, sizes: Sizes) -> Crash:
    def all_have_ended() -> bool:
        return len(running.ledger.times("end", jobs)) == len(jobs)

    deadline = time.monotonic() + sizes.peers_watched
    while not all_have_ended() and (left := deadline - time.monotonic()) > 0:
        await running.until(all_have_ended, min(left, NUDGE), worker)
        if running.contender.is_nudged:
            await running.ask("submit", running.jobs(1))
    await asyncio.sleep(sizes.peers_long)  # whoever is run twice ends a second time about now
    ends = running.ledger.times("end", jobs)
    begins = running.ledger.times("begin", hit)
    again = {n: min(later) for n, times in begins.items() if (later := [at for at in times if at > killed_at])}
    resumed = (max(again.values()) - killed_at) / 1e9 if hit and again.keys() == hit else None
    return Crash(len(hit), len(ends), repeated(ends), resumed)
