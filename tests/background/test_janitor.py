"""Clearing away: expired jobs whole or not at all, and only files that nothing will ever refer to."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import pytest

from packhorse.background.janitor import BATCH, COMPARED, ENDED_KEPT, LAP, RESTING, SWEEP, Janitor
from packhorse.background.loop import AFTER_FAILURE
from packhorse.background.steady_clock import DOUBT, SteadyClock
from packhorse.blobs.base import Blobs
from packhorse.blobs.local import Folder
from packhorse.core import lifecycle
from packhorse.core.models import Artifact, Job, Result, Stored
from packhorse.core.plan import Status
from packhorse.errors import BlobUnavailable, CorruptRecord, JobNotFound, StoreUnavailable
from packhorse.jobs.transact import Transactor
from packhorse.store.base import Claim, Store
from packhorse.store.collections.webhooks import add_endpoint, end_endpoint, list_endpoints
from packhorse.store.collections.workers import get_bookmark
from packhorse.store.sqlite import SqliteStore
from tests.contract.blob_fixtures import content, stream
from tests.contract.builders import (
    BROKEN,
    CHAIN,
    HOUR,
    LEASE,
    ONE,
    SLOTTED,
    cancel,
    claim_one,
    dump,
    fail,
    finish,
    held,
    made,
    plan,
    refused,
    stage,
    submit,
    submit_many,
)
from tests.contract.keys import endpoint
from tests.contract.stores import Clock
from tests.store.sqlite.inside import write
from tests.worker.builders import EPOCH, id_at, jobs, objects, put, retry, submit_file
from tests.worker.faulty import Faults, wrapped

ORPHAN = 600.0
PERIOD = 5.0
KEEP = 60.0
TICK = LEASE / 10
BRIEF = plan(stage("only"), keep={status: KEEP for status in Status if status.is_terminal})


@pytest.fixture
def janitor(shaky: Store, shaky_blobs: Blobs, transact: Transactor) -> Janitor:
    return Janitor(shaky, shaky_blobs, transact, ORPHAN, PERIOD)


async def output(blobs: Blobs, claimed: Claim, name: str = "0.txt") -> str:
    """A file that an attempt has published and that no record knows yet."""
    return await put(blobs, f"jobs/{claimed.job.id}/output/{claimed.task.stage}/{claimed.token}/{name}")


def referring(*keys: str) -> Result:
    return Result(b"[]", tuple(Artifact(f"only/{n}", Stored(key, "a.txt", 7, "")) for n, key in enumerate(keys)))


async def ended(store: Store, blobs: Blobs) -> Job:
    """A completed job with a file that came in and one that came out."""
    await submit_file(store, blobs, plan=BRIEF)
    claimed = await claim_one(store)
    return await finish(store, claimed, referring(await output(blobs, claimed)))


# Purging


async def test_a_job_whose_time_is_over_goes_with_all_its_objects(
    store: Store, blobs: Blobs, janitor: Janitor, clock: Clock
) -> None:
    job = await ended(store, blobs)

    clock.forward(KEEP - 1.0)
    await janitor.tick()
    before = await held(store, job.id), await objects(blobs)
    clock.forward(1.0)
    wait = await janitor.tick()

    assert before[0] == job
    assert len(before[1]) == 2
    assert await store.get([job.id]) == [None]
    assert await objects(blobs) == []
    assert wait == PERIOD


async def test_the_objects_go_before_the_record(
    store: Store, blobs: Blobs, janitor: Janitor, clock: Clock, blob_faults: Faults
) -> None:
    job = await ended(store, blobs)
    clock.forward(KEEP)
    blob_faults.refuse("delete_all", lambda: BlobUnavailable(reason="away"))

    with pytest.raises(BlobUnavailable):
        await janitor.tick()
    between = await held(store, job.id)
    await janitor.tick()

    assert between.is_purging
    assert await store.get([job.id]) == [None]
    assert await objects(blobs) == []


async def test_a_purge_that_somebody_else_had_begun_is_brought_to_its_end(
    store: Store, blobs: Blobs, janitor: Janitor, clock: Clock, faults: Faults
) -> None:
    job = await ended(store, blobs)
    clock.forward(KEEP)
    faults.refuse("erase", StoreUnavailable)

    with pytest.raises(StoreUnavailable):
        await janitor.tick()
    await Janitor(store, blobs, Transactor(store), ORPHAN, PERIOD).tick()

    assert await store.get([job.id]) == [None]


async def test_a_purge_that_lost_the_race_against_a_retry_deletes_nothing(
    store: Store, blobs: Blobs, janitor: Janitor, clock: Clock, faults: Faults
) -> None:
    job = await ended(store, blobs)
    there = await objects(blobs)
    clock.forward(KEEP)
    faults.after("purgeable", lambda: retry(store, job.id, "*"))

    await janitor.tick()

    assert faults.args("erase") == []
    assert await objects(blobs) == there
    assert (await held(store, job.id)).status is Status.PENDING
    assert (await claim_one(store)).job.id == job.id


async def test_a_purge_that_lost_the_race_against_a_retry_at_the_very_end_deletes_nothing(
    store: Store, blobs: Blobs, janitor: Janitor, clock: Clock, faults: Faults
) -> None:
    job = await ended(store, blobs)
    there = await objects(blobs)
    clock.forward(KEEP)
    faults.before("commit", lambda: retry(store, job.id, "*"))

    await janitor.tick()

    assert await objects(blobs) == there
    assert (await held(store, job.id)).status is Status.PENDING


async def test_a_job_that_is_being_purged_cannot_be_retried(
    store: Store, blobs: Blobs, janitor: Janitor, clock: Clock, blob_faults: Faults
) -> None:
    job = await ended(store, blobs)
    clock.forward(KEEP)
    errors: list[Exception] = []

    async def retried() -> None:
        try:
            await retry(store, job.id, "*")
        except JobNotFound as error:
            errors.append(error)
        stale = lifecycle.retry(job, stage="*", now=store.now())
        errors.append(await refused(store, stale))

    blob_faults.before("delete_all", retried)
    await janitor.tick()

    assert len(errors) == 2
    assert await store.get([job.id]) == [None]


async def test_objects_that_cannot_be_deleted_do_not_keep_other_jobs_from_going(
    store: Store, blobs: Blobs, janitor: Janitor, clock: Clock, blob_faults: Faults
) -> None:
    stuck, other = await ended(store, blobs), await ended(store, blobs)
    await put(blobs, f"jobs/{id_at(EPOCH - 2 * ORPHAN)}/input/text.0")
    clock.forward(KEEP)
    blob_faults.refuse("delete_all", lambda: BlobUnavailable(reason="broken sector"))

    with pytest.raises(BlobUnavailable):
        await janitor.tick()

    assert await store.get([other.id]) == [None]
    assert {key.split("/")[1] for key in await objects(blobs)} == {stuck.id}


class Sticky(Folder):
    """Objects of some jobs cannot be deleted."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder / "objects")
        self.stuck: set[str] = set()

    async def delete_all(self, prefix: str) -> None:
        self._check(prefix)
        await super().delete_all(prefix)

    async def delete(self, keys: Sequence[str]) -> None:
        for key in keys:
            self._check(key)
        await super().delete(keys)

    def _check(self, key: str) -> None:
        if key.split("/")[1] in self.stuck:
            raise BlobUnavailable(reason="permission denied")


