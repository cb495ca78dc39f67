"""What is told of real workers, on every store: counts that add up, one reading a minute, the lost and the silent."""

from __future__ import annotations

import asyncio
import signal

from packhorse.background.health import HealthCheck
from packhorse.jobs.explain import is_live
from packhorse.jobs.health import find_in_store, state
from packhorse.store.collections import workers as worker_records
from packhorse.store.collections.queues import list_readings
from packhorse.store.collections.workers import Lost, list_findings
from packhorse.store.counters import MINUTE, QUARTER
from tests.journey.site import LEASE, Site, until


async def workers_are(site: Site, count: int) -> None:
    store = await site.store()

    async def look() -> bool | None:
        now = store.now()
        return (
            len([card for card in await worker_records.list_all(store) if is_live(card, now, LEASE)]) == count or None
        )

    await until(look, 60, lambda: f"there are not {count} workers\n{site.log_text()[-2000:]}")


async def test_three_workers_count_every_job_once_and_read_a_minute_once(site: Site) -> None:
    store = await site.store()
    workers = [site.start_worker() for _ in range(3)]
    await workers_are(site, 3)

    handles = [await site.submit("fails_at_first", times=1) for _ in range(12)]
    for handle in handles:
        await site.ended(handle)
    for worker in workers:
        worker.send_signal(signal.SIGTERM)  # who leaves writes down what it has counted
    for worker in workers:
        await asyncio.to_thread(worker.wait, 120)  # a question to a busy bucket is waited for

    jobs = {tally.name: 0 for tally, _ in await store.list_tallies(QUARTER, 0.0, queue="")}
    for tally, count in await store.list_tallies(QUARTER, 0.0, queue=""):
        jobs[tally.name] += count
    outcomes = [(tally.name, count) for tally, count in await store.list_tallies(QUARTER, 0.0, queue="default")]
    readings = await list_readings(store, 0.0)
    assert jobs["completed"] == 12
    assert sum(count for name, count in outcomes if name == "finish") == 12
    assert sum(count for name, count in outcomes if name == "fail") == 12
    assert sum(count for name, count in outcomes if name.startswith("wait:")) == 24
    assert len({reading.at for reading in readings}) == len(readings) >= 1
    assert {reading.at % MINUTE for reading in readings} == {0}


async def test_a_killed_worker_is_lost_and_what_it_had_in_hand_is_done_by_another(site: Site) -> None:
    store = await site.store()
    workers = [site.start_worker() for _ in range(2)]
    await workers_are(site, 2)
    held = await site.submit("polite", seconds=5)
    await site.started(held)
    cards = await worker_records.list_all(store)
    [holder] = [card for card in cards if await store.held_by(card.id, 10)]
    [other] = [card for card in cards if card != holder]

    [killed] = [worker for worker in workers if worker.pid == holder.pid]
    killed.kill()
    killed.wait()

    async def missed() -> Lost | None:
        return next(iter(await worker_records.list_lost(store)), None)

    lost = await until(missed, 60, lambda: f"nobody was missed\n{site.log_text()[-2000:]}")
    job = await site.ended(held)
    assert (lost.id, lost.pid, lost.tasks, lost.by) == (holder.id, killed.pid, 1, other.id)
    assert [(work.job_id, work.task.stage) for work in lost.work] == [(held.id, "polite")]
    assert (job.status.value, job.error_count) == ("completed", 1)
    assert job.last_error is not None
    assert job.last_error.code == "WORKER_LOST"


async def test_what_a_stopped_worker_said_turns_stale_and_nobody_takes_it_for_good(site: Site) -> None:
    store, _ = await site.runtime.open()
    worker = site.start_worker()
    await workers_are(site, 1)

    async def well() -> bool | None:
        found = [
            each for each in await find_in_store(store, site.settings) if each.part in ("workers", "background tasks")
        ]
        duties = [each for each in found if each.part == "background tasks"]
        return (len(duties) > 3 and all(state(each, store.now()) == "ok" for each in found)) or None

    await until(well, 60, lambda: f"it is not well\n{site.log_text()[-2000:]}")
    worker.send_signal(signal.SIGSTOP)

    async def silent() -> bool | None:
        found = [each for each in await find_in_store(store, site.settings) if each.name.startswith("worker ")]
        return (len(found) == 1 and state(found[0], store.now()) != "ok") or None

    assert await until(silent, 60, lambda: "a worker that stands still is shown as good")
    found = {each.part for each in await find_in_store(store, site.settings)}
    assert "background tasks" not in found  # what a silent worker's duties did once says nothing about now


async def test_what_workers_find_is_there_for_those_who_only_read(site: Site) -> None:
    store, blobs = await site.runtime.open()
    site.start_worker()
    await workers_are(site, 1)

    async def noted() -> dict[str, bool] | None:
        return {each.part: each.is_ok for each in await list_findings(store)} or None

    found = await until(noted, 60, lambda: f"nothing was found\n{site.log_text()[-2000:]}")
    before = await list_findings(store)
    await HealthCheck(store, blobs, site.settings, "me").tick()

    assert found == {"store": True, "files": True, "workers": True, "background tasks": True}
    assert await list_findings(store) == before  # it has just been looked at
