"""Commits that meet: groups, locks, and members that the server will not take."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import asyncpg
import pytest
from msgspec.structs import replace

from packhorse.core import lifecycle
from packhorse.core.changes import Change
from packhorse.core.models import Spec
from packhorse.core.plan import Status
from packhorse.errors import AlreadySubmitted, Conflict, CorruptRecord, LeaseLost, SlotTaken, StoreError
from packhorse.store.postgres import PostgresStore
from packhorse.store.postgres.connection import Connections, Session
from tests.contract.builders import (
    APART,
    HOPELESS,
    LEASE,
    ONLY,
    RESULT,
    SLOT,
    SLOTTED,
    cancel,
    claim,
    claim_one,
    completed,
    dump,
    failed,
    finish,
    finishing,
    held,
    ids,
    lease_of,
    line,
    marked,
    offered,
    report,
    started,
    submission,
    submit,
    submit_many,
    sure,
    waiting,
)
from tests.store.postgres.inside import Raw, recorded, somebody_waits_for

TOO_URGENT = 2**40
"""A priority that no column takes: the driver finds out, after all has been gathered."""
TOO_LONG = "x" * 100_000
"""A name that no index takes, if it cannot be packed: the server finds out."""


def unwritable(**options: Any) -> Change:
    return submission(SLOTTED, now=1.0, priority=TOO_URGENT, **options)


# groups


async def counted(store: PostgresStore, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """A list that grows by one with every transaction from now on."""
    begun: list[int] = []
    transaction = Connections.transaction

    def counting(self: Connections) -> Any:
        begun.append(1)
        return transaction(self)

    monkeypatch.setattr(Connections, "transaction", counting)
    return begun


async def test_what_waits_together_is_one_transaction(pg: PostgresStore, monkeypatch: pytest.MonkeyPatch) -> None:
    begun = await counted(pg, monkeypatch)

    outcomes = await asyncio.gather(*(pg.commit([submission(now=1.0)]) for _ in range(50)))

    assert outcomes == [[None]] * 50
    assert len(begun) <= 2


async def test_a_commit_of_many_takes_as_many_statements_as_a_commit_of_one(pg: PostgresStore) -> None:
    counts = []
    for n in (1, 1, 100):  # at first, plans are read
        jobs = await submit_many(pg, n)
        claims = await claim(pg)
        async with recorded(pg) as recorder:
            assert await pg.commit([finishing(each, now=1.0) for each in claims]) == [None] * len(jobs)
        counts.append(len(recorder.statements))

    assert counts[1] == counts[2]


@pytest.mark.parametrize("n", range(5))
async def test_a_member_the_server_will_not_take_harms_no_neighbour_wherever_it_stands(
    pg: PostgresStore, n: int
) -> None:
    changes = [submission(now=1.0, key=f"key-{i}") for i in range(4)]
    changes.insert(n, unwritable(key="k"))

    outcomes = await pg.commit(changes)

    assert [type(outcome) for outcome in outcomes] == [StoreError if i == n else type(None) for i in range(5)]
    assert await pg.existing_ids(ids([change.after for change in changes])) == {
        change.after.id for i, change in enumerate(changes) if i != n
    }
    assert (await pg.find_by_key("k"), await pg.holder(SLOT)) == (None, None)


@pytest.mark.parametrize("n", range(3))
async def test_a_job_whose_end_cannot_be_written_harms_no_neighbour(pg: PostgresStore, raw: Raw, n: int) -> None:
    """Its failure belongs to a group that cannot be read. A neighbour that was told so would drop its result."""
    await failed(pg)
    await raw.execute("UPDATE failure_groups SET body = 'broken'")
    await submit_many(pg, 2)
    done = await claim(pg)
    stuck = await started(pg)
    changes = [finishing(each, now=1.0) for each in done]
    failing = lifecycle.fail(stuck.job, ONLY, token=stuck.token, error=HOPELESS, luck=0.0, now=1.0)
    changes.insert(n, failing)

    outcomes = await pg.commit(changes)

    assert [type(outcome) for outcome in outcomes] == [CorruptRecord if i == n else type(None) for i in range(3)]
    assert {(await held(pg, each.job.id)).status for each in done} == {Status.COMPLETED}
    assert await held(pg, stuck.job.id) == stuck.job


async def test_what_follows_a_change_the_server_would_not_take_is_refused(pg: PostgresStore) -> None:
    bad = unwritable()
    start = lifecycle.start(bad.after, ONLY, token="t", worker="w", lease=LEASE, now=1.0)
    good = submission(SLOTTED, now=1.0)

    outcomes = await pg.commit([bad, start, good])

    assert [type(outcome) for outcome in outcomes] == [StoreError, Conflict, type(None)]
    assert await waiting(pg) == [(good.after.id, ONLY)]


async def test_a_refusal_in_one_call_refuses_nothing_in_another(pg: PostgresStore) -> None:
    """Both calls are about one job; the one decided on it as it is has nothing to do with the other."""
    job = await submit(pg)
    stale = replace(job, version=7)
    wrong, right = sure(lifecycle.cancel(stale, now=1.0)), sure(lifecycle.cancel(job, now=1.0))

    outcomes = await asyncio.gather(pg.commit([wrong]), pg.commit([right]))

    assert [type(outcome) for [outcome] in outcomes] == [Conflict, type(None)]
    assert (await held(pg, job.id)).status is Status.CANCELLED


async def test_a_name_too_long_for_the_server_is_told_without_the_data(pg: PostgresStore) -> None:
    user = "".join(chr(0x4E00 + (n * 7919) % 20_000) for n in range(10_000))  # cannot be packed
    good = submission(now=1.0)

    bad, fine = await pg.commit([submission(now=1.0, user=user), good])

    assert isinstance(bad, StoreError)
    assert user[:20] not in bad.message
    assert fine is None


async def test_a_job_added_by_somebody_else_meanwhile_is_a_conflict(pg: PostgresStore) -> None:
    job = await submit(pg)
    again, other = submission(APART, job_id=job.id, now=1.0), submission(now=1.0)

    outcomes = await pg.commit([again, other])

    assert [type(outcome) for outcome in outcomes] == [Conflict, type(None)]
    assert await held(pg, job.id) == job


async def test_cancel_and_retry_in_one_call_leave_the_entry_where_it_was(pg: PostgresStore) -> None:
    job = await submit(pg)
    stop = sure(lifecycle.cancel(job, now=1.0))
    again = sure(lifecycle.retry(stop.after, now=1.0))

    assert await pg.commit([stop, again]) == [None, None]

    assert await waiting(pg) == [(job.id, ONLY)]


async def test_a_whole_life_in_one_call_leaves_its_end(pg: PostgresStore) -> None:
    """Lost and started again, retried and done again: rows that go and come back in one transaction."""
    changes = [submission(SLOTTED, now=1.0)]
    job = changes[0].after
    for n, token in enumerate("abc"):
        changes.append(lifecycle.start(job, ONLY, token=token, worker="w", lease=LEASE, now=1.0))
        if n == 0:
            changes.append(lifecycle.lose(changes[-1].after, ONLY, token=token, now=1.0, witnessed=True))
        else:
            changes.append(lifecycle.finish(changes[-1].after, ONLY, token=token, result=RESULT, now=1.0))
        job = changes[-1].after
        if n == 1:
            changes.append(sure(lifecycle.retry(job, stage="*", now=1.0)))
            job = changes[-1].after

    outcomes = await pg.commit(changes)

    assert outcomes == [None] * len(changes)
    assert await held(pg, job.id) == job
    assert [event.n for event in await pg.events(job.id)] == list(range(1, job.events + 1))
    assert await pg.results([job.id]) == {job.id: {ONLY: RESULT}}
    assert (await pg.holder(SLOT), await pg.held_by("w", limit=10), await offered(pg)) == (None, [], [])


# locks


async def test_a_lease_that_is_just_being_renewed_is_not_lost(pg: PostgresStore, raw: Raw) -> None:
    claimed = await started(pg, lease=-1.0)
    loss = lifecycle.lose(claimed.job, ONLY, token=claimed.token, now=pg.now())
    renewal = raw.transaction()
    await renewal.start()
    await raw.execute("UPDATE leases SET until = until + 1000")

    outcome = asyncio.create_task(pg.commit([loss]))
    await somebody_waits_for(raw)
    await renewal.commit()

    assert [type(each) for each in await outcome] == [Conflict]
    assert await held(pg, claimed.job.id) == claimed.job


async def test_a_job_that_is_just_being_moved_is_not_moved_twice(pg: PostgresStore, raw: Raw) -> None:
    job = await submit(pg)
    rival = raw.transaction()
    await rival.start()
    await raw.execute("UPDATE jobs SET version = version + 1")

    outcome = asyncio.create_task(pg.commit([sure(lifecycle.cancel(job, now=1.0))]))
    await somebody_waits_for(raw)
    await rival.commit()

    assert [type(each) for each in await outcome] == [Conflict]
    assert await waiting(pg) != []


@pytest.mark.parametrize("taken", ["DELETE FROM leases", "UPDATE leases SET token = 'theirs'"])
async def test_a_lease_that_is_just_being_taken_finishes_nothing_and_harms_no_neighbour(
    pg: PostgresStore, raw: Raw, taken: str
) -> None:
    """Nobody looks at it before: the statement that ends it has to find the token there."""
    mine, other = await started(pg), await started(pg)
    rival = raw.transaction()
    await rival.start()
    await raw.execute(f"{taken} WHERE job_id = $1", mine.job.id)

    outcome = asyncio.create_task(pg.commit([finishing(each, now=1.0) for each in (mine, other)]))
    await somebody_waits_for(raw)
    await rival.commit()

    assert [type(each) for each in await outcome] == [LeaseLost, type(None)]
    assert await held(pg, mine.job.id) == mine.job
    assert (await held(pg, other.job.id)).status == "completed"


@pytest.mark.parametrize("ends", ["commit", "rollback"])
async def test_who_comes_second_for_a_slot_waits_for_how_the_first_ends(pg: PostgresStore, raw: Raw, ends: str) -> None:
    rival = raw.transaction()
    await rival.start()
    winner = submission(now=1.0).after.id
    await raw.execute("INSERT INTO slots VALUES ($1, $2)", SLOT, winner)
    change = submission(SLOTTED, now=1.0)

    outcome = asyncio.create_task(pg.commit([change]))
    await somebody_waits_for(raw)
    await getattr(rival, ends)()

    [error] = await outcome
    if ends == "commit":
        assert isinstance(error, SlotTaken)
        assert error.facts["active_job_id"] == winner
    else:
        assert error is None
    assert await pg.holder(SLOT) == (winner if ends == "commit" else change.after.id)


async def test_who_comes_second_for_a_key_waits_for_how_the_first_ends(pg: PostgresStore, raw: Raw) -> None:
    rival = raw.transaction()
    await rival.start()
    winner = submission(now=1.0).after.id
    await raw.execute("INSERT INTO idempotency VALUES ('k', $1, 'f')", winner)

    outcome = asyncio.create_task(pg.commit([submission(now=1.0, key="k")]))
    await somebody_waits_for(raw)
    await rival.commit()

    [error] = await outcome
    assert isinstance(error, AlreadySubmitted)
    assert (error.facts["job_id"], error.facts["fingerprint"]) == (winner, "f")


async def test_a_deadlock_is_broken_and_what_it_broke_is_made(pg: PostgresStore, raw: Raw) -> None:
    first, second = await submit_many(pg, 2)
    await raw.execute("SET deadlock_timeout = '10min'")  # it is the store that finds it, and gives way
    rival = raw.transaction()
    await rival.start()
    await raw.execute("UPDATE jobs SET trace_id = 'x' WHERE id = $1", second.id)
    stops = [sure(lifecycle.cancel(job, now=1.0)) for job in (first, second)]

    outcome = asyncio.create_task(pg.commit(stops))
    await somebody_waits_for(raw)
    await raw.execute("UPDATE jobs SET trace_id = 'x' WHERE id = $1", first.id)
    await rival.commit()

    assert await outcome == [None, None]
    assert [job.status for job in await pg.get([first.id, second.id]) if job] == [Status.CANCELLED] * 2


async def test_lines_that_come_while_a_job_is_erased_do_not_outlive_it(pg: PostgresStore, raw: Raw) -> None:
    job = await marked(pg, await completed(pg))
    logging = raw.transaction()
    await logging.start()
    await raw.execute("SELECT FROM jobs WHERE id = $1 FOR KEY SHARE", job.id)
    await raw.execute("INSERT INTO log VALUES ($1, 1, 'only', 0, 1, 1.0, 'late')", job.id)

    erased = asyncio.create_task(pg.erase(job.id))
    await somebody_waits_for(raw)
    await logging.commit()
    await erased

    assert await raw.fetchval("SELECT count(*) FROM log") == 0


async def test_what_comes_after_the_purge_brings_nothing_back(pg: PostgresStore, raw: Raw) -> None:
    claimed = await started(pg)
    job = await marked(pg, await finish(pg, claimed))
    await pg.erase(job.id)

    await pg.log([line(job, "late")], keep=100)
    await pg.report([report(claimed, 5)])

    assert await raw.fetchval("SELECT (SELECT count(*) FROM log) + (SELECT count(*) FROM progress)") == 0


async def test_a_report_waits_for_the_end_of_its_lease_and_is_dropped(pg: PostgresStore, raw: Raw) -> None:
    claimed = await started(pg)
    ending = raw.transaction()
    await ending.start()
    await raw.execute("DELETE FROM leases")

    reported = asyncio.create_task(pg.report([report(claimed, 5)]))
    await somebody_waits_for(raw)
    await ending.commit()
    await reported

    assert await pg.progress([claimed.job.id]) == {}


async def test_a_renewal_does_not_wait_for_a_report(pg: PostgresStore, raw: Raw) -> None:
    claimed = await started(pg)
    reporting = raw.transaction()
    await reporting.start()
    await raw.execute("SELECT FROM leases FOR KEY SHARE")

    renewal = await pg.renew([lease_of(claimed)], LEASE)

    assert renewal.lost == frozenset()
    await reporting.rollback()


# whose clock


def astray(store: PostgresStore, seconds: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """From here on machine and handle are wrong about the server's time, and hear nothing that would put it right."""
    here = time.time
    monkeypatch.setattr(time, "time", lambda: here() + seconds)
    store._clock._offset += seconds
    monkeypatch.setattr(store._clock, "adjust", lambda _at: None)