async def ticks(janitor: Janitor, count: int) -> None:
    """None of which goes without a complaint."""
    for _ in range(count):
        with pytest.raises(BlobUnavailable):
            await janitor.tick()


async def test_a_page_of_jobs_that_cannot_be_purged_hides_nobody(store: Store, clock: Clock, folder: Path) -> None:
    sticky = Sticky(folder)
    stuck = [await ended(store, sticky) for _ in range(BATCH)]
    other = await ended(store, sticky)
    sticky.stuck = {job.id for job in stuck}
    clock.forward(KEEP)
    janitor = Janitor(store, sticky, Transactor(store), ORPHAN, PERIOD)

    await ticks(janitor, 2)
    before = await jobs(store)
    sticky.stuck.clear()
    await janitor.tick()

    assert {job.id for job in before} == {job.id for job in stuck}
    assert other.id not in {job.id for job in before}
    assert await jobs(store) == []
    await sticky.close()


async def test_those_that_could_not_be_purged_are_tried_in_turn(
    store: Store, clock: Clock, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("packhorse.background.janitor.BATCH", 2)
    sticky = Sticky(folder)
    made = [await ended(store, sticky) for _ in range(4)]
    sticky.stuck = {job.id for job in made}
    clock.forward(KEEP)
    janitor = Janitor(store, sticky, Transactor(store), ORPHAN, PERIOD)

    await ticks(janitor, 2)
    sticky.stuck.remove(made[3].id)
    await ticks(janitor, 2)

    assert {job.id for job in await jobs(store)} == {job.id for job in made[:3]}
    await sticky.close()


async def test_a_page_of_jobs_that_cannot_be_tidied_hides_nobody(
    store: Store, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("packhorse.background.janitor.BATCH", 2)
    sticky = Sticky(folder)
    made = [await littered(store, sticky) for _ in range(3)]
    sticky.stuck = {job.id for job in await store.jobs_with_litter(2)}
    janitor = Janitor(store, sticky, Transactor(store), 1000 * HOUR, PERIOD)

    await ticks(janitor, 2)

    assert {job.id for job in await store.jobs_with_litter(9)} == sticky.stuck
    assert len(made) == 3
    await sticky.close()


async def test_more_jobs_than_fit_in_a_batch_are_purged_without_a_pause(
    store: Store, janitor: Janitor, clock: Clock
) -> None:
    for job in await submit_many(store, BATCH + 5, BRIEF):
        await cancel(store, job.id)
    clock.forward(KEEP)

    waits = [await janitor.tick(), await janitor.tick()]

    assert waits == [0.0, PERIOD]
    assert await jobs(store) == []


# Tidying


async def littered(store: Store, blobs: Blobs) -> tuple[Job, str, str]:
    """A completed job, the output of a failed attempt, and the output that counts."""
    await submit_file(store, blobs, plan=SLOTTED)
    first = await claim_one(store)
    litter = await output(blobs, first)
    await fail(store, first, BROKEN)
    clock = store.now
    assert isinstance(clock, Clock)
    clock.forward(HOUR / 2)
    second = await claim_one(store)
    kept = await output(blobs, second)
    return await finish(store, second, referring(kept)), litter, kept


async def test_outputs_that_nothing_refers_to_go_and_all_else_stays(
    store: Store, blobs: Blobs, janitor: Janitor
) -> None:
    job, _, kept = await littered(store, blobs)
    [given] = (await store.specs([job.id]))[job.id].inputs
    assert job.has_litter

    await janitor.tick()

    assert await objects(blobs) == [given.file.key, kept]
    assert not (await held(store, job.id)).has_litter
    assert await store.jobs_with_litter(10) == []


async def test_files_published_beside_the_result_stay(store: Store, blobs: Blobs, janitor: Janitor) -> None:
    await submit(store)
    first = await claim_one(store)
    await fail(store, first, BROKEN)
    clock = store.now
    assert isinstance(clock, Clock)
    clock.forward(HOUR / 2)
    second = await claim_one(store)
    beside = await output(blobs, second)
    await finish(store, second, Result(b"1", extra=(Artifact("only/a", Stored(beside, "a", 7, "")),)))

    await janitor.tick()

    assert await objects(blobs) == [beside]


async def test_outputs_of_a_job_that_still_runs_are_left_alone(store: Store, blobs: Blobs, janitor: Janitor) -> None:
    await submit(store, CHAIN)
    first = await claim_one(store)
    litter = await output(blobs, first)
    await fail(store, first, BROKEN)

    await janitor.tick()

    assert await objects(blobs) == [litter]


async def test_an_object_store_that_is_away_leaves_the_job_to_be_tidied_later(
    store: Store, blobs: Blobs, janitor: Janitor, blob_faults: Faults
) -> None:
    job, litter, _ = await littered(store, blobs)
    blob_faults.refuse("delete", lambda: BlobUnavailable(reason="away"))

    with pytest.raises(BlobUnavailable):
        await janitor.tick()
    between = await held(store, job.id)
    await janitor.tick()

    assert between.has_litter
    assert litter not in await objects(blobs)


@pytest.mark.parametrize("when", ["keys", "results", "get"])
async def test_what_a_retry_publishes_while_we_tidy_is_not_deleted(
    store: Store, blobs: Blobs, janitor: Janitor, faults: Faults, blob_faults: Faults, when: str
) -> None:
    job, _, _ = await littered(store, blobs)
    published: list[tuple[Claim, str]] = []

    async def publishes() -> None:
        await retry(store, job.id, "*")
        claimed = await claim_one(store)
        published.append((claimed, await output(blobs, claimed)))

    (blob_faults if when == "keys" else faults).before(when, publishes)
    await janitor.tick()

    [(claimed, key)] = published
    assert (await finish(store, claimed, referring(key))).status is Status.COMPLETED
    assert await content(blobs, key) == b"content"


async def test_the_litter_of_a_run_that_ended_while_we_tidied_is_not_forgotten(
    store: Store, blobs: Blobs, janitor: Janitor, blob_faults: Faults
) -> None:
    job, _, _ = await littered(store, blobs)
    left: list[str] = []

    async def another_run() -> None:
        await retry(store, job.id, "*")
        claimed = await claim_one(store)
        left.append(await output(blobs, claimed))
        await fail(store, claimed)

    blob_faults.after("delete", another_run)
    await janitor.tick()
    between = await held(store, job.id)
    await janitor.tick()

    assert between.has_litter
    assert left[0] not in await objects(blobs)


async def test_outputs_are_tidied_however_many_there_are(
    store: Store, blobs: Blobs, janitor: Janitor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("packhorse.jobs.artifacts.PAGE", 2)
    await submit(store)
    claimed = await claim_one(store)
    for n in range(5):
        await output(blobs, claimed, f"{n}.txt")
    await fail(store, claimed)

    await janitor.tick()

    assert await objects(blobs) == []


async def test_results_that_cannot_be_read_keep_their_outputs_and_hinder_nobody_else(
    store: Store, blobs: Blobs, janitor: Janitor
) -> None:
    corrupt, litter, kept = await littered(store, blobs)
    _, other_litter, other_kept = await littered(store, blobs)
    assert isinstance(store, SqliteStore)
    await write(store, "UPDATE results SET body = 'x' WHERE job_id = ?", corrupt.id)

    with pytest.raises(CorruptRecord):
        await janitor.tick()

    left = await objects(blobs)
    assert {litter, kept, other_kept} < set(left)
    assert other_litter not in left


# Orphans


async def orphan(blobs: Blobs, seconds: float, n: int = 0) -> str:
    """What an upload that became no job at that time has left."""
    return await put(blobs, f"jobs/{id_at(seconds, n)}/input/text.0")


async def test_old_objects_without_a_job_go_and_young_ones_stay(store: Store, blobs: Blobs, janitor: Janitor) -> None:
    await orphan(blobs, EPOCH - ORPHAN - 1.0)
    young = await orphan(blobs, EPOCH - ORPHAN + 1.0)

    await janitor.tick()

    assert await objects(blobs) == [young]


async def test_old_objects_of_a_job_that_is_known_stay(store: Store, blobs: Blobs, janitor: Janitor) -> None:
    old = id_at(EPOCH - 2 * ORPHAN)
    await submit(store, ONE, job_id=old)
    key = await put(blobs, f"jobs/{old}/input/text.0")

    await janitor.tick()

    assert await objects(blobs) == [key]


@pytest.mark.parametrize("name", ["zzz", "0", "lost+found", "0190", "9b2f0000-0000-4000-8000-000000000000"])
async def test_a_folder_whose_name_is_no_job_id_of_ours_is_left_alone(
    blobs: Blobs, janitor: Janitor, name: str
) -> None:
    key = await put(blobs, f"jobs/{name}/input/text.0")

    await janitor.tick()

    assert await objects(blobs) == [key]


async def test_the_sweep_walks_on_from_its_bookmark_page_by_page_and_begins_again(
    store: Store, blobs: Blobs, janitor: Janitor
) -> None:
    for n in range(2 * BATCH + 5):
        await orphan(blobs, EPOCH - 2 * ORPHAN, n)
    young = await orphan(blobs, EPOCH)

    left, bookmarks = [], []
    for _ in range(3):
        await janitor.tick()
        left.append(len(await objects(blobs)))
        bookmarks.append(await get_bookmark(store, SWEEP))
    await orphan(blobs, EPOCH - 3 * ORPHAN)
    await janitor.tick()

    assert left == [BATCH + 6, 6, 1]
    assert bookmarks == [id_at(EPOCH - 2 * ORPHAN, BATCH - 1), id_at(EPOCH - 2 * ORPHAN, 2 * BATCH - 1), ""]
    assert await objects(blobs) == [young]


@pytest.mark.parametrize("strangers", [[], ["00-mine"]])
async def test_a_page_full_of_known_jobs_does_not_hide_what_comes_behind_it(
    store: Store, blobs: Blobs, janitor: Janitor, strangers: list[str]
) -> None:
    for name in strangers:
        await put(blobs, f"jobs/{name}/a")
    known = [id_at(EPOCH - 3 * ORPHAN, n) for n in range(BATCH)]
    for job_id in known:
        await submit(store, ONE, job_id=job_id)
        await put(blobs, f"jobs/{job_id}/input/text.0")
    await orphan(blobs, EPOCH - 2 * ORPHAN)

    await janitor.tick()
    await janitor.tick()

    assert [key.split("/")[1] for key in await objects(blobs)] == [*strangers, *known]


async def test_a_page_full_of_strangers_does_not_hide_what_comes_behind_it(blobs: Blobs, janitor: Janitor) -> None:
    theirs = [await put(blobs, f"jobs/00-mine-{n:03}/a") for n in range(BATCH)]
    await orphan(blobs, EPOCH - 2 * ORPHAN)

    await janitor.tick()
    await janitor.tick()

    assert await objects(blobs) == theirs


async def test_an_orphan_that_cannot_be_deleted_does_not_keep_the_others_from_going(
    blobs: Blobs, janitor: Janitor, blob_faults: Faults
) -> None:
    stuck = await orphan(blobs, EPOCH - 2 * ORPHAN, 0)
    await orphan(blobs, EPOCH - 2 * ORPHAN, 1)
    blob_faults.refuse("delete_all", lambda: BlobUnavailable(reason="broken sector"))

    with pytest.raises(BlobUnavailable):
        await janitor.tick()
    between = await objects(blobs)
    await janitor.tick()

    assert between == [stuck]
    assert await objects(blobs) == []


# Outputs that came late


async def ended_at(store: Store, blobs: Blobs, seconds: float, n: int = 0) -> tuple[Claim, str]:
    """A job of that time that has ended and been tidied, its attempt, and the output that counts."""
    await submit(store, LASTING, job_id=id_at(seconds, n))
    claimed = await claim_one(store)
    kept = await output(blobs, claimed, "kept.txt")
    await finish(store, claimed, referring(kept))
    return claimed, kept


async def late(blobs: Blobs, claimed: Claim) -> str:
    """What a worker publishes that was stopped, taken over, let go on, and killed."""
    return await put(blobs, f"jobs/{claimed.job.id}/output/only/superseded/0.txt")


LASTING = plan(stage("only"), keep={status: 1e6 for status in Status if status.is_terminal})


async def test_what_a_killed_worker_published_after_the_job_was_tidied_goes_in_the_end(
    store: Store, blobs: Blobs, janitor: Janitor, clock: Clock
) -> None:
    claimed, kept = await ended_at(store, blobs, EPOCH)
    given = await put(blobs, f"jobs/{claimed.job.id}/input/text.0")
    await janitor.tick()
    await late(blobs, claimed)

    await janitor.tick()
    young = await objects(blobs)
    clock.forward(ORPHAN + 1.0)
    await janitor.tick()

    assert len(young) == 3
    assert await objects(blobs) == [given, kept]
    assert (await held(store, claimed.job.id)).version == claimed.job.version + 1  # nothing but its end was written


async def test_each_job_is_compared_once_in_a_while_and_none_is_passed_over(
    store: Store, blobs: Blobs, janitor: Janitor, clock: Clock, blob_faults: Faults
) -> None:
    claims = [(await ended_at(store, blobs, EPOCH - 2 * ORPHAN, n))[0] for n in range(COMPARED + 3)]
    for claimed in claims:
        await late(blobs, claimed)

    left = []
    for _ in range(2):
        await janitor.tick()
        left.append(len(await objects(blobs)) - len(claims))
    blob_faults.calls.clear()
    await late(blobs, claims[0])
    await janitor.tick()
    resting = blob_faults.args("keys"), len(await objects(blobs)) - len(claims)
    clock.forward(ORPHAN)
    await janitor.tick()

    assert left == [3, 0]
    assert resting == ([], 1)
    assert len(await objects(blobs)) == len(claims)


async def test_a_check_that_slept_after_it_read_the_clock_does_not_put_off_the_next_one(
    store: Store, blobs: Blobs, clock: Clock
) -> None:
    """It went by a time at which nothing was old yet, so it has checked nothing at the time at which it ends."""
    young, _ = await ended_at(store, blobs, EPOCH)
    litter = await late(blobs, young)

    def sleeping() -> float:
        clock.now = EPOCH + 2 * ORPHAN
        return EPOCH

    await Janitor(store, blobs, Transactor(store), ORPHAN, PERIOD, trusted_now=sleeping).tick()
    assert litter in await objects(blobs)

    await Janitor(store, blobs, Transactor(store), ORPHAN, PERIOD).tick()

    assert litter not in await objects(blobs)


async def test_outputs_of_an_old_job_that_runs_again_are_not_compared(
    store: Store, blobs: Blobs, janitor: Janitor
) -> None:
    claimed, kept = await ended_at(store, blobs, EPOCH - 2 * ORPHAN)
    await retry(store, claimed.job.id, "*")
    again = await claim_one(store)
    unsaid = await output(blobs, again)

    await janitor.tick()

    assert sorted(await objects(blobs)) == sorted([kept, unsaid])


async def test_a_job_that_cannot_be_read_does_not_keep_others_from_being_compared(
    store: SqliteStore, blobs: Blobs, janitor: Janitor
) -> None:
    spoilt, _ = await ended_at(store, blobs, EPOCH - 2 * ORPHAN, 0)
    claimed, _ = await ended_at(store, blobs, EPOCH - 2 * ORPHAN, 1)
    litter = await late(blobs, claimed)
    await write(store, "UPDATE jobs SET state = 'x' WHERE id = ?", spoilt.job.id)

    with pytest.raises(CorruptRecord):
        await janitor.tick()

    assert litter not in await objects(blobs)
    assert (await get_bookmark(store, LAP) or "").startswith(RESTING)


async def test_what_unfinished_uploads_left_behind_is_removed(blobs: Blobs, janitor: Janitor, folder: Path) -> None:
    await put(blobs, "jobs/a/b")
    partial = folder / "objects" / ".partial" / "1-cut-off"
    partial.write_bytes(b"half")
    old = time.time() - ORPHAN - 60.0
    os.utime(partial, (old, old))

    await janitor.tick()

    assert not partial.exists()


async def test_a_webhook_that_ended_a_month_ago_is_forgotten(store: Store, janitor: Janitor, clock: Clock) -> None:
    for id in ("e1", "e2", "e3"):
        await add_endpoint(store, endpoint(id))
    await end_endpoint(store, "e1", clock.now, "gone")
    await end_endpoint(store, "e2", clock.now + 1.0, "gone")
    clock.now += ENDED_KEPT

    await janitor.tick()

    assert [each.id for each in await list_endpoints(store)] == ["e2", "e3"]


async def test_the_feed_of_watchers_is_trimmed(janitor: Janitor, faults: Faults) -> None:
    await janitor.tick()

    assert "trim" in faults.names()


# Parts


@pytest.mark.parametrize("part", ["purgeable", "jobs_with_litter", "existing_ids", "fetch bookmark", "trim"])
async def test_a_part_that_fails_does_not_stop_the_others(
    store: Store, blobs: Blobs, janitor: Janitor, faults: Faults, blob_faults: Faults, part: str
) -> None:
    await blobs.put(f"jobs/{id_at(0.0)}/input/text.0", stream(b"x"))  # an orphan, so that all parts have work
    faults.refuse(part, StoreUnavailable)

    with pytest.raises(StoreUnavailable):
        await janitor.tick()

    parts = ("purgeable", "jobs_with_litter", "existing_ids", "trim", "forget_failures")
    assert [name for name in parts if not faults.args(name)] == []
    assert blob_faults.args("abandon")


async def test_a_key_that_may_not_list_uploads_stops_no_trimming(
    janitor: Janitor, faults: Faults, blob_faults: Faults
) -> None:
    blob_faults.refuse("abandon", lambda: BlobUnavailable(reason="AccessDenied"))

    with pytest.raises(BlobUnavailable):
        await janitor.tick()

    assert faults.args("trim")
    assert faults.args("forget_failures")


async def test_a_lasting_error_is_met_once_per_period(janitor: Janitor, blob_faults: Faults) -> None:
    blob_faults.refuse("abandon", lambda: BlobUnavailable(reason="AccessDenied"))

    with pytest.raises(BlobUnavailable):
        await janitor.tick()

    assert janitor.after_failure == PERIOD


async def test_an_error_does_not_slow_down_a_backlog(
    store: Store, clock: Clock, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("packhorse.background.janitor.BATCH", 2)
    sticky = Sticky(folder)
    for _ in range(3):
        await ended(store, sticky)
    clock.forward(KEEP)
    sticky.stuck = {job.id for job in await store.purgeable(1)}
    janitor = Janitor(store, sticky, Transactor(store), 1000 * HOUR, PERIOD)

    waits = []
    for _ in range(3):
        await ticks(janitor, 1)
        waits.append(janitor.after_failure)

    assert {job.id for job in await jobs(store)} == sticky.stuck
    assert waits == [AFTER_FAILURE, AFTER_FAILURE, PERIOD]
    await sticky.close()


# A clock that jumps


class Guarded:
    """A janitor as a worker has it, the reaper's observations of the clock, and the clock that nobody can set."""

    def __init__(self, store: Store, blobs: Blobs, transact: Transactor, wall: Clock) -> None:
        self.wall = wall
        self.steady = Clock(1_000.0)
        self.clock = SteadyClock(LEASE, self.steady)
        trusted_now = partial(self.clock.now, after=2 * LEASE)
        self.janitor = Janitor(store, blobs, transact, ORPHAN, PERIOD, trusted_now=trusted_now)

    async def over(self, seconds: float) -> None:
        for _ in range(round(seconds / TICK)):
            self.wall.forward(TICK)
            self.steady.forward(TICK)
            self.clock.observe(self.wall())
            await self.janitor.tick()


@pytest.fixture
def guarded(shaky: Store, shaky_blobs: Blobs, transact: Transactor, clock: Clock) -> Guarded:
    return Guarded(shaky, shaky_blobs, transact, clock)


DAYS = 8 * 24 * HOUR


async def much(store: Store, blobs: Blobs) -> None:
    """A job that has ended, and an upload under way."""
    await ended(store, blobs)
    await put(blobs, f"jobs/{id_at(store.now())}/input/text.0")


async def test_one_wrong_read_of_the_clock_deletes_nothing(
    store: Store, blobs: Blobs, guarded: Guarded, clock: Clock, faults: Faults, blob_faults: Faults
) -> None:
    await guarded.over(4 * LEASE)
    await much(store, blobs)
    before = await dump(store), await objects(blobs)
    faults.calls.clear()
    blob_faults.calls.clear()

    clock.forward(DAYS)
    guarded.clock.observe(clock())
    await guarded.janitor.tick()
    clock.forward(-DAYS)
    await guarded.over(TICK)

    assert (await dump(store), await objects(blobs)) == before
    assert not {"trim", "forget_failures"} & set(faults.names())
    assert "abandon" not in blob_faults.names()


async def test_a_clock_that_jumps_after_it_was_observed_deletes_nothing(
    store: Store, blobs: Blobs, guarded: Guarded, clock: Clock
) -> None:
    await guarded.over(4 * LEASE)
    await much(store, blobs)
    before = await dump(store), await objects(blobs)

    clock.forward(DAYS)
    await guarded.janitor.tick()
    clock.forward(-DAYS)

    assert (await dump(store), await objects(blobs)) == before


async def test_a_worker_that_has_just_started_deletes_nothing(
    store: Store, blobs: Blobs, guarded: Guarded, clock: Clock
) -> None:
    await much(store, blobs)
    before = await dump(store), await objects(blobs)
    clock.forward(DAYS)  # as on a machine that has booted with a wrong clock

    await guarded.over(2 * LEASE - TICK)
    clock.forward(-DAYS)

    clock.forward(-2 * LEASE)
    assert (await dump(store), await objects(blobs)) == before


async def test_what_is_old_is_deleted_once_the_clock_has_run_evenly(
    store: Store, blobs: Blobs, guarded: Guarded, clock: Clock
) -> None:
    job = await ended(store, blobs)
    await guarded.over(2 * LEASE)
    clock.forward(DAYS)

    await guarded.over(2 * DOUBT * LEASE)
    before = await held(store, job.id)
    await guarded.over(2 * TICK)

    assert before == job
    assert await store.get([job.id]) == [None]


async def test_a_job_that_its_user_deletes_goes_at_once_whatever_the_clock_does(
    store: Store, blobs: Blobs, guarded: Guarded
) -> None:
    job = await ended(store, blobs)
    await made(store, lifecycle.delete(job, now=store.now()))

    await guarded.janitor.tick()

    assert await store.get([job.id]) == [None]
    assert await objects(blobs) == []


async def test_a_host_whose_own_clock_jumps_deletes_nothing(store: Store, blobs: Blobs, blob_faults: Faults) -> None:
    """Unfinished files in a folder are judged by this host's clock, whatever the store's says."""
    steady, here = Clock(1_000.0), Clock(EPOCH)
    clock = SteadyClock(LEASE, steady, here)
    trusted_now = partial(clock.now, after=2 * LEASE)
    janitor = Janitor(store, wrapped(blobs, blob_faults), Transactor(store), ORPHAN, PERIOD, trusted_now=trusted_now)
    for _ in range(40):
        steady.forward(TICK)
        here.forward(TICK)
        clock.observe(EPOCH + steady() - 1_000.0)
    await janitor.tick()
    here.forward(DAYS)
    blob_faults.calls.clear()

    await janitor.tick()

    assert "abandon" not in blob_faults.names()
