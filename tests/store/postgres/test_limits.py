"""Limits and turns on PostgreSQL: claims count one after the other, and commits do not wait for them."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from packhorse.core.limits import Fair
from packhorse.core.plan import Status
from packhorse.errors import NotAllowed
from packhorse.store.base import Filter, Starter
from packhorse.store.postgres import PostgresStore
from packhorse.store.postgres.starts import Ask, begin
from packhorse.store.rows import Plans
from tests.contract.builders import KINDS, cancel, claim, claim_one, finish, held, ids, plan, stage, submit_many
from tests.contract.limited import at_once, finish_all, limited, submit_for
from tests.store.postgres.inside import Raw, blocks, recorded, somebody_waits_for
from tests.store.postgres.test_jobs import NOBODY, UNTOLD

ONCE = limited(at_once(1))
FEW, MANY = 30, 600


async def test_a_claim_takes_one_statement_while_everything_limited_is_parked(pg: PostgresStore) -> None:
    await submit_many(pg, 3, ONCE)
    assert len(await claim(pg)) == 1
    [free] = await submit_many(pg, 1)

    async with recorded(pg) as recorder:
        found = await claim(pg)

    assert ids([each.job for each in found]) == [free.id]
    assert len(recorder.statements) == 1


async def test_a_claim_looks_at_nothing_that_is_parked(pg: PostgresStore, raw: Raw) -> None:
    async def cost() -> int:
        ask = Ask({"default": 5}, KINDS, Starter(iter("abcde"), "w", 1.0, lambda: 1e10))
        return await blocks(pg, lambda session: begin(session, [ask], NOBODY, Plans(), UNTOLD))

    await submit_many(pg, FEW, ONCE)
    while await claim(pg):
        pass
    small = await cost()
    await submit_many(pg, MANY, ONCE)
    assert await claim(pg) == []
    await raw.execute("VACUUM waiting, news, lanes")  # as the server does by itself, sooner or later

    assert await cost() <= 1.2 * small + 2


async def test_a_commit_does_not_wait_for_a_claim_that_counts(pg: PostgresStore, raw: Raw) -> None:
    await submit_many(pg, 2, ONCE)
    first = await claim_one(pg)
    rival = raw.transaction()
    await rival.start()
    await raw.execute("SELECT FROM regulator FOR UPDATE")

    await finish(pg, first)
    await submit_many(pg, 1, ONCE)

    assert (await held(pg, first.job.id)).status is Status.COMPLETED
    await rival.rollback()
    assert len(await claim(pg)) == 1


async def test_a_claim_counts_when_the_one_before_has_counted(pg: PostgresStore, raw: Raw) -> None:
    await submit_many(pg, 2, ONCE)
    rival = raw.transaction()
    await rival.start()
    await raw.execute("SELECT FROM regulator FOR UPDATE")

    waiting = asyncio.create_task(claim(pg))
    await somebody_waits_for(raw)
    await rival.rollback()

    assert len(await waiting) == 1


async def test_claims_cancels_and_ends_that_meet_neither_exceed_a_limit_nor_lose_a_task(
    url: str, pg: PostgresStore
) -> None:
    stores = [await PostgresStore.open(url) for _ in range(3)]
    gpu = plan(stage("only", limits=(at_once(2, "", "gpu"), at_once(1)), fair=Fair("user")))
    await submit_for(pg, gpu, [f"u{n % 5}" for n in range(60)])
    jobs = await pg.find(Filter(), limit=100)

    async def are_all_over() -> bool:
        return all(job is not None and job.status.is_terminal for job in await pg.get(ids(jobs)))

    async def work(store: PostgresStore) -> None:
        while not await are_all_over():
            claims = await claim(store, 3)
            [state] = await store.limit_states(["gpu"])
            assert state.used <= 2
            await finish_all(store, claims)

    async def disturb() -> None:
        for job in jobs[::4]:
            with suppress(NotAllowed):  # it has completed
                await cancel(pg, job.id)

    async with asyncio.timeout(60):
        await asyncio.gather(*(work(each) for each in stores), disturb())

    assert await pg.limit_states() == []
    for each in stores:
        await each.close()


async def test_a_task_that_an_older_packhorse_has_made_due_is_limited(pg: PostgresStore, raw: Raw) -> None:
    """It knows no limits, and makes a delayed task due like any other."""
    jobs = await submit_many(pg, 2, ONCE)
    await raw.execute(
        "WITH moved AS (DELETE FROM waiting RETURNING *) "
        "INSERT INTO due SELECT queue, kind, rank, job_id, stage, element FROM moved"
    )

    assert await claim(pg) == []  # now they wait as they should
    assert ids([each.job for each in await claim(pg)]) == [jobs[0].id]
    assert await claim(pg) == []


async def test_a_task_of_a_newer_packhorse_stays_and_holds_nothing(pg: PostgresStore, raw: Raw) -> None:
    newer, mine = await submit_many(pg, 2, ONCE)
    state = await raw.fetchval("SELECT state FROM jobs WHERE id = $1", newer.id)
    await raw.execute("UPDATE jobs SET state = $1 WHERE id = $2", state.replace(b"[3,", b"[9,"), newer.id)

    found = await claim(pg)
    again = await claim(pg)

    assert ids([each.job for each in [*found, *again]]) == [mine.id]
    await finish_all(pg, [*found, *again])
    await raw.execute("UPDATE jobs SET state = $1 WHERE id = $2", state, newer.id)
    assert ids([each.job for each in await claim(pg)]) == [newer.id]


async def test_a_task_whose_job_was_deleted_by_hand_is_forgotten(pg: PostgresStore, raw: Raw) -> None:
    gone, left = await submit_many(pg, 2, ONCE)
    await raw.execute("DELETE FROM jobs WHERE id = $1", gone.id)

    assert ids([each.job for each in await claim(pg)]) == [left.id]
    assert await raw.fetchval("SELECT count(*) FROM waiting") == 0
