"""Records nobody can read, the feed that is trimmed, and how much is read for an answer."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from packhorse.core.models import Job
from packhorse.core.plan import DEFAULT_KEEP, Status
from packhorse.errors import CorruptRecord, LeaseLost, SchemaTooNew
from packhorse.store.base import Filter
from packhorse.store.sqlite import SqliteStore, claim, reads
from packhorse.store.sqlite import store as sqlite_store
from packhorse.store.sqlite.connection import Session, connect
from tests.contract.builders import (
    CHAIN,
    HOUR,
    KINDS,
    cancel,
    claim_one,
    failed,
    finish,
    finishing,
    held,
    ids,
    refused,
    started,
    submit,
    submit_many,
)
from tests.contract.builders import claim as claim_all
from tests.contract.stores import Clock
from tests.store.sqlite.inside import call, write

SPOIL = "UPDATE jobs SET state = ? WHERE id = ?"
GARBAGE = [b"", b"\x00\xff", b'[1,1,1,null,null,[[[["\xff"]]]]]', b'{"v":1}', b"[1,1,1,null,null,[]]"]


async def spoil(store: SqliteStore, job: Job) -> None:
    await write(store, SPOIL, b"\x00", job.id)


# records nobody can read


@pytest.mark.parametrize("state", GARBAGE)
async def test_a_state_that_cannot_be_read_is_told_with_its_job(store: SqliteStore, state: bytes) -> None:
    job = await submit(store)
    await write(store, SPOIL, state, job.id)

    with pytest.raises(CorruptRecord) as error:
        await store.get([job.id])

    assert (error.value.facts["what"], error.value.facts["job_id"]) == ("state", job.id)


async def test_a_list_goes_round_what_cannot_be_read_and_does_not_end_early(store: SqliteStore) -> None:
    jobs = await submit_many(store, 6)
    for job in (jobs[1], jobs[4]):
        await spoil(store, job)

    first = await store.find(Filter(), limit=3)
    rest = await store.find(Filter(), before=first[-1].id, limit=3)

    assert ids(first) == [jobs[5].id, jobs[3].id, jobs[2].id]
    assert ids(rest) == [jobs[0].id]


async def test_a_state_of_a_newer_packhorse_is_not_half_understood(store: SqliteStore) -> None:
    job = await submit(store)
    await write(store, "UPDATE jobs SET state = replace(CAST(state AS TEXT), '[2,', '[9,') WHERE id = ?", job.id)

    with pytest.raises(SchemaTooNew):
        await store.get([job.id])


async def test_a_job_of_a_newer_packhorse_is_left_in_its_queue_for_a_newer_worker(store: SqliteStore) -> None:
    job = await submit(store)
    await write(store, "UPDATE jobs SET state = replace(CAST(state AS TEXT), '[2,', '[9,') WHERE id = ?", job.id)

    claims = await claim_all(store)

    assert claims == []
    await write(store, "UPDATE jobs SET state = replace(CAST(state AS TEXT), '[9,', '[2,') WHERE id = ?", job.id)
    assert [claimed.job.id for claimed in await claim_all(store)] == [job.id]


async def test_a_claim_looks_past_so_many_of_a_newer_packhorse(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(claim, "PASSED", 3)
    *newer, last = await submit_many(store, 4)
    for job in newer:
        await write(store, "UPDATE jobs SET state = replace(CAST(state AS TEXT), '[2,', '[9,') WHERE id = ?", job.id)

    assert await claim_all(store) == []
    monkeypatch.setattr(claim, "PASSED", 4)
    assert [claimed.job.id for claimed in await claim_all(store, 1)] == [last.id]


async def test_a_finish_whose_lease_is_another_s_is_refused_whatever_the_version_says(store: SqliteStore) -> None:
    claimed = await started(store)
    await write(store, "UPDATE leases SET token = 'another' WHERE job_id = ?", claimed.job.id)

    error = await refused(store, finishing(claimed, now=store.now()))

    assert isinstance(error, LeaseLost)
    assert await held(store, claimed.job.id) == claimed.job


async def test_jobs_of_a_newer_packhorse_do_not_hide_those_behind_them(store: SqliteStore) -> None:
    first, second, third, fourth = await submit_many(store, 4)
    for job in (first, third):
        await write(store, "UPDATE jobs SET state = replace(CAST(state AS TEXT), '[2,', '[9,') WHERE id = ?", job.id)

    claims = [await claim_all(store, 1), await claim_all(store, 1), await claim_all(store, 1)]

    assert [[claimed.job.id for claimed in found] for found in claims] == [[second.id], [fourth.id], []]


@pytest.mark.parametrize(
    ("what", "spoiling"),
    {
        "state": "UPDATE jobs SET state = X'00' WHERE id = ?",
        "plan": "UPDATE plans SET body = X'00' WHERE fingerprint = (SELECT plan FROM jobs WHERE id = ?)",
        "missing plan": "DELETE FROM plans WHERE fingerprint = (SELECT plan FROM jobs WHERE id = ?)",
    }.items(),
)
async def test_a_job_that_cannot_be_read_does_not_stop_those_behind_it(
    path: Path, store: SqliteStore, what: str, spoiling: str
) -> None:
    await submit(store, CHAIN, priority=9)
    spoiled = await finish(store, await claim_one(store))
    job = await submit(store)
    await write(store, spoiling, spoiled.id)
    elsewhere = await SqliteStore.open(path)  # one that has not read the plan before

    claims = await claim_all(elsewhere)

    assert [claimed.job.id for claimed in claims] == [job.id]
    assert await store.held_by("w", limit=10) == [(claims[0].job, claims[0].task)]
    await elsewhere.close()


@pytest.mark.parametrize(
    ("what", "spoiling"),
    {
        "spec": "UPDATE specs SET body = X'00' WHERE job_id = ?",
        "spec of": "DELETE FROM specs WHERE job_id = ?",
        "result": "UPDATE results SET body = X'00' WHERE job_id = ?",
    }.items(),
)
async def test_a_task_that_lacks_what_it_needs_is_handed_out_with_its_trouble(
    store: SqliteStore, what: str, spoiling: str
) -> None:
    await submit(store, CHAIN, priority=9)
    spoiled = await finish(store, await claim_one(store))
    job = await submit(store)
    await write(store, spoiling, spoiled.id)

    claims = await claim_all(store)

    assert [claimed.job.id for claimed in claims] == [spoiled.id, job.id]
    assert what in str(claims[0].trouble)
    assert claims[1].trouble is None


async def test_sweeps_go_round_a_job_that_cannot_be_read(store: SqliteStore, clock: Clock) -> None:
    first = [await started(store) for _ in range(3)]
    last = await started(store)
    for claimed in first:
        await spoil(store, claimed.job)

    clock.forward(HOUR)

    assert (await store.overdue(limit=1)).tasks == [(last.job, last.task)]
    assert await store.held_by("w", limit=1) == [(last.job, last.task)]
    assert await store.expired(limit=1) == [last.job]


async def test_upkeep_goes_round_a_job_that_cannot_be_read(store: SqliteStore, clock: Clock) -> None:
    spoiled, last = await failed(store), await failed(store)
    await spoil(store, spoiled)

    clock.forward(DEFAULT_KEEP)

    assert await store.purgeable(limit=1) == [last]
    assert await store.jobs_with_litter(limit=1) == [last]


# the feed: a row for each transaction


async def submit_one_by_one(store: SqliteStore, n: int) -> list[Job]:
    return [await submit(store) for _ in range(n)]


async def test_what_is_committed_together_is_announced_together(store: SqliteStore) -> None:
    jobs = await submit_many(store, 3)

    assert await store.changed_jobs(0) == (1, set(ids(jobs)))


async def test_the_feed_is_trimmed_from_the_front(store: SqliteStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite_store, "FEED", 5)
    await submit_one_by_one(store, 20)

    await store.trim()

    assert await store._read(lambda db: db.execute("SELECT count(*), max(seq) FROM feed").fetchall()) == [(5, 20)]


async def test_a_watcher_behind_what_was_trimmed_is_told_to_look_at_everything(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite_store, "FEED", 5)
    start, _ = await store.changed_jobs(None)
    jobs = await submit_one_by_one(store, 20)
    await store.trim()

    found = {since: await store.changed_jobs(since) for since in (start, start + 14, start + 15, start + 20)}

    assert found == {
        start: (20, None),
        start + 14: (20, None),
        start + 15: (20, set(ids(jobs[15:]))),
        start + 20: (20, set()),
    }


async def test_the_feed_goes_on_counting_after_it_was_trimmed(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite_store, "FEED", 1)
    await submit_one_by_one(store, 3)
    await store.trim()
    cursor, _ = await store.changed_jobs(None)

    job = await submit(store)

    assert await store.changed_jobs(cursor) == (cursor + 1, {job.id})


async def test_a_watcher_far_behind_is_told_to_look_at_everything(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite_store, "MANY", 5)
    await submit_one_by_one(store, 20)

    assert await store.changed_jobs(14) == (20, None)
    assert (await store.changed_jobs(15))[1] is not None


async def test_trimming_a_short_feed_is_nothing(store: SqliteStore) -> None:
    await store.trim()
    job = await submit(store)

    await store.trim()

    assert await store.changed_jobs(0) == (1, {job.id})


# one snapshot


async def test_a_job_that_changes_its_status_during_a_listing_is_listed_once(
    store: SqliteStore, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = await submit(store)
    rival, bounded, walks = connect(path), reads._bounded, itertools.count(1)

    def moving(*facts: Any) -> Any:
        if next(walks) == 2:  # the pending have been walked, the running have not
            rival.execute("UPDATE jobs SET status = 'running'")
        return bounded(*facts)

    monkeypatch.setattr(reads, "_bounded", moving)

    found = await store.find(Filter("default"))

    assert ids(found) == [job.id]
    rival.close()


# how much is read

FEW, MANY = 30, 900
FILTERS = [
    Filter(),
    Filter("default"),
    Filter("default", "ann"),
    Filter(user="ann"),
    Filter(status=Status.PENDING),
    Filter("default", status=Status.PENDING, pipeline="convert"),
    Filter(pipeline="convert"),
    Filter("default", "ann", Status.COMPLETED),
    Filter(created_until=1.0),
    Filter("default", created_from=4e9),
]


Question = Callable[[SqliteStore, Session], object]


def steps(store: SqliteStore, question: Question) -> int:
    """How much work SQLite has with it: instructions of its machine, give or take ten."""
    db = connect(store.path)
    counted = 0

    def count() -> bool:
        nonlocal counted
        counted += 10
        return False

    db.set_progress_handler(count, 10)
    with patch.object(store, "now", lambda: 1e12):  # the time of everything is over
        question(store, db)
    db.close()
    return counted


def _claims(store: SqliteStore, db: Session) -> None:
    db.begin()
    call(store.claim, db, {"default": 5}, KINDS, lambda _job, _at: None)


QUESTIONS: dict[str, Question] = {
    **{
        f"find {filter}": lambda store, db, filter=filter: call(store.find, db, filter, limit=5)  # type: ignore[misc]
        for filter in FILTERS
    },
    "claim": _claims,
    "expired": lambda store, db: call(store.expired, db, 5),
    "changed_jobs": lambda store, db: call(store.changed_jobs, db, 0),
}


@pytest.mark.parametrize("question", QUESTIONS.values(), ids=QUESTIONS)
async def test_a_small_answer_from_a_big_store_costs_what_it_costs_from_a_small_one(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch, question: Question
) -> None:
    monkeypatch.setattr(sqlite_store, "MANY", 10)
    await submit_many(store, FEW)
    small = steps(store, question)

    await submit_many(store, MANY)

    assert steps(store, question) < 2 * small + 100


async def test_sweeps_of_ended_jobs_cost_the_same_in_a_big_store(store: SqliteStore) -> None:
    def sweep(store: SqliteStore, db: Session) -> None:
        call(store.purgeable, db, 5)
        call(store.jobs_with_litter, db, 5)

    for job in await submit_many(store, FEW):
        await cancel(store, job.id)
    small = steps(store, sweep)

    for job in await submit_many(store, 10 * FEW):
        await cancel(store, job.id)

    assert steps(store, sweep) < 2 * small + 100