async def test_a_worker_a_day_ahead_loses_nobodys_lease(pg: PostgresStore, monkeypatch: pytest.MonkeyPatch) -> None:
    claimed = await started(pg)
    astray(pg, 86_400.0, monkeypatch)

    [error] = await pg.commit([lifecycle.lose(claimed.job, ONLY, token=claimed.token, now=pg.now())])

    assert type(error) is Conflict
    assert (await pg.overdue(limit=10)).tasks == []


async def test_a_worker_a_day_ahead_starts_nothing_before_its_time(
    pg: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    await submit(pg, delay=60.0)
    astray(pg, 86_400.0, monkeypatch)

    assert await claim(pg) == []


async def test_a_lease_ends_by_the_servers_clock_whoever_granted_it(
    pg: PostgresStore, raw: Raw, monkeypatch: pytest.MonkeyPatch
) -> None:
    astray(pg, -86_400.0, monkeypatch)

    await started(pg, lease=LEASE)

    left = await raw.fetchval("SELECT until - extract(epoch FROM clock_timestamp())::float8 FROM leases")
    assert 0 < left <= LEASE


@pytest.mark.parametrize("wrong", [-86_400.0, 86_400.0])
async def test_a_lease_is_renewed_by_the_servers_clock_whatever_the_hosts_says(
    pg: PostgresStore, raw: Raw, wrong: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    claimed = await started(pg, lease=LEASE)
    astray(pg, wrong, monkeypatch)

    await pg.renew([lease_of(claimed)], 10 * LEASE)

    left = await raw.fetchval("SELECT until - extract(epoch FROM clock_timestamp())::float8 FROM leases")
    assert LEASE < left <= 10 * LEASE
    assert (await pg.overdue(limit=10)).tasks == []


@pytest.mark.parametrize("wrong", [-86_400.0, 86_400.0])
async def test_a_lease_is_overdue_by_the_servers_clock_whatever_the_hosts_says(
    pg: PostgresStore, wrong: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    over = await started(pg, lease=0.0)
    await started(pg, lease=LEASE)
    astray(pg, wrong, monkeypatch)

    assert [job.id for job, _ in (await pg.overdue(limit=10)).tasks] == [over.job.id]
    assert await pg.commit([lifecycle.lose(over.job, ONLY, token=over.token, now=pg.now())]) == [None]


async def test_the_servers_time_is_known_to_the_handle_and_never_ahead(pg: PostgresStore, raw: Raw) -> None:
    await submit(pg)

    here = pg.now()
    there = await raw.fetchval("SELECT extract(epoch FROM clock_timestamp())::float8")

    assert there - 60.0 < here <= there


async def test_a_change_of_the_servers_clock_is_noticed_with_the_next_commit(pg: PostgresStore) -> None:
    pg._clock._offset += 86_400.0
    ahead = pg.now()

    await submit(pg)

    assert pg.now() < ahead - 80_000.0


async def test_a_refused_group_leaves_no_name_taken(pg: PostgresStore) -> None:
    """Names are taken to see whether they are free, and must be given back."""
    job = await submit(pg)
    before = await dump(pg)
    change = submission(SLOTTED, job_id=job.id, now=1.0, key="k")

    outcomes = await pg.commit([change])

    assert [type(outcome) for outcome in outcomes] == [Conflict]
    assert await dump(pg) == before


async def test_a_commit_the_server_turned_into_a_rollback_is_not_taken_for_one(pg: PostgresStore) -> None:
    async def swallowing(session: Session) -> None:
        with pytest.raises(asyncpg.PostgresSyntaxError):
            await session.fetch("NONSENSE")

    with pytest.raises(StoreError, match="ROLLBACK"):
        await pg._connections.write(swallowing)


async def test_parameters_that_cannot_be_packed_are_read_back_whole(pg: PostgresStore) -> None:
    big = Spec(b'"%b"' % (b"x" * 200_000))

    job = await submit(pg, spec=big)

    assert await pg.specs([job.id]) == {job.id: big}
    assert (await claim_one(pg)).spec == big
    assert (await cancel(pg, job.id)).stopping == "cancel"
