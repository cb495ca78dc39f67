"""Starts that were prepared at submit: one statement makes them as the lifecycle would."""

from __future__ import annotations

import itertools
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from msgspec.structs import replace

from packhorse.core import lifecycle
from packhorse.core.changes import Change
from packhorse.core.models import Job
from packhorse.core.plan import Plan, Status
from packhorse.store.base import Claim, Starter
from packhorse.store.postgres import PostgresStore, claim
from tests.contract.builders import (
    CHAIN,
    HOUR,
    KINDS,
    LEASE,
    ONE,
    ONLY,
    SLOTTED,
    cancel,
    finishing,
    held,
    ids,
    job_id,
    made,
    plan,
    settled,
    stage,
    submit,
    submit_many,
    waiting,
)
from tests.contract.stores import Clock
from tests.servers import postgres
from tests.store.postgres.inside import Raw, connected, recorded

BRIEF = plan(stage("only"), run_timeout=60.1)
PARALLEL = plan(stage("left"), stage("right"))
LONG = plan(stage("only"), run_timeout=2 * HOUR)


class Side:
    """A store, and a worker whose tokens are the same in every store."""

    def __init__(self, store: PostgresStore, clock: Clock, *, decides: bool = False, worker: str = "w") -> None:
        self.store = store
        self.clock = clock
        self._starter = Starter((f"token-{n}" for n in itertools.count()), worker, LEASE, store.now)
        self._decides = decides

    async def claim(self, most: int = 10) -> list[Claim]:
        start = (lambda job, at: self._starter(job, at)) if self._decides else self._starter
        return await self.store.claim({"default": most}, KINDS, start)

    async def submit(self, plan: Plan = ONE, **options: Any) -> Job:
        return await submit(self.store, plan, job_id=job_id(1), **options)


SITUATIONS: dict[str, Callable[[Side], Awaitable[object]]] = {
    "new": lambda side: side.submit(),
    "in a slot, of another tenant": lambda side: side.submit(SLOTTED, user="a/b", tenant="ü", priority=3),
    "brief": lambda side: side.submit(BRIEF),
    "with a limit past the deadline": lambda side: side.submit(LONG),
    "first of a chain": lambda side: side.submit(CHAIN),
}

TABLES = {
    "jobs": "lineage, state",
    "due": "start",
    "delayed": "queued_at",
    "leases": "",
    "events": "",
    "specs": "",
    "slots": "",
    "results": "",
}
"""What is compared, and the columns that are not."""


