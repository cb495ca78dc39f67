"""A submit that replaces others: the last one wins, whoever dies on the way."""

from __future__ import annotations

import asyncio

import pytest
from msgspec.structs import replace

from packhorse import crashpoints
from packhorse.background.replacements import Replacements
from packhorse.blobs.base import Blobs
from packhorse.core import lifecycle
from packhorse.core.models import Job
from packhorse.core.plan import Plan, Status
from packhorse.define.submit import Options
from packhorse.errors import JobNotFound
from packhorse.jobs.submit import NewJob, replace_others
from packhorse.jobs.transact import Transactor
from packhorse.settings import Settings
from packhorse.store.base import Store
from packhorse.store.collections.replacements import LANE, REPLACEMENT, Replacement
from tests.contract.builders import ONE, SLOT, SLOTTED, claim, claim_one, finish, held, words
from tests.contract.stores import Clock

LATEST = replace(SLOTTED, on_conflict="replace", fingerprint="replace-1")


class Died(BaseException):
    pass


async def submit(store: Store, blobs: Blobs, plan: Plan = LATEST, **options: object) -> Job:
    async with NewJob(store, blobs, Settings()) as new_job:
        return await new_job.admit(plan, b"{}", Options(**{"user": "ann", **options}))  # type: ignore[arg-type]


async def submit_and_die(
    store: Store, blobs: Blobs, monkeypatch: pytest.MonkeyPatch, plan: Plan = LATEST, **options: object
) -> None:
    def die(point: str, _by: object) -> None:
        if point == "admit.replace.before":
            raise Died

    with monkeypatch.context() as patch:
        patch.setattr(crashpoints, "hook", die)
        with pytest.raises(Died):
            await submit(store, blobs, plan, **options)


async def later(store: Store, clock: Clock) -> None:
    """A worker looks after the submitter has had its time."""
    clock.forward(10.0)
    await Replacements(store).tick()


async def test_a_waiting_job_is_replaced_at_once(store: Store, blobs: Blobs) -> None:
    first = await submit(store, blobs)
    second = await submit(store, blobs)

    assert (await held(store, first.id)).status is Status.CANCELLED
    assert await store.line(SLOT, limit=9) == [second.id]
    assert (await claim_one(store)).job.id == second.id
    [event] = [event for event in await store.events(first.id) if event.type == "replaced"]
    assert event.data == {"by": second.id}


async def test_a_running_job_is_replaced_when_it_has_stopped(store: Store, blobs: Blobs) -> None:
    await submit(store, blobs)
    claimed = await claim_one(store)
    second = await submit(store, blobs)

    assert (await held(store, claimed.job.id)).stopping == "cancel"
    assert await claim(store) == []
    await finish(store, claimed)
    assert (await claim_one(store)).job.id == second.id


async def test_of_many_submits_only_the_last_one_is_left(store: Store, blobs: Blobs) -> None:
    await submit(store, blobs)
    claimed = await claim_one(store)

    jobs = await asyncio.gather(*(submit(store, blobs) for _ in range(5)))

    [holder, last] = await store.line(SLOT, limit=9)
    assert holder == claimed.job.id
    statuses = {job.id: (await held(store, job.id)).status for job in jobs}
    assert statuses.pop(last) is Status.PENDING
    assert {*statuses.values()} == {Status.CANCELLED}


async def test_the_first_submit_of_a_user_replaces_nobody(store: Store, blobs: Blobs) -> None:
    job = await submit(store, blobs)
    other = await submit(store, blobs, user="bob")

    assert [(await held(store, each.id)).status for each in (job, other)] == [Status.PENDING] * 2
    assert await store.fetch(REPLACEMENT, [job.id, other.id]) == [None, None]


async def test_a_repeated_key_replaces_nobody(store: Store, blobs: Blobs) -> None:
    first = await submit(store, blobs, key="k")
    second = await submit(store, blobs)
    again = await submit(store, blobs, key="k")

    assert again.id == first.id
    assert (await held(store, second.id)).status is Status.PENDING


async def test_a_worker_replaces_for_a_submitter_that_died(
    store: Store, blobs: Blobs, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = await submit(store, blobs)
    await submit_and_die(store, blobs, monkeypatch)

    assert (await held(store, first.id)).status is Status.PENDING
    await later(store, clock)

    assert (await held(store, first.id)).status is Status.CANCELLED
    [second] = await store.line(SLOT, limit=9)
    assert second != first.id
    assert await store.take(REPLACEMENT, LANE, 9, 0.0) == []


async def test_a_worker_that_comes_late_ends_nobody_who_was_submitted_after(
    store: Store, blobs: Blobs, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    await submit_and_die(store, blobs, monkeypatch)
    claimed = await claim_one(store)
    await finish(store, claimed)
    active = await submit(store, blobs)

    await later(store, clock)

    assert (await held(store, active.id)).status is Status.PENDING
    assert await words(store, active.id) == ["submitted"]


async def test_a_long_line_is_read_to_its_end(store: Store, blobs: Blobs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("packhorse.jobs.submit.PAGE", 2)
    queue = replace(SLOTTED, on_conflict="queue", fingerprint="queue-1")
    jobs = [await submit(store, blobs, queue) for _ in range(7)]

    last = await submit(store, blobs)

    assert await store.line(SLOT, limit=9) == [last.id]
    assert {(await held(store, job.id)).status for job in jobs} == {Status.CANCELLED}


async def test_what_has_ended_meanwhile_is_left(store: Store, blobs: Blobs) -> None:
    first = await submit(store, blobs)
    await finish(store, await claim_one(store))
    second = await submit(store, blobs)

    await replace_others(store, Replacement(second.id, slot=SLOT))

    assert (await held(store, first.id)).status is Status.COMPLETED
    assert (await held(store, second.id)).status is Status.PENDING


async def test_a_debounced_submit_that_died_leaves_one_job(
    store: Store, blobs: Blobs, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = {"key": "k", "debounce": 3600.0}
    first = await submit(store, blobs, ONE, **options)
    await submit_and_die(store, blobs, monkeypatch, ONE, **options)

    await later(store, clock)

    # Deleted: the janitor erases it.
    assert (await held(store, first.id)).is_purging
    with pytest.raises(JobNotFound):
        await Transactor(store)(first.id, lambda job: lifecycle.retry(job, now=store.now()))
