"""Ticks of every second, while schedulers are killed and stopped: each is fired once, or there is a record why not."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import time
from collections import Counter

import pytest
from msgspec.structs import replace

from packhorse.core import schedules
from packhorse.core.models import Job
from packhorse.core.schedules import Overlap, Run, Schedule, Terms
from packhorse.errors import Conflict
from packhorse.store.base import Store
from packhorse.store.collections import schedules as schedule_records
from packhorse.store.collections.workers import list_definitions
from tests.journey.site import Site, until
from tests.journey.test_crashpoints import WHILE_SCHEDULING, died
from tests.tiers import is_release, sampled

TICKS = int(os.environ.get("JOURNEY_TICKS", "30" if is_release() else "15"))
OVERLAPS: tuple[Overlap, ...] = ("skip", "queue", "cancel")
EVERY_SECOND = "* * * * * *"


async def create(store: Store, id: str, **options: object) -> Schedule:
    given = {"pipeline": "beat", "parameters": b'{"mark":"one"}', "cron": EVERY_SECOND, "user": "ann"}
    move = schedules.create("default", id, Terms(**{**given, **options}), author="ann", now=store.now())  # type: ignore[arg-type]
    await schedule_records.move(store, move)
    return move.after


async def edit(store: Store, id: str, **changes: object) -> Schedule:
    while True:
        found = await schedule_of(store, id)
        move = schedules.edit(
            found, replace(found.terms, **changes), author="ben", reason="in the middle", now=store.now()
        )
        try:
            await schedule_records.move(store, move)
        except Conflict:  # a tick was claimed meanwhile
            continue
        return move.after


async def schedule_of(store: Store, id: str) -> Schedule:
    found = await schedule_records.get(store, "default", id)
    assert found is not None
    return found


async def runs_of(store: Store, id: str) -> list[Run]:
    return (await schedule_records.runs(store, "default", id, limit=10_000))[::-1]


async def quiet(site: Site, store: Store, ids: tuple[str, ...]) -> None:
    async def look() -> bool | None:
        left = [run for id in ids for run in await schedule_records.runs(store, "default", id, open_only=True)]
        return None if left else True

    await until(look, 90, lambda: f"some runs are never over\n{site.log_text()[-3000:]}")


async def disturb(site: Site, until_at: float, luck: random.Random) -> Counter[str]:
    """Around ticks, one scheduler after the other is killed and replaced, or stopped for a few ticks."""
    done: Counter[str] = Counter()
    while time.time() < until_at:
        await asyncio.sleep(1.0 + (1.0 - time.time() % 1.0) + luck.uniform(-0.06, 0.06))
        worker = luck.choice([each for each in site.workers if each.poll() is None])
        if luck.random() < 0.5:
            worker.kill()
            worker.wait()
            site.start_worker()
            done["killed"] += 1
        else:
            await site.stop(worker)
            await asyncio.sleep(luck.uniform(1.0, 3.5))
            worker.send_signal(signal.SIGCONT)
            done["stopped"] += 1
    return done


async def fired_first(site: Site, store: Store, id: str) -> Run:
    async def look() -> Run | None:
        found = [run for run in await runs_of(store, id) if run.job_id is not None]
        return found[0] if found else None

    return await until(look, 60, lambda: f"{id} has not fired\n{site.log_text()[-3000:]}")


async def test_every_tick_is_fired_once_or_recorded_though_schedulers_die_around_it(site: Site) -> None:
    store, luck = await site.store(), random.Random(5)
    for _ in range(3):
        site.start_worker()
    for overlap in OVERLAPS:
        await create(store, overlap, overlap=overlap)
    await asyncio.gather(*(fired_first(site, store, id) for id in OVERLAPS))

    end = time.time() + TICKS
    disturbing = asyncio.create_task(disturb(site, end, luck))
    await asyncio.sleep(TICKS / 2)
    edited = [await edit(store, id, parameters=b'{"mark":"two"}') for id in OVERLAPS]
    disturbed = await disturbing
    paused = [await edit(store, id, active=False) for id in OVERLAPS]
    await quiet(site, store, OVERLAPS)

    assert set(disturbed) == {"killed", "stopped"}
    jobs = {job.id: job for job in await site.jobs()}
    assert_one_job_each(jobs)
    for schedule, second in zip(paused, edited, strict=True):
        runs = await runs_of(store, schedule.id)
        assert_all_ticks_are_there(schedule, runs)
        assert_jobs_are_those_of_the_runs(schedule, runs, jobs)
        assert_the_edit_holds_from_the_next_tick_on(site, second, runs)
    await site.assert_whole()


def assert_one_job_each(jobs: dict[str, Job]) -> None:
    """I8, from the jobs themselves."""
    firings = Counter(job.firing for job in jobs.values())
    assert None not in firings
    assert set(firings.values()) == {1}, [firing for firing, count in firings.items() if count > 1]


def assert_all_ticks_are_there(schedule: Schedule, runs: list[Run]) -> None:
    """Each second from the first tick to the last has a run, alone or within a record of several that were missed."""
    covered = Counter(
        tick for run in runs for tick in range(int(run.tick), int(run.until or run.tick) + 1) if not run.is_manual
    )
    assert set(covered.values()) == {1}, covered
    assert sorted(covered) == list(range(int(runs[0].tick), int(schedule.last_at) + 1))
    assert len(covered) >= TICKS
    assert all(run.message for run in runs if run.status in ("skipped", "missed"))
    assert all(run.job_id is None for run in runs if run.status in ("skipped", "missed"))
    fired = [run for run in runs if run.job_id is not None]
    assert len(fired) >= TICKS / 3, Counter(run.message for run in runs)


def assert_jobs_are_those_of_the_runs(schedule: Schedule, runs: list[Run], jobs: dict[str, Job]) -> None:
    mine = {id: job for id, job in jobs.items() if job.firing is not None and job.firing.schedule == schedule.id}
    assert {run.job_id: run.tick for run in runs if run.job_id is not None} == {
        id: job.firing.tick for id, job in mine.items() if job.firing is not None
    }
    for run in runs:
        if run.job_id is not None:
            job = jobs[run.job_id]
            assert (run.status, run.trace_id) == (job.status.value, job.trace_id)
            assert (run.started_at, run.ended_at) == (job.started_at, job.completed_at)


def assert_the_edit_holds_from_the_next_tick_on(site: Site, edited: Schedule, runs: list[Run]) -> None:
    """By what the stages wrote down: the parameters of the version that was there when the tick came."""
    marks = {entry.job_id: entry.stage for entry in site.ledger()}
    seen = set()
    for run in runs:
        is_new = run.tick > edited.updated_at
        assert (run.version >= 2) == is_new, (run, edited.updated_at)
        if run.job_id in marks:
            assert marks[run.job_id] == ("two" if is_new else "one"), run
            seen.add(is_new)
    assert seen == {True, False}


@pytest.mark.parametrize("point", sampled([*WHILE_SCHEDULING, "admit.objects.after", "admit.job.after"], count=2))
async def test_a_tick_whose_scheduler_dies_half_way_is_carried_on_and_fires_once(site: Site, point: str) -> None:
    store = await site.store()
    dying = site.start_worker(crash=f"{point}:1")
    await published(site, store)
    now = store.now()
    await create(store, "beat", cron=f"{int(now + 2) % 60} {int(now + 2) // 60 % 60} * * * *")
    await died(dying, site)

    site.start_worker()
    run = await ended_run(site, store)

    [job] = await site.jobs()
    assert (run.status, run.job_id) == ("completed", job.id)
    assert [entry.job_id for entry in site.ledger()] == [job.id]
    await site.assert_whole()


async def published(site: Site, store: Store) -> None:
    async def look() -> bool | None:
        return True if await list_definitions(store) else None

    await until(look, 60, lambda: f"nothing was published\n{site.log_text()[-3000:]}")


async def ended_run(site: Site, store: Store) -> Run:
    async def look() -> Run | None:
        runs = await runs_of(store, "beat")
        return runs[0] if runs and not runs[0].is_open else None

    return await until(look, 60, lambda: f"the tick has no end\n{site.log_text()[-3000:]}")


async def test_what_the_code_declares_is_there_when_a_worker_starts(site: Site) -> None:
    store = await site.store()

    site.start_worker()
    await published(site, store)

    async def look() -> Schedule | None:
        return await schedule_records.get(store, "default", "declared")

    found = await until(look, 60, lambda: f"nothing was declared\n{site.log_text()[-3000:]}")
    assert found.declared == found.terms
    assert (found.updated_by, found.version, found.is_adrift) == (schedules.CODE, 1, False)
    assert found.next_at is None
