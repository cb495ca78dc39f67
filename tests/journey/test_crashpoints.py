"""A SIGKILL at every named place of the code: whoever comes next finds the invariants whole and finishes the work."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest

from packhorse.core.models import Job
from packhorse.core.plan import Status
from packhorse.crashpoints import POINTS
from packhorse.define import File
from tests.journey.site import Site, until
from tests.servers import forks
from tests.servers.forks import Started
from tests.tiers import sampled

WHILE_WORKING = {
    # Around the first writes of a worker, around its claim, and deep in the work. The first number also before a merge.
    "store.write.before": (1, 4, 9),
    "store.write.open": (9, 1, 4),
    "store.write.after": (4, 1, 9),
    "attempt.claimed": (1, 3),
    "attempt.sent": (1, 3),
    "attempt.done": (1, 3),
    "attempt.published": (1, 3),
    "attempt.settled": (1, 3),
    "blob.put.before": (1, 2),
    "blob.put.written": (1, 2),
    "blob.put.after": (1, 2),
}
WHILE_PURGING = {"purge.marked": 1, "purge.objects.gone": 1, "blob.delete.after": 2}
WHILE_SUBMITTING = (
    "blob.put.written",
    "admit.objects.after",
    "store.write.open",
    "store.write.after",
    "blob.put.before",
    "blob.put.after",
    "store.write.before",
    "admit.job.after",
)
"""The first four also before a merge: what a kill at the others leaves looks the same."""
WHILE_TELLING = ("webhook.sent",)
"""In test_webhooks.py."""
WHILE_REPLACING = ("admit.replace.before",)
"""In tests/jobs/test_replacements.py."""
WHILE_SCHEDULING = ("schedule.claimed", "schedule.fired")
"""In test_schedules.py."""
WHILE_MENDING = ("order.retried", "revival.spent", "revival.made", "alert.posted")
"""In test_failures.py."""


def test_every_point_in_the_code_is_hit_by_one_of_these_tests() -> None:
    elsewhere = {*WHILE_SCHEDULING, *WHILE_MENDING, *WHILE_REPLACING}
    assert {*WHILE_WORKING, *WHILE_PURGING, *WHILE_SUBMITTING, *WHILE_TELLING, *elsewhere} == POINTS


async def died(worker: Started, site: Site) -> None:
    async def look() -> int | None:
        return worker.poll()

    code = await until(look, 30, lambda: f"the point was never passed\n{site.log_text()[-2000:]}")
    assert code == -signal.SIGKILL, site.log_text()[-2000:]


@pytest.mark.parametrize(
    ("point", "number"),
    [
        pytest.param(point, number, marks=pytest.mark.release if nth else ())
        for point, numbers in WHILE_WORKING.items()
        for nth, number in enumerate(numbers)
    ],
)
async def test_a_worker_killed_there_costs_nothing_but_an_attempt(site: Site, point: str, number: int) -> None:
    text = site.folder / "in.txt"
    text.write_text("one three")
    handle = await site.submit("words", text=File(text))
    worker = site.start_worker(crash=f"{point}:{number}")
    await died(worker, site)

    site.start_worker()
    job = await site.ended(handle)

    assert job.status is Status.COMPLETED
    assert (await handle.a_wait()).result.read_text() == "3,5"
    await site.assert_whole()


@pytest.mark.parametrize("point", WHILE_PURGING)
async def test_a_purge_that_was_cut_off_is_finished_by_the_next(site: Site, point: str) -> None:
    text = site.folder / "in.txt"
    text.write_text("soon gone")
    await site.submit("brief", text=File(text))
    is_batched = point == "blob.delete.after" and site.settings.blobs.startswith("s3")  # all in one request
    worker = site.start_worker(crash=f"{point}:{1 if is_batched else WHILE_PURGING[point]}")
    await died(worker, site)

    site.start_worker()

    async def look() -> bool | None:
        return None if await site.jobs() else True

    await until(look, 40, lambda: f"still there\n{site.log_text()[-2000:]}")
    await site.assert_whole()


@pytest.mark.parametrize("point", sampled(WHILE_SUBMITTING, count=4))
async def test_a_submitter_killed_there_leaves_a_whole_job_or_none(site: Site, point: str) -> None:
    text = site.folder / "in.txt"
    text.write_text("one three")
    store = await site.store()

    code = await submit_elsewhere(site, text, crash=f"{point}:1")

    assert code == -signal.SIGKILL
    jobs = await site.jobs()
    is_stored = point in ("store.write.after", "admit.job.after")
    if point == "store.write.open" and site.settings.store.startswith("redis"):
        is_stored = bool(jobs)  # a server that was sent a script goes on with it, or has not got all of it
    assert len(jobs) == is_stored
    assert bool(await store.holder("default/ann/words")) == is_stored  # no slot without a job
    site.start_worker()
    if not is_stored:
        assert await submit_elsewhere(site, text) == 0
    [job] = await ended(site)
    assert job.status is Status.COMPLETED
    await site.assert_whole()


async def submit_elsewhere(site: Site, text: Path, crash: str | None = None) -> int:
    env = site.env | ({"JOURNEY_CRASH": crash} if crash else {})
    module, arguments = "tests.journey.submit_process", [os.fspath(text)]
    submitter = forks.start(module, *arguments, env=env, cwd=site.folder, stdout=site.log, stderr=site.log)
    return await asyncio.to_thread(submitter.wait, 60)


async def ended(site: Site) -> list[Job]:
    async def look() -> list[Job] | None:
        jobs = await site.jobs()
        return jobs if jobs and all(job.status.is_terminal for job in jobs) else None

    found: list[Job] = await until(look, 40, lambda: site.log_text()[-2000:])
    return found
