"""Races: handles in threads of their own and a second process, all at once on one state."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from packhorse.core import lifecycle
from packhorse.core.models import Job, TaskId
from packhorse.core.plan import Status, TaskStatus
from packhorse.store.base import Filter, Store
from tests.contract.builders import (
    ONLY,
    SLOT,
    UNKNOWN,
    cancel,
    claim,
    completed,
    held,
    ids,
    job_id,
    settled,
    split,
    submit,
    submit_many,
)
from tests.contract.second_process import LIMIT, between_processes, claim_all, second, submit_all, work
from tests.contract.stores import OpenStore, open_at

FAR = 1_000_000
"""Numbers of jobs from here on are given by hand, where no test has come by counting."""


async def aside(address: str, act: Callable[[Store], Awaitable[Any]]) -> Any:
    """Do it with a handle of its own, in a thread and an event loop of its own."""

    async def alone() -> Any:
        store = await open_at(address)
        try:
            return await act(store)
        finally:
            await store.close()

    return await asyncio.to_thread(asyncio.run, alone())


@between_processes
async def test_another_process_sees_what_was_committed_here(store: Store, address: str) -> None:
    job = await submit(store)
    await claim(store)

    async with second(address, "read", job.id, UNKNOWN) as process:
        answer = await process.answer()

    assert answer == [2, None]


@between_processes
async def test_a_commit_of_another_process_wakes_who_waits_here(store: Store, address: str) -> None:
    mark = await store.wait_for_change(None, 0)

    async with second(address, "submit", FAR, 1) as process:
        woken = asyncio.create_task(store.wait_for_change(mark, 2 * LIMIT))
        await process.answer()
        found = await asyncio.wait_for(woken, LIMIT)

    assert found != mark
    assert (await held(store, job_id(FAR))).version == 1


@between_processes
async def test_two_claimers_never_receive_the_same_attempt(store: Store, address: str) -> None:
    jobs = await submit_many(store, 300)

    async with second(address, "claim", "p", 3) as process:
        claims = await asyncio.gather(
            process.answer(),
            aside(address, lambda store: claim_all(store, "a", 2)),
            aside(address, lambda store: claim_all(store, "b", 5)),
        )

    started = [(id, TaskId(stage, element)) for found in claims for id, stage, element, _ in found]
    assert sorted(started) == [(id, ONLY) for id in ids(jobs)]
    assert len({token for found in claims for *_, token in found}) == 300
    assert {job.version for job in await store.get(ids(jobs)) if job} == {2}


async def test_claimers_that_share_a_handle_never_receive_the_same_attempt(store: Store) -> None:
    jobs = await submit_many(store, 100)

    claims = await asyncio.gather(*(claim_all(store, worker, 3) for worker in "abcd"))

    assert sorted(id for found in claims for id, *_ in found) == ids(jobs)


@between_processes
async def test_of_many_submits_for_one_slot_exactly_one_is_admitted(store: Store, address: str) -> None:
    async with second(address, "submit", FAR, 50) as process:
        answers = await asyncio.gather(
            process.answer(),
            submit_all(store, 2 * FAR, 50),
            aside(address, lambda store: submit_all(store, 3 * FAR, 50)),
            aside(address, lambda store: submit_all(store, 4 * FAR, 50)),
        )

    heard = {id: said for answer in answers for id, said in answer.items()}
    [admitted] = [id for id, said in heard.items() if said == ""]
    assert sorted(heard.values()) == ["", *["slot-taken"] * 199]
    assert await store.holder(SLOT) == admitted
    assert await store.existing_ids(list(heard)) == {admitted}


@between_processes
async def test_of_many_submits_under_one_key_exactly_one_is_admitted(store: Store, address: str) -> None:
    async with second(address, "submit", FAR, 50, "k") as process:
        answers = await asyncio.gather(
            process.answer(),
            submit_all(store, 2 * FAR, 50, "k"),
            aside(address, lambda store: submit_all(store, 3 * FAR, 50, "k")),
        )

    heard = {id: said for answer in answers for id, said in answer.items()}
    [admitted] = [id for id, said in heard.items() if said == ""]
    assert sorted(heard.values()) == ["", *["already-submitted"] * 149]
    assert await store.find_by_key("k") == (admitted, "")
    assert await store.existing_ids(list(heard)) == {admitted}


@between_processes
async def test_two_processes_that_move_one_job_lose_none_of_each_others_steps(store: Store, address: str) -> None:
    job = await split(store, 30)

    async with second(address, "work", job.id, 0, 10) as process:
        steps = await asyncio.gather(
            process.answer(),
            work(store, job.id, 10, 20),
            aside(address, lambda store: work(store, job.id, 20, 30)),
        )

    found = await held(store, job.id)
    assert found.version == job.version + sum(steps)
    assert found.stage("page").status is TaskStatus.COMPLETED
    assert [event.n for event in await store.events(job.id)] == list(range(1, found.events + 1))
    assert len((await store.results([job.id]))[job.id]) == 31
    assert await store.held_by("w", limit=100) == []


async def test_many_who_promote_one_job_lose_none_of_each_others_places(store: Store, address: str) -> None:
    """A promotion has no lease and tells no event: nothing but the version keeps one from undoing another."""
    job = await completed(store)

    async def promote(store: Store, first: int) -> None:
        for n in range(first, first + 20):
            verb = partial(lifecycle.promote, to=f"folder {n}", run=1, now=store.now())
            await settled(store, job.id, verb)

    await asyncio.gather(
        promote(store, 0),
        aside(address, lambda store: promote(store, 20)),
        aside(address, lambda store: promote(store, 40)),
    )

    assert set((await held(store, job.id)).promoted) == {f"folder {n}" for n in range(60)}


@between_processes
async def test_a_watcher_is_told_of_every_job_while_others_submit(store: Store, address: str) -> None:
    cursor, _ = await store.changed_jobs(None)
    told: set[str] = set()
    async with second(address, "submit", FAR, 50, "k") as process:
        busy = asyncio.gather(
            process.answer(),
            aside(address, lambda store: submit_many(store, 100)),
            *(aside(address, lambda store: submit_each(store, 50)) for _ in range(2)),
        )

        while not busy.done():
            cursor, found = await store.changed_jobs(cursor)
            told |= set(ids(await everything(store)) if found is None else found)
            await asyncio.sleep(0)
        await busy
        _, found = await store.changed_jobs(cursor)

    told |= set(found or ())
    assert told == set(ids(await everything(store)))
    assert len(told) == 201


async def everything(store: Store) -> list[Job]:
    return await store.find(Filter(), limit=1000)


async def submit_each(store: Store, count: int) -> None:
    for _ in range(count):
        await submit(store)


async def test_a_cancel_and_a_claim_at_once_leave_no_half_of_either(open_store: OpenStore, address: str) -> None:
    """Whoever comes first: a job is cancelled and nothing of it is leased, or it is leased and asked to stop."""
    store, other = await open_store(), await open_store()
    jobs = await submit_many(store, 60)

    claims, *_ = await asyncio.gather(
        aside(address, lambda store: claim_all(store, "w", 2)), *(cancel(other, job.id) for job in reversed(jobs))
    )

    found = [job for job in await store.get(ids(jobs)) if job]
    leased = {job.id for job, _ in await store.held_by("w", limit=100)}
    assert leased == {id for id, *_ in claims}
    assert {job.id for job in found if job.stopping == "cancel"} == leased
    assert {job.id for job in found if job.status is Status.CANCELLED} == set(ids(jobs)) - leased
    assert await claim(store) == []