async def content(url: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    async with connected(url) as raw:
        for table, left_out in TABLES.items():
            rows = await raw.fetch(f"SELECT * FROM {table}")
            found[table] = sorted(
                [{k: v for k, v in row.items() if k not in left_out.split(", ")} for row in rows], key=repr
            )
    return found


def forbid(monkeypatch: pytest.MonkeyPatch) -> None:
    async def decide(*_: Any, **__: Any) -> Any:
        raise AssertionError("the claim was decided by the caller")

    monkeypatch.setattr(claim, "claim_all", decide)


@pytest.mark.parametrize("situation", SITUATIONS.values(), ids=SITUATIONS)
async def test_a_prepared_start_leaves_what_the_lifecycle_would_have_left(
    monkeypatch: pytest.MonkeyPatch, situation: Callable[[Side], Awaitable[Any]]
) -> None:
    claims, contents, jobs = [], [], []
    for decides in (True, False):
        clock, url = Clock(1_800_000_000.5), postgres.server().url()
        store = await PostgresStore.open(url, clock)
        side = Side(store, clock, decides=decides, worker='a "worker"')
        await situation(side)
        clock.forward(7.3)
        with monkeypatch.context() as patch:
            if not decides:
                forbid(patch)
            [claimed] = await side.claim()
        assert await held(store, claimed.job.id) == claimed.job
        jobs.append([replace(claimed.job, lineage=0), await store.events(claimed.job.id)])
        claims.append(replace(claimed, job=jobs[-1][0]))
        contents.append(await content(url))
        await store.close()

    assert claims[1] == claims[0]
    assert jobs[1] == jobs[0]
    assert contents[1] == contents[0]


async def test_two_histories_that_start_a_job_differ(timed: PostgresStore, clock: Clock) -> None:
    job = await Side(timed, clock).submit()
    [claimed] = await Side(timed, clock).claim()

    assert claimed.job.lineage not in {job.lineage, 0}


async def test_a_batch_is_claimed_and_started_by_one_statement(
    timed: PostgresStore, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = await submit_many(timed, 20)
    side = Side(timed, clock)
    forbid(monkeypatch)

    async with recorded(timed) as recorder:
        claims = await side.claim(15)

    assert [claimed.job.id for claimed in claims] == ids(jobs)[:15]
    assert len(recorder.statements) == 1
    assert len({claimed.token for claimed in claims}) == 15


async def test_a_started_task_is_finished_like_any_other(timed: PostgresStore, clock: Clock) -> None:
    side = Side(timed, clock)
    await side.submit()
    [claimed] = await side.claim()

    job = await made(timed, finishing(claimed, now=clock()))

    assert job.status is Status.COMPLETED
    assert await held(timed, job.id) == job


async def test_a_job_that_has_changed_since_is_decided_as_it_is(timed: PostgresStore, clock: Clock) -> None:
    job = await submit(timed)
    await settled(timed, job.id, lambda job: Change(job, replace(job, version=job.version + 1, revived=7)))

    [claimed] = await Side(timed, clock).claim()

    assert claimed.job == await held(timed, job.id)
    assert claimed.job.revived == 7


async def test_a_cancelled_job_is_not_started(timed: PostgresStore, clock: Clock) -> None:
    job = await submit(timed)
    await cancel(timed, job.id)

    assert await Side(timed, clock).claim() == []


async def test_prepared_and_other_starts_come_in_the_order_of_urgency(timed: PostgresStore, clock: Clock) -> None:
    mixed = [await submit(timed, PARALLEL if n % 2 else ONE, priority=-n) for n in range(4)]

    claims = await Side(timed, clock).claim()

    assert [claimed.job.id for claimed in claims] == [mixed[n].id for n in (0, 1, 1, 2, 3, 3)]
    for claimed in claims:
        assert claimed.job == await held(timed, claimed.job.id)


async def test_a_delayed_job_that_is_more_urgent_comes_first(timed: PostgresStore, clock: Clock) -> None:
    await submit(timed)
    urgent = await submit(timed, priority=9, delay=60.0)
    clock.forward(61.0)

    [claimed] = await Side(timed, clock).claim(1)

    assert claimed.job.id == urgent.id


async def test_a_state_that_was_damaged_is_not_replaced(timed: PostgresStore, clock: Clock, url: str) -> None:
    job = await submit(timed)
    async with connected(url) as raw:
        state = await raw.fetchval("SELECT state FROM jobs")
        newer = state.replace(b"[2,", b"[9,")
        await raw.execute("UPDATE jobs SET state = $1", newer)

        assert await Side(timed, clock).claim() == []
        assert await raw.fetchval("SELECT state FROM jobs") == newer

        await raw.execute("UPDATE jobs SET state = $1", state)
    assert await waiting(timed) == [(job.id, ONLY)]


@pytest.mark.parametrize("start", ["nonsense", "999\nx", ""])
async def test_a_start_that_cannot_be_read_stops_nobody(
    timed: PostgresStore, clock: Clock, url: str, start: str
) -> None:
    jobs = await submit_many(timed, 3)
    async with connected(url) as raw:
        await raw.execute("UPDATE due SET start = $1 WHERE job_id = $2", start, jobs[1].id)

    claims = await Side(timed, clock).claim()

    assert [claimed.job.id for claimed in claims] == ids(jobs)


async def test_what_was_deleted_by_hand_is_not_started(timed: PostgresStore, clock: Clock, url: str) -> None:
    jobs = await submit_many(timed, 2)
    async with connected(url) as raw:
        await raw.execute("DELETE FROM due WHERE job_id = $1", jobs[0].id)
        await raw.execute("DELETE FROM jobs WHERE id = $1", jobs[1].id)

    assert await Side(timed, clock).claim() == []


@pytest.mark.parametrize("table", ["jobs", "due"])
async def test_prepared_starts_pass_by_what_somebody_else_has_locked(
    timed: PostgresStore, clock: Clock, raw_timed: Raw, monkeypatch: pytest.MonkeyPatch, table: str
) -> None:
    jobs = await submit_many(timed, 3)
    forbid(monkeypatch)
    rival = raw_timed.transaction()
    await rival.start()
    key = "id" if table == "jobs" else "job_id"
    await raw_timed.execute(f"SELECT FROM {table} WHERE {key} = $1 FOR UPDATE", jobs[0].id)

    claims = await Side(timed, clock).claim(2)

    assert [claimed.job.id for claimed in claims] == ids(jobs)[1:]
    await rival.rollback()


async def test_a_token_that_was_not_used_is_used_next_time(timed: PostgresStore, clock: Clock) -> None:
    side = Side(timed, clock)
    tokens = []
    for n in range(3):
        await submit(timed, job_id=job_id(n + 1))
        tokens += [claimed.token for claimed in await side.claim()]

    assert sorted(tokens) == ["token-0", "token-1", "token-2"]


async def test_tokens_of_any_text_start_tasks(timed: PostgresStore) -> None:
    await submit(timed)
    odd = Starter(iter(['a "b"', "ü"]), "w", LEASE, timed.now)

    [claimed] = await timed.claim({"default": 2}, KINDS, odd)

    assert claimed.token == 'a "b"'
    assert claimed.job == await held(timed, claimed.job.id)


async def test_a_claim_that_finds_nothing_writes_nothing(timed: PostgresStore, clock: Clock, raw_timed: Raw) -> None:
    async with recorded(timed) as recorder:
        assert await Side(timed, clock).claim() == []

    assert len(recorder.statements) == 1
    assert await raw_timed.fetchval("SELECT count(*) FROM feed") == 0


async def test_a_start_is_prepared_once_per_plan(timed: PostgresStore, monkeypatch: pytest.MonkeyPatch) -> None:
    fresh = plan(stage("only"), pipeline="seen-by-nobody-before")
    await submit(timed, fresh)
    monkeypatch.setattr(lifecycle, "prepare", None)

    await submit(timed, fresh)

    assert len(await waiting(timed)) == 2


@pytest.fixture
async def raw_timed(url: str, timed: PostgresStore) -> Any:
    async with connected(url) as connection:
        yield connection
