"""What can go wrong underneath: each fault strikes a running deployment, lasts, and is healed."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import asyncpg
import psutil
from tests.journey.site import until

from lab.real.deployment import LEASE, START, WORKERS, Deployment
from lab.real.places import DAY, BehindPgbouncer, OnCluster, OnPostgres, OnRedis, Served, WithSentinel
from packhorse.errors import WrongDeployment

Strike = Callable[[Deployment, float], Awaitable[None]]


@dataclass(frozen=True)
class Fault:
    name: str
    title: str
    strike: Strike | None
    """Do harm for about so many seconds, and undo it. Power cuts have a round of their own: power_round.py."""
    seconds: tuple[float, float]
    places: tuple[str, ...]
    spends_attempts: bool = False
    """Whether it takes workers or stages away, so that what runs there begins again, or fails if it may not."""
    loses: bool = False
    """Whether acknowledged jobs may be lost: a replica takes over that does not have them."""
    with_s3: bool = False
    orphan_after: float = 2 * DAY
    """Seconds after which packhorse deletes files that belong to no job."""


REFUSAL = WrongDeployment.hint.partition(".")[0]
"""What a janitor logs instead of deleting files that may belong to another deployment."""
SWEPT = 60.0
"""Seconds after which a janitor has swept, however busy the machine is."""
ALL = ("sqlite", "postgresql", "redis")
SERVERS = ("postgresql", "redis")
FAULTS: dict[str, Fault] = {}


def fault(title: str, seconds: tuple[float, float], places: tuple[str, ...], **rest: Any) -> Callable[[Strike], Strike]:
    def add(strike: Strike) -> Strike:
        first, _, others = strike.__name__.partition("_")
        name = f"{first}.{others.replace('_', '-')}"
        FAULTS[name] = Fault(name, title, strike, seconds, places, **rest)
        return strike

    return add


# Processes of packhorse.


@fault("A worker is killed with SIGKILL, and another one is started.", (0.5, 2), ALL, spends_attempts=True)
async def worker_killed(site: Deployment, seconds: float) -> None:
    number = site.chance.randrange(WORKERS)
    site.workers[number].kill()
    site.workers[number].wait()
    await asyncio.sleep(seconds)
    site.start_numbered_worker(number + 1)


@fault("A worker is stopped with SIGSTOP for up to three leases.", (0.5 * LEASE, 3 * LEASE), ALL, spends_attempts=True)
async def worker_stopped(site: Deployment, seconds: float) -> None:
    worker = site.chance.choice(site.living_workers())
    if site.place.store == "sqlite":
        await site.stop(worker)  # not while it holds the write lock: then nobody else can write either
    else:
        worker.send_signal(signal.SIGSTOP)
    await asyncio.sleep(seconds)
    worker.send_signal(signal.SIGCONT)


@fault("Stage processes are killed, one every half second.", (2, 5), ALL, spends_attempts=True)
async def stage_killed(site: Deployment, seconds: float) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        for process in site.chance.sample(found, 1) if (found := site.stage_processes()) else ():
            with contextlib.suppress(psutil.Error):
                process.kill()
        await asyncio.sleep(0.5)


@fault("The server is killed with SIGKILL during submits and uploads, and started again.", (0.5, 2), ALL)
async def server_killed(site: Deployment, seconds: float) -> None:
    assert site.server is not None
    site.server.kill()
    site.server.wait()
    await asyncio.sleep(seconds)
    site.start_server()


@fault("The server is stopped with SIGSTOP.", (LEASE, 2 * LEASE), ALL)
async def server_stopped(site: Deployment, seconds: float) -> None:
    assert site.server is not None
    if site.place.store == "sqlite":
        await site.stop(site.server)
    else:
        site.server.send_signal(signal.SIGSTOP)
    await asyncio.sleep(seconds)
    site.server.send_signal(signal.SIGCONT)


# The store.


@fault("The store is killed with SIGKILL, and started again.", (0.5, LEASE), SERVERS)
async def store_killed(site: Deployment, seconds: float) -> None:
    place = _served(site)
    place.kill()
    await asyncio.sleep(seconds)
    place.restart()


@fault("The store is stopped with SIGSTOP for up to three leases.", (LEASE, 3 * LEASE), SERVERS)
async def store_stopped(site: Deployment, seconds: float) -> None:
    place = _served(site)
    place.pause()
    await asyncio.sleep(seconds)
    place.resume()


@fault("Every connection to the store is cut, again and again.", (3, 6), SERVERS)
async def network_cut(site: Deployment, seconds: float) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        for way in site.place.ways:
            await way.cut()
        await asyncio.sleep(site.chance.uniform(0.1, 0.6))


@fault("Each message to and from the store takes 20 to 150 ms longer.", (4, 8), SERVERS)
async def network_delayed(site: Deployment, seconds: float) -> None:
    for way in site.place.ways:
        way.delay = site.chance.uniform(0.02, 0.15)
    await asyncio.sleep(seconds)
    for way in site.place.ways:
        way.delay = 0.0


@fault(
    "One worker is cut off from the store: nothing arrives, and nothing is refused.",
    (LEASE, 3 * LEASE),
    SERVERS,
    spends_attempts=True,
)
async def network_partition(site: Deployment, seconds: float) -> None:
    way = site.place.ways[site.chance.randrange(1, WORKERS + 1)]
    way.darken()
    await asyncio.sleep(seconds)
    way.lighten()
    await way.cut()


# Disks and clocks.


@fault(
    "The store's disk does not finish a sync for 14 to 22 s; commits land after their caller gave up.", (14, 22), ALL
)
async def disk_stall(site: Deployment, seconds: float) -> None:
    disk = site.place.server_disk if isinstance(site.place, Served) else site.place.disk
    disk.set(stalls=True)
    await asyncio.sleep(seconds)
    disk.set()


@fault("The store's disk is full; a store that gives up is started again once there is space.", (1, LEASE), SERVERS)
async def disk_full(site: Deployment, seconds: float) -> None:
    place = _served(site)
    place.server_disk.set(full=True)
    await asyncio.sleep(seconds)
    place.server_disk.set()
    await asyncio.sleep(0.5)
    place.restart()


@fault("The disk with the files is full. With SQLite, the store is on it, too.", (1, LEASE), ALL, spends_attempts=True)
async def disk_full_of_files(site: Deployment, seconds: float) -> None:
    site.place.disk.set(full=True)
    await asyncio.sleep(seconds)
    site.place.disk.set()


@fault("The clock of the store's server is set one hour ahead, and later back.", (2, LEASE), SERVERS)
async def clock_ahead(site: Deployment, seconds: float) -> None:
    clock = _served(site).clock
    clock.set(3600)
    await asyncio.sleep(seconds)
    clock.set(0)


@fault("The clock of the store's server is eight days ahead for about a second.", (0.5, 1.5), SERVERS)
async def clock_glitch(site: Deployment, seconds: float) -> None:
    clock = _served(site).clock
    await asyncio.sleep(2)  # some jobs have ended, and would be purged
    clock.set(8 * DAY)
    await asyncio.sleep(seconds)
    clock.set(0)


@fault("The clock of one worker's machine is an hour wrong.", (LEASE, 2 * LEASE), SERVERS)
async def clock_of_worker(site: Deployment, seconds: float) -> None:
    clock = site.place.clocks[site.chance.randrange(1, WORKERS + 1)]
    clock.set(site.chance.choice([-3600, 3600]))
    await asyncio.sleep(seconds)
    clock.set(0)


@fault("The clock of the machine is set one hour ahead, and later back.", (2, LEASE), ("sqlite",))
async def clock_of_machine(site: Deployment, seconds: float) -> None:
    for error in (3600, 0):
        for clock in site.place.clocks:
            clock.set(error)
        await asyncio.sleep(seconds if error else 0)


# Files.


@fault("S3 answers every request one to three seconds late.", (4, 8), ALL, with_s3=True)
async def s3_late(site: Deployment, seconds: float) -> None:
    assert site.place.bucket is not None
    site.place.bucket.late = site.chance.uniform(1, 3)
    await asyncio.sleep(seconds)
    site.place.bucket.late = 0.0


@fault("Half of the requests arrive at S3 twice.", (4, 8), ALL, with_s3=True)
async def s3_twice(site: Deployment, seconds: float) -> None:
    assert site.place.bucket is not None
    site.place.bucket.twice = 0.5
    await asyncio.sleep(seconds)
    site.place.bucket.twice = 0.0


@fault("S3 answers a third of the requests with 503, or not at all.", (4, 8), ALL, with_s3=True, spends_attempts=True)
async def s3_fails(site: Deployment, seconds: float) -> None:
    assert site.place.bucket is not None
    site.place.bucket.rates = {"503": 0.2, "cut": 0.07, "lost": 0.07}
    await asyncio.sleep(seconds)
    site.place.bucket.rates = {}


@fault(
    "The store loses its records; no file is deleted until an operator runs `packhorse adopt` and restarts everything.",
    (8, 10),
    SERVERS,
    loses=True,
    orphan_after=4.0,
)
async def store_emptied(site: Deployment, seconds: float) -> None:
    """No file may be taken for an orphan, although no job refers to it any more, and it is old enough.

    On a busy machine a worker trusts no clock for a while and deletes nothing. So this waits until a janitor says that
    it will not delete: one that does not say so has time to do it.
    """

    async def files_of_ended_jobs() -> list[Path] | None:
        ended = [job for job in await site.jobs() if job.status.is_terminal]
        return [site.place.data / "blobs" / key for key in await site.object_keys(ended)] or None

    files = await until(files_of_ended_jobs, START, lambda: "LAB: no job with a file has ended")
    site.may_refuse = True
    logged = len(site.log_text())
    await _empty(site)
    began = time.monotonic()
    while (waited := time.monotonic() - began) < seconds or REFUSAL not in site.log_text()[logged:]:
        if missing := [path for path in files if not path.exists()]:
            text = f"I11: {len(missing)} of {len(files)} files were deleted after the store lost its records"
            raise AssertionError(text)
        if waited > seconds + SWEPT:
            raise AssertionError("I11: no janitor has noticed that the store lost its records")
        await asyncio.sleep(0.2)
    await asyncio.to_thread(site.run_command, "adopt", "--yes")
    await site.restart_all()


# Stores of several servers.


@fault("The master dies, and the sentinel makes its replica the master.", (0, 0), ("sentinel",), loses=True)
async def sentinel_failover(site: Deployment, seconds: float) -> None:  # noqa: ARG001
    assert isinstance(site.place, WithSentinel)
    await site.place.fail_over()


@fault("The cluster loses the node that has the keys; its replica takes over.", (0, 0), ("cluster",), loses=True)
async def cluster_node_lost(site: Deployment, seconds: float) -> None:  # noqa: ARG001
    assert isinstance(site.place, OnCluster)
    await site.place.lose_node()


@fault("pgbouncer in transaction mode is killed, and started again.", (0.5, LEASE), ("pgbouncer",))
async def pgbouncer_killed(site: Deployment, seconds: float) -> None:
    assert isinstance(site.place, BehindPgbouncer)
    site.place.kill_pool()
    await asyncio.sleep(seconds)
    site.place.start_pool()


@fault(
    "Behind pgbouncer in transaction mode, a worker is stopped in the middle of what it does.",
    (LEASE, 3 * LEASE),
    ("pgbouncer",),
    spends_attempts=True,
)
async def pgbouncer_and_stopped_worker(site: Deployment, seconds: float) -> None:
    await worker_stopped(site, seconds)


def _served(site: Deployment) -> Served:
    assert isinstance(site.place, Served)
    return site.place


async def _empty(site: Deployment) -> None:
    if isinstance(site.place, OnRedis):
        with site.place.server.client() as client:
            client.flushall()
    else:
        assert isinstance(site.place, OnPostgres)
        own = await asyncpg.connect(site.place.server.dsn())
        tables = await own.fetch("SELECT tablename FROM pg_tables WHERE schemaname = 'lab'")
        kept = {"version"}
        names = ", ".join(f"lab.{row['tablename']}" for row in tables if row["tablename"] not in kept)
        while True:
            with contextlib.suppress(asyncpg.DeadlockDetectedError):
                await own.execute(f"TRUNCATE {names} CASCADE")
                break
        await own.close()


POWER = "power.cut"
FAULTS[POWER] = Fault(
    POWER, "The power fails; the disk keeps only what was synced, and any part of the rest.", None, (0, 0), ("sqlite",)
)
