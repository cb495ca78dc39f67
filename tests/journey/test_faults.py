"""Workers that are killed, stopped, drained and raced, under load: nothing lost, nothing counted twice."""

from __future__ import annotations

import asyncio
import os
import random
import signal
from pathlib import Path

from packhorse.core.plan import Status
from packhorse.define import File
from packhorse.runtime import Handle
from tests.journey.site import LEASE, Site, descendants, is_running, until
from tests.servers.forks import Started
from tests.tiers import is_release


async def load(site: Site, jobs: int, seconds: float = 0.02) -> list[Handle[object]]:
    text = site.folder / "in.txt"
    text.write_text("one three fifteen")
    return [await site.submit("words", user=f"user{i}", text=File(text), seconds=seconds) for i in range(jobs)]


async def all_completed(site: Site, handles: list[Handle[object]], within: float = 120.0) -> None:
    jobs = await asyncio.gather(*(site.ended(handle, within) for handle in handles))
    assert {job.status for job in jobs} == {Status.COMPLETED}, [job.error for job in jobs if job.error]
    for handle in handles:
        result = (await handle.a_wait()).result
        assert isinstance(result, File)
        assert result.read_text() == "3,5,7"


async def test_killing_workers_at_random_loses_nothing_and_counts_nothing_twice(site: Site) -> None:
    chance = random.Random(20)
    kills = 20 if is_release() else 8
    alive = [site.start_worker(), site.start_worker()]
    handles = await load(site, 2 * kills, seconds=0.1)
    await site.started(handles[0])

    for _ in range(kills):
        await asyncio.sleep(chance.uniform(0.05, 0.5))  # the moment of a kill, not a wait for anything
        victim = alive.pop(chance.randrange(2))
        victim.kill()
        victim.wait()
        alive.append(site.start_worker())

    await all_completed(site, handles)
    await site.assert_whole()


async def test_a_worker_that_slept_through_its_lease_is_not_heard(site: Site) -> None:
    sleeper = site.start_worker()
    handle = await site.submit("polite", seconds=4 * LEASE)
    await site.started(handle)
    awake = site.start_worker()

    await site.stop(sleeper)
    entry = await site.started_again(handle)
    await asyncio.sleep(LEASE)  # two leases in all
    sleeper.send_signal(signal.SIGCONT)
    job = await site.ended(handle)

    assert entry.attempt == 2
    assert awake.poll() is None
    assert (job.status, job.retry_count) == (Status.COMPLETED, 1)
    starts = [event.data["attempt"] for event in await site.events(job.id) if event.type == "stage_started"]
    assert starts == sorted(set(starts))
    await site.assert_whole()


async def test_a_whole_worker_stopped_for_two_leases_wakes_up_to_find_its_job_done_by_another(site: Site) -> None:
    sleeper = site.start_worker()
    handle = (await load(site, 1, seconds=1.0))[0]
    await site.started(handle)
    children = list(descendants(sleeper))
    site.start_worker()

    await site.stop(sleeper)
    for child in children:
        child.suspend()
    await all_completed(site, [handle])
    sleeper.send_signal(signal.SIGCONT)
    for child in children:
        child.resume()

    await quiet_after(sleeper, site, handle)
    await site.assert_whole()


async def quiet_after(worker: Started, site: Site, handle: Handle[object]) -> None:
    """The worker has noticed and can be asked to leave in good order."""
    worker.terminate()
    await asyncio.to_thread(worker.wait, 60)
    assert worker.returncode == 0, site.log_text()[-2000:]
    assert (await site.job(handle)).status is Status.COMPLETED


async def test_a_drained_worker_hands_back_uncounted_and_another_goes_on(tmp_path: Path) -> None:
    site = Site(tmp_path, drain=0.2)
    try:
        leaving = site.start_worker()
        handles = await load(site, 12, seconds=0.4)
        await site.started(handles[0])
        site.start_worker()

        leaving.terminate()
        await asyncio.to_thread(leaving.wait, 60)
        await all_completed(site, handles)

        assert leaving.returncode == 0
        assert {job.retry_count for job in await site.jobs()} == {0}
        await site.assert_whole()
    finally:
        await site.close()


async def test_two_workers_race_and_no_stage_begins_twice(site: Site) -> None:
    jobs = 30 if is_release() else 12
    handles = await load(site, jobs, seconds=0.0)

    for _ in range(2):
        site.start_worker(lease=60)  # nobody is taken for dead because the machine has much to do
    await all_completed(site, handles)

    begun = [(e.job_id, e.stage, e.element) for e in site.ledger() if e.what == "begin"]
    assert len(begun) == len(set(begun)) == jobs * 5
    await site.assert_whole()


async def test_a_killed_supervisor_takes_all_its_processes_and_its_scratch_along(site: Site) -> None:
    worker = site.start_worker()
    handle = await site.submit("parent")
    entry = await site.started(handle)
    left = [entry.pid, int(entry.stage.partition(":")[2])]

    worker.kill()
    worker.wait()

    async def look() -> bool | None:
        gone = not any(is_running(pid) for pid in left) and not list((site.folder / "scratch").iterdir())
        return True if gone else None

    await until(look, 40, lambda: f"{left} or scratch still there: {os.listdir(site.folder / 'scratch')}")


async def test_after_a_kill_the_neighbour_goes_on_before_the_lease_is_over(tmp_path: Path) -> None:
    site = Site(tmp_path, lease=600)
    try:
        victim = site.start_worker()
        handle = await site.submit("fails_at_first", times=0)
        await site.ended(handle)
        long = await site.submit("too_slow_to_wait_for")
        await site.started(long)

        victim.kill()
        victim.wait()
        site.start_worker()

        entry = await site.started_again(long)
        assert entry.attempt == 2
    finally:
        await site.close()


async def test_poison_ends_as_failed_when_its_attempts_are_spent(site: Site) -> None:
    handle = await site.submit("kills_its_worker")
    workers = [site.start_worker() for _ in range(4)]

    job = await site.ended(handle)

    assert job.status is Status.FAILED
    assert job.error is not None
    assert job.error.code == "WORKER_LOST"
    assert [e.attempt for e in site.ledger()] == [1, 2, 3]
    assert sorted(worker.poll() or 0 for worker in workers) == [-signal.SIGKILL] * 3 + [0]


async def test_without_a_neighbour_the_lease_is_the_net(site: Site) -> None:
    handle = await site.submit("fails_at_first", times=0)
    await site.abandon_as_if_on_another_host(handle)

    site.start_worker()
    job = await site.ended(handle)

    assert (job.status, job.retry_count) == (Status.COMPLETED, 1)


async def test_a_higher_priority_goes_first_and_a_delay_is_kept(site: Site) -> None:
    low = await site.submit("polite", seconds=0, user="low")
    high = await site.submit("polite", seconds=0, user="high", options={"priority": 5})
    later = await site.submit("polite", seconds=0, user="later", options={"delay": 1.0, "priority": 9})

    site.start_worker(queues="default=1")
    for handle in (low, high, later):
        await site.ended(handle)

    order = [e.job_id for e in site.ledger() if e.what == "begin"]
    assert sorted(order) == sorted([high.id, low.id, later.id])
    assert order.index(high.id) < order.index(low.id)  # where the third comes depends on how fast the worker starts
    job = await site.job(later)
    assert job.started_at is not None
    assert job.started_at - job.created_at >= 1.0
