"""What a scheduled job remembers of the run before, on every store."""

from __future__ import annotations

from packhorse.core import schedules
from packhorse.core.models import Job, Result
from packhorse.core.schedules import Schedule
from packhorse.store.base import Store
from packhorse.store.collections import schedules as schedule_records
from packhorse.worker.files import previous_result
from tests.contract.builders import claim_one, fail, finish, marked, submit
from tests.contract.schedules import claimed, created, fired, terms


async def ran(store: Store, schedule: Schedule, result: bytes | None) -> tuple[Schedule, Job]:
    """The next tick of the schedule, run to its end; without a result it fails."""
    moved, run = await claimed(store, schedule, schedule.next_at or 0.0)
    await fired(store, run)
    claim = await claim_one(store)
    return moved, await (fail(store, claim) if result is None else finish(store, claim, Result(result)))


async def due(store: Store, schedule: Schedule) -> Job:
    """The job of the next tick."""
    return await fired(store, (await claimed(store, schedule, schedule.next_at or 0.0))[1])


async def test_a_run_is_told_what_the_last_one_that_went_well_returned(store: Store) -> None:
    schedule = await created(store)
    first = await due(store, schedule)
    before_any = await previous_result(store, first)
    await finish(store, await claim_one(store), Result(b'{"etag":"1"}'))
    found = await schedule_records.get(store, "default", "nightly")
    assert found is not None
    schedule, _ = await ran(store, found, b'{"etag":"2"}')
    schedule, _ = await ran(store, schedule, None)

    told = await previous_result(store, await due(store, schedule))

    assert before_any == b""
    assert told == b'{"etag":"2"}'
    assert await previous_result(store, first) == b""


async def test_an_edit_begins_anew(store: Store) -> None:
    schedule, _ = await ran(store, await created(store), b"1")
    move = schedules.edit(schedule, terms(user="bob"), author="k1", reason="", now=schedule.last_at)
    await schedule_records.move(store, move)

    assert await previous_result(store, await due(store, move.after)) == b""


async def test_what_is_gone_is_not_remembered(store: Store) -> None:
    schedule, job = await ran(store, await created(store), b"1")
    await marked(store, job)
    await store.erase(job.id)

    assert await previous_result(store, await due(store, schedule)) == b""


async def test_a_job_that_somebody_submitted_has_nothing_to_remember(store: Store) -> None:
    assert await previous_result(store, await submit(store)) == b""
