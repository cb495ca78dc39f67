"""The table of jobs as people see it: what each column says, and which columns may be set when."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from functools import partial
from typing import Any
from unittest.mock import patch

import asyncpg
import pytest

from packhorse.core import lifecycle
from packhorse.core.models import Job, Result, Spec
from packhorse.errors import CorruptRecord, InvalidInput, SchemaTooNew
from packhorse.store.base import Filter, Starter
from packhorse.store.postgres import PostgresStore
from packhorse.store.postgres.claim import claim_all
from packhorse.store.postgres.connection import Clock as StoreClock
from packhorse.store.postgres.connection import Session
from packhorse.store.postgres.reads import TIMES
from packhorse.store.postgres.starts import Ask, begin
from packhorse.store.rows import Plans
from tests.contract.builders import (
    APART,
    BROKEN,
    CHAIN,
    FAN,
    HOUR,
    KINDS,
    UNKNOWN,
    cancel,
    cancelled,
    claim,
    claim_one,
    fail,
    finish,
    held,
    ids,
    line,
    made,
    report,
    split,
    started,
    submission,
    submit,
    submit_many,
)
from tests.contract.stores import Clock
from tests.store.postgres.inside import Raw, blocks, call, until

AWKWARD = [b'"a\\u0000b"', b'"\\ud800"', b"1e999999", b"[" * 20_000 + b"]" * 20_000]
"""JSON that jsonb cannot hold."""


async def row_of(raw: Raw, job: Job) -> dict[str, Any]:
    row = await raw.fetchrow("SELECT * FROM jobs WHERE id = $1", job.id)
    assert row is not None
    return dict(row)


# columns


async def test_a_submitted_job_is_a_row_that_can_be_read(pg: PostgresStore, raw: Raw) -> None:
    job = await submit(pg, CHAIN, Spec(b'{"platform": "520"}'), tenant="acme", user="ann", now=1_800_000_000.25)

    row = await row_of(raw, job)

    assert [str(row["id"]), row["tenant"], row["user_id"], row["pipeline"], row["status"], row["retry_count"]] == [
        *(job.id, "acme", "ann", "convert", "pending", 0)
    ]
    assert row["created_at"] == datetime.fromtimestamp(1_800_000_000.25, UTC)
    assert json.loads(row["parameters"]) == {"platform": "520"}
    assert [row["started_at"], row["completed_at"], row["result"], row["error_message"]] == [None] * 4


async def test_a_running_job_has_started(pg: PostgresStore, raw: Raw) -> None:
    row = await row_of(raw, (await started(pg)).job)

    assert (row["status"], row["completed_at"]) == ("running", None)
    assert row["started_at"] is not None


async def test_a_completed_job_shows_its_result(pg: PostgresStore, raw: Raw) -> None:
    job = await finish(pg, await started(pg), Result(b'{"duration_ms": 7}'))

    row = await row_of(raw, job)

    assert (row["status"], json.loads(row["result"]), row["error_message"]) == ("completed", {"duration_ms": 7}, None)
    assert row["completed_at"] is not None


async def test_the_result_of_several_last_stages_is_shown_by_stage(pg: PostgresStore, raw: Raw) -> None:
    job = await submit(pg, APART)
    for n, claimed in enumerate(await claim(pg)):
        await finish(pg, claimed, Result(b"%d" % n))

    assert json.loads((await row_of(raw, job))["result"]) == {"left": 0, "right": 1}


async def test_the_result_of_elements_is_shown_as_a_list(pg: PostgresStore, raw: Raw) -> None:
    pages = type(FAN)(FAN.pipeline, FAN.stages[:2], fingerprint="pages")
    job = await split(pg, 3, pages)
    for claimed in reversed(await claim(pg)):
        await finish(pg, claimed, Result(b"%d" % claimed.task.element))

    assert json.loads((await row_of(raw, job))["result"]) == [0, 1, 2]


async def test_a_result_stays_when_the_job_is_tidied_and_goes_when_it_is_retried(pg: PostgresStore, raw: Raw) -> None:
    claimed = await started(pg)
    await fail(pg, claimed, BROKEN)
    async with pg._connections.transaction() as session:
        await session.run("UPDATE @delayed SET not_before = 0")
    job = await finish(pg, await claim_one(pg), Result(b"1"))
    job = await made(pg, lifecycle.tidy(job, now=pg.now()))
    assert (await row_of(raw, job))["result"] == "1"

    job = await made(pg, lifecycle.retry(job, stage="*", now=pg.now()))

    assert (await row_of(raw, job))["result"] is None


async def test_a_failed_job_says_why_and_how_often_it_was_tried(pg: PostgresStore, raw: Raw) -> None:
    await fail(pg, await started(pg), BROKEN)
    async with pg._connections.transaction() as session:
        await session.run("UPDATE @delayed SET not_before = 0")
    job = await fail(pg, await claim_one(pg))

    row = await row_of(raw, job)

    assert (row["status"], row["error_message"], row["retry_count"]) == ("failed", "It can never work.", 1)


async def test_a_cancelled_job_has_an_end_and_no_error(pg: PostgresStore, raw: Raw) -> None:
    row = await row_of(raw, await cancelled(pg))

    assert (row["status"], row["error_message"], row["started_at"]) == ("cancelled", None, None)
    assert row["completed_at"] is not None


NONSENSE = {
    "an ended job without a time": "status = 'cancelled'",
    "a time on a job that goes on": "completed_at = now()",
    "a pending job that has started": "started_at = now()",
    "a running job that has not": "status = 'running'",
    "a failed job without a reason": "status = 'failed', completed_at = now(), deadline_at = NULL",
    "a reason on a job that has not failed": "error_message = 'x'",
    "a result of a job that goes on": "result = '1'",
    "an end of keeping before the end": "purge_at = now()",
    "a deadline after the end": "status = 'cancelled', completed_at = now()",
    "a status of its own": "status = 'paused'",
    "a pending job that is being stopped": "is_stopping = true",
}


@pytest.mark.parametrize("change", NONSENSE.values(), ids=NONSENSE)
async def test_no_row_can_say_what_makes_no_sense(pg: PostgresStore, raw: Raw, change: str) -> None:
    await submit(pg)

    with pytest.raises(asyncpg.CheckViolationError):
        await raw.execute(f"UPDATE jobs SET {change}")


async def test_the_indexes_people_ask_by_are_there(pg: PostgresStore, raw: Raw) -> None:
    found = await raw.fetch("SELECT indexdef FROM pg_indexes WHERE tablename = 'jobs' AND schemaname = current_schema")

    shapes = {row["indexdef"].partition(" USING btree ")[2] for row in found}
    assert "(tenant, user_id, status, id)" in shapes
    assert "(created_at DESC)" in shapes
    assert "(deadline_at) WHERE (status = 'pending'::text)" in shapes
    assert "(deadline_at) WHERE ((status = 'running'::text) AND (NOT is_stopping))" in shapes
    assert "(purge_at) WHERE ((purge_at IS NOT NULL) AND (NOT is_purging))" in shapes


async def test_a_step_that_leaves_the_status_alone_touches_no_index(pg: PostgresStore, raw: Raw) -> None:
    claimed = await started(pg, CHAIN)

    await finish(pg, claimed)

    await pg.close()  # what a connection has counted is told when it is closed
    counted = "SELECT n_tup_upd = 2 AND n_tup_hot_upd = 1 FROM pg_stat_user_tables WHERE relid = 'jobs'::regclass"
    await until(lambda: raw.fetchval(counted))
    assert await raw.fetchval(counted)


# text that PostgreSQL cannot hold


@pytest.mark.parametrize("body", AWKWARD)
async def test_json_that_a_column_cannot_hold_is_kept_whole_all_the_same(
    pg: PostgresStore, raw: Raw, body: bytes
) -> None:
    job = await submit(pg, spec=Spec(body))

    done = await finish(pg, await claim_one(pg), Result(body))

    assert (await pg.specs([job.id]))[job.id].parameters == body
    assert [result.value for result in (await pg.results([job.id]))[job.id].values()] == [body]
    row = await row_of(raw, done)
    assert (row["parameters"], row["result"]) == (None, None)


async def test_log_and_progress_with_a_nul_are_kept_with_a_mark_in_its_place(pg: PostgresStore) -> None:
    claimed = await started(pg)

    await pg.log([line(claimed.job, "a\x00b\udcff")], keep=100)
    await pg.report([report(claimed, 5, message="c\x00d")])

    assert [found.text for found in await pg.lines(claimed.job.id)] == ["a\ufffdb?"]
    assert [found.message for found in (await pg.progress([claimed.job.id]))[claimed.job.id].values()] == ["c\ufffdd"]


async def test_an_error_with_a_nul_ends_its_job_like_any_other(pg: PostgresStore, raw: Raw) -> None:
    error = type(BROKEN)("EXCEPTION", "bad \x00 byte", permanent=True)

    job = await fail(pg, await started(pg), error)

    assert (await held(pg, job.id)).error == job.error
    assert (await row_of(raw, job))["error_message"] == "bad \ufffd byte"


@pytest.mark.parametrize("facts", [{"user": "a\x00b"}, {"tenant": "a\x00b"}, {"key": "a\x00b"}, {"user": "\ud800"}])
async def test_a_name_that_cannot_be_stored_is_the_callers_mistake_and_nobody_elses(
    pg: PostgresStore, facts: dict[str, Any]
) -> None:
    first, last = submission(now=1.0), submission(now=1.0)

    outcomes = await pg.commit([first, submission(now=1.0, **facts), last])

    assert [type(outcome) for outcome in outcomes] == [type(None), InvalidInput, type(None)]
    assert await pg.existing_ids(ids([first.after, last.after])) == {first.after.id, last.after.id}


async def test_who_asks_for_a_name_that_cannot_be_stored_finds_nothing(pg: PostgresStore) -> None:
    job = await submit(pg)

    assert await pg.find(Filter(user="a\x00b")) == []
    assert await pg.find(Filter(tenant="\ud800")) == []
    assert await pg.find(Filter(), before="nonsense") == []
    assert await pg.lines(job.id, stage="\x00") == []
    assert await pg.find_by_key("\x00") is None
    assert await pg.holder("\x00") is None


# records nobody can read


SPOILED = "UPDATE jobs SET state = $2 WHERE id = $1"
GARBAGE = [b"", b"\x00\xff", TIMES.pack(*[1.0] * 7) + b'{"v":1}', TIMES.pack(*[1.0] * 7) + b"[1,1,1,null,null,[]]"]
NEWER = "UPDATE jobs SET state = overlay(state PLACING convert_to($2::text, 'UTF8') FROM 58 FOR 1) WHERE id = $1"


@pytest.mark.parametrize("state", GARBAGE)
async def test_a_state_that_cannot_be_read_is_told_with_its_job(pg: PostgresStore, raw: Raw, state: bytes) -> None:
    job = await submit(pg)
    await raw.execute(SPOILED, job.id, state)

    with pytest.raises(CorruptRecord) as error:
        await pg.get([job.id])

    assert (error.value.facts["what"], error.value.facts["job_id"]) == ("state", job.id)


async def test_a_job_of_a_newer_packhorse_is_left_in_its_queue_for_a_newer_worker(pg: PostgresStore, raw: Raw) -> None:
    job = await submit(pg)
    await raw.execute(NEWER, job.id, "9")
    with pytest.raises(SchemaTooNew):
        await pg.get([job.id])

    claims = await claim(pg)

    assert claims == []
    await raw.execute(NEWER, job.id, "1")
    assert [claimed.job.id for claimed in await claim(pg)] == [job.id]


async def test_jobs_of_a_newer_packhorse_do_not_hide_those_behind_them(pg: PostgresStore, raw: Raw) -> None:
    jobs = await submit_many(pg, 80)
    for job in jobs[:78]:
        await raw.execute(NEWER, job.id, "9")

    claims = [await claim(pg, 1), await claim(pg, 1), await claim(pg, 1)]

    assert [[claimed.job.id for claimed in found] for found in claims] == [[jobs[78].id], [jobs[79].id], []]


@pytest.mark.parametrize(
    ("what", "spoiling"),
    {
        "state": "UPDATE jobs SET state = '\\x00' WHERE id = $1",
        "plan": "UPDATE plans SET body = '\\x00' WHERE fingerprint = (SELECT plan FROM jobs WHERE id = $1)",
        "missing plan": "DELETE FROM plans WHERE fingerprint = (SELECT plan FROM jobs WHERE id = $1)",
        "missing job": "DELETE FROM jobs WHERE id = $1",
    }.items(),
)
async def test_a_job_that_cannot_be_read_does_not_stop_those_behind_it(
    url: str, pg: PostgresStore, raw: Raw, what: str, spoiling: str
) -> None:
    await submit(pg, CHAIN, priority=9)
    spoiled = await finish(pg, await claim_one(pg))
    job = await submit(pg)
    await raw.execute(spoiling, spoiled.id)
    elsewhere = await PostgresStore.open(url)  # one that has not read the plan before

    claims = await claim(elsewhere)

    assert [claimed.job.id for claimed in claims] == [job.id]
    assert await pg.held_by("w", limit=10) == [(claims[0].job, claims[0].task)]
    await elsewhere.close()


@pytest.mark.parametrize(
    ("what", "spoiling"),
    {
        "spec": "UPDATE specs SET body = '\\x00' WHERE job_id = $1",
        "spec of": "DELETE FROM specs WHERE job_id = $1",
        "result": "UPDATE results SET body = '\\x00' WHERE job_id = $1",
    }.items(),
)
async def test_a_task_that_lacks_what_it_needs_is_handed_out_with_its_trouble(
    pg: PostgresStore, raw: Raw, what: str, spoiling: str
) -> None:
    await submit(pg, CHAIN, priority=9)
    spoiled = await finish(pg, await claim_one(pg))
    job = await submit(pg)
    await raw.execute(spoiling, spoiled.id)

    claims = await claim(pg)

    assert [claimed.job.id for claimed in claims] == [spoiled.id, job.id]
    assert what in str(claims[0].trouble)
    assert claims[1].trouble is None


async def test_a_list_leaves_out_what_cannot_be_read_and_goes_on_behind_it(pg: PostgresStore, raw: Raw) -> None:
    first, second, third, fourth = await submit_many(pg, 4)
    for job in (second, fourth):
        await raw.execute("UPDATE jobs SET state = '\\x00' WHERE id = $1", job.id)

    assert [job.id for job in await pg.find(Filter(), limit=2)] == [third.id, first.id]


async def test_entries_of_jobs_deleted_by_hand_do_not_hide_those_behind_them(pg: PostgresStore, raw: Raw) -> None:
    await submit_many(pg, 100)
    job = await submit(pg)
    await raw.execute("DELETE FROM jobs WHERE id <> $1", job.id)

    claims = await claim(pg, 1)

    assert [claimed.job.id for claimed in claims] == [job.id]
    assert await raw.fetchval("SELECT count(*) FROM due") < 100


async def test_sweeps_go_round_a_job_that_cannot_be_read(timed: PostgresStore, raw: Raw, clock: Clock) -> None:
    first = [await started(timed) for _ in range(3)]
    last = await started(timed)
    for claimed in first:
        await raw.execute(SPOILED, claimed.job.id, b"\x00")

    clock.forward(HOUR)

    assert (await timed.overdue(limit=1)).tasks == [(last.job, last.task)]
    assert await timed.held_by("w", limit=1) == [(last.job, last.task)]
    assert await timed.expired(limit=1) == [last.job]


# how much is read

FEW, MANY = 60, 1500
FILTERS = [
    Filter(),
    Filter("default"),
    Filter("default", "ann"),
    Filter(user="ann"),
    Filter(status=lifecycle.PENDING),
    Filter("default", status=lifecycle.PENDING, pipeline="convert"),
    Filter(pipeline="convert"),
]
NOBODY = StoreClock(lambda: 0.0)


class Untold:
    """A notice that nobody is given."""

    is_told = False

    def words(self) -> None:
        return None


UNTOLD: Any = Untold()
SOMETIME = StoreClock(lambda: 1e10)
QUESTIONS: dict[str, Any] = {
    **{f"find {f}": lambda pg, s, f=f: call(pg.find, s, f, limit=5) for f in FILTERS},
    **{
        f"claim of {name}, trusting: {trusting}": lambda _pg, s, kinds=kinds, trusting=trusting: claim_all(
            s, [Ask({"default": 5}, kinds, lambda _job, _at: None)], NOBODY, Plans(), UNTOLD, is_trusting=trusting
        )
        for name, kinds in (("something", KINDS), ("nothing", ["no"]))
        for trusting in (False, True)
    },
    **{
        f"start of {name}": lambda _pg, s, kinds=kinds: begin(
            s, [Ask({"default": 5}, kinds, Starter(iter("abcde"), "w", 1.0, lambda: 1e10))], NOBODY, Plans(), UNTOLD
        )
        for name, kinds in (("something", KINDS), ("nothing", ["no"]))
    },
    "expired": lambda pg, s: call(pg.expired, s, 5),
    "get": lambda pg, s: call(pg.get, s, [UNKNOWN]),
}


async def cost(pg: PostgresStore, question: Any) -> int:
    """How many pages are looked at for it when the time of everything is over."""
    with patch.object(pg, "_clock", SOMETIME):
        return await blocks(pg, partial(question, pg))


@pytest.mark.parametrize("question", QUESTIONS.values(), ids=QUESTIONS)
async def test_a_small_answer_from_a_big_store_costs_what_it_costs_from_a_small_one(
    pg: PostgresStore, question: Any
) -> None:
    await submit_many(pg, FEW, delay=HOUR)
    await submit_many(pg, FEW)
    small = await cost(pg, question)

    await submit_many(pg, MANY, delay=HOUR)
    await submit_many(pg, MANY)

    assert await cost(pg, question) < 2 * small + 20


async def test_sweeps_of_ended_jobs_cost_the_same_in_a_big_store(pg: PostgresStore) -> None:
    async def sweep(pg: PostgresStore, session: Session) -> None:
        await call(pg.purgeable, session, 5)
        await call(pg.jobs_with_litter, session, 5)

    for job in await submit_many(pg, FEW):
        await cancel(pg, job.id)
    small = await cost(pg, sweep)

    for job in await submit_many(pg, 5 * FEW):
        await cancel(pg, job.id)

    assert await cost(pg, sweep) < 2 * small + 20
