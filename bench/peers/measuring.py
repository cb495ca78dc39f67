"""What is measured of one contender, in one go: submits, a drain, pick-ups, chains of three stages."""

from __future__ import annotations

import asyncio
from pathlib import Path

from msgspec import Struct

from bench.book import percentile
from bench.peers.contenders import Contender
from bench.peers.ledger import rate, repeated
from bench.peers.places import Place
from bench.peers.running import Failed, Running, Worker
from bench.sizes import Sizes

WITHIN = 180.0
SETTLE = 1.5
"""Seconds after a drain until its acknowledgements are in, and PostgreSQL has told its counters of them."""


class Found(Struct):
    """Of one contender and round; None where there is nothing to be measured."""

    submit: float
    drain: float
    chains: float
    pick_up_p50: float
    pick_up_p99: float
    memory: float
    size: float
    calls: float | None
    bulk: float | None


async def measured(contender: Contender, place: Place, folder: Path, sizes: Sizes) -> Found:
    """Raises `Failed` if the contender loses or repeats a job: how fast it does that is of no interest."""
    url = await place.emptied(contender)
    async with Running(contender, url, folder / "speed", {}) as running:
        await running.connect()
        jobs = running.jobs(max(1, int(sizes.peers_jobs * contender.share)))
        before = await place.calls()
        empty = await place.size()
        submit = _rate(await running.ask("submit", jobs), jobs)
        size = (await place.size() - empty) / len(jobs)

        worker = running.start_worker()
        await running.noted("job", jobs, WITHIN, worker)
        drained = running.ledger.times("job", jobs)
        if repeated(drained):
            raise Failed(f"{repeated(drained)} of {len(jobs)} jobs ran more than once")
        await asyncio.sleep(SETTLE)
        calls = await place.calls() - before
        memory = worker.memory()

        waits = await _pick_ups(running, worker, sizes)
        chains = await _chains(running, worker, max(1, int(sizes.peers_chains * contender.share)))
    return Found(
        submit=submit,
        drain=rate(drained),
        chains=chains,
        pick_up_p50=percentile(waits, 0.5),
        pick_up_p99=percentile(waits, 0.99),
        memory=memory,
        size=size,
        calls=calls / len(jobs) if place.counted else None,
        bulk=await _bulk(contender, place, folder, sizes),
    )


async def _pick_ups(running: Running, worker: Worker, sizes: Sizes) -> list[float]:
    """Milliseconds from just before the submit call to the first line of the job, by an idle worker."""
    jobs = running.jobs(sizes.peers_pick_ups)
    asked = (await running.ask("apart", jobs, sizes.pick_up_gap))["asked"]
    await running.noted("job", jobs, WITHIN, worker)
    started = running.ledger.times("job", jobs)
    return [(started[n][0] - asked[str(n)]) / 1e6 for n in jobs]


async def _chains(running: Running, worker: Worker, count: int) -> float:
    """Jobs of three stages per second, from the first submit call to the last line of a third stage."""
    jobs = running.jobs(count)
    began: int = (await running.ask("chains", jobs))["began"]
    await running.noted("third", jobs, WITHIN, worker)
    for kind in ("first", "second", "third"):
        if len(running.ledger.times(kind, jobs)) < count or repeated(running.ledger.times(kind, jobs)):
            raise Failed(f"not every stage {kind!r} ran exactly once")
    ended = max(times[0] for times in running.ledger.times("third", jobs).values())
    return count / ((ended - began) / 1e9)


async def _bulk(contender: Contender, place: Place, folder: Path, sizes: Sizes) -> float | None:
    """Submits per second by the library's call for many, into an empty store that nobody works on."""
    url = await place.emptied(contender)
    async with Running(contender, url, folder / "bulk", {}) as running:
        await running.connect()
        jobs = running.jobs(sizes.peers_jobs)
        answer = await running.ask("bulk", jobs)
        return _rate(answer, jobs) if answer else None


def _rate(answer: dict[str, int], jobs: range) -> float:
    return len(jobs) / ((answer["ended"] - answer["began"]) / 1e9)
