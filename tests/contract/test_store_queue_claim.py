"""Claiming: what comes first, what is left alone, and what an attempt is given."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from packhorse.core import lifecycle
from packhorse.core.changes import Change
from packhorse.core.models import Job, Result, Spec, TaskId
from packhorse.core.plan import Status
from packhorse.errors import CorruptRecord, JobNotFound, NotAllowed
from packhorse.store.base import Lease, Store
from tests.contract.builders import (
    APART,
    BIE,
    BOOK,
    CHAIN,
    FAN,
    KINDS,
    LEASE,
    LEFT,
    ONE,
    ONLY,
    ONNX,
    RIGHT,
    cancel,
    claim,
    claim_one,
    each,
    finish,
    finishing,
    held,
    ids,
    lease_of,
    made,
    page,
    plan,
    split,
    stage,
    started,
    starter,
    submit,
    submit_many,
    tasks,
    token_of,
    waiting,
    words,
)
from tests.contract.stores import Clock

pytestmark = pytest.mark.cluster

ELSEWHERE = plan(stage("only", queue="elsewhere"))
UNKNOWN_KIND = plan(stage("only", kind="unknown"))


# which, and in what order


async def test_a_stage_that_is_due_at_once_does_not_wait_for_a_clock_that_was_ahead(store: Store) -> None:
    """A worker that once read a wrong time from the store finishes a stage: the next one is due now, not then."""
    first = await started(store, CHAIN)
    await made(store, finishing(first, now=store.now() + 8 * 86_400.0))

    assert [each.task for each in await claim(store)] == [BIE]


async def test_older_jobs_come_first(store: Store) -> None:
    jobs = await submit_many(store, 5)

    claims = await claim(store)

    assert [claimed.job.id for claimed in claims] == ids(jobs)


async def test_priority_comes_before_age(store: Store) -> None:
    low, first, high, second = [await submit(store, priority=p) for p in (-5, 0, 7, 0)]

    claims = await claim(store)

    assert [claimed.job.id for claimed in claims] == [high.id, first.id, second.id, low.id]


async def test_age_is_that_of_the_job_not_of_the_task(store: Store) -> None:
    older = await submit(store, CHAIN)
    first = await claim_one(store)
    younger = await submit(store)

    await finish(store, first)

    assert await waiting(store) == [(older.id, BIE), (younger.id, ONLY)]


async def test_the_order_holds_across_kinds(store: Store) -> None:
    first, second, third = await submit(store), await submit(store, CHAIN), await submit(store)

    claims = await claim(store, kinds=["onnx", "only"])

    assert tasks(claims) == [(first.id, ONLY), (second.id, ONNX), (third.id, ONLY)]


async def test_a_limit_takes_the_most_urgent(store: Store) -> None:
    await submit_many(store, 3)
    urgent = await submit(store, priority=1)

    claims = await claim(store, 1)

    assert [claimed.job.id for claimed in claims] == [urgent.id]


async def test_a_limit_holds_for_all_kinds_together(store: Store) -> None:
    jobs = [await submit(store, graph, user=f"user {n}") for n, graph in enumerate((ONE, CHAIN, APART) * 3)]

    claims = await claim(store, 4)

    assert tasks(claims) == [(jobs[0].id, ONLY), (jobs[1].id, ONNX), (jobs[2].id, LEFT), (jobs[2].id, RIGHT)]
    assert await store.ready({"default": KINDS}) == {"default": 8}


async def test_what_the_limit_left_is_claimed_next(store: Store, other: Store) -> None:
    jobs = await submit_many(store, 5)
    await claim(store, 2)

    claims = await claim(other, 2)

    assert [claimed.job.id for claimed in claims] == [jobs[2].id, jobs[3].id]


async def test_each_queue_has_its_own_limit(store: Store) -> None:
    here, there = await submit_many(store, 3), await submit_many(store, 3, ELSEWHERE)

    claims = await store.claim({"default": 2, "elsewhere": 1, "empty": 5}, KINDS, starter(store))

    assert [claimed.job.id for claimed in claims] == [here[0].id, here[1].id, there[0].id]


async def test_a_queue_not_asked_for_is_left_alone(store: Store) -> None:
    await submit(store, ELSEWHERE)

    assert await claim(store) == []
    assert len(await claim(store, queue="elsewhere")) == 1


@pytest.mark.parametrize("limit", [0, -1])
async def test_who_wants_nothing_gets_nothing(store: Store, limit: int) -> None:
    await submit(store)

    assert await claim(store, limit) == []
    assert await store.claim({}, KINDS, starter(store)) == []
    assert len(await claim(store)) == 1


async def test_an_empty_store_has_nothing_to_claim(store: Store) -> None:
    assert await claim(store) == []


async def test_a_worker_claims_only_kinds_it_has(store: Store) -> None:
    await submit(store, UNKNOWN_KIND)
    job = await submit(store)

    claims = await claim(store)

    assert [claimed.job.id for claimed in claims] == [job.id]


async def test_a_worker_without_kinds_claims_nothing(store: Store) -> None:
    await submit(store)

    assert await claim(store, kinds=[]) == []
    assert len(await claim(store)) == 1


async def test_a_full_page_of_unknown_kinds_does_not_hide_the_rest(store: Store) -> None:
    await submit_many(store, 1200, UNKNOWN_KIND, priority=9)
    job = await submit(store)

    claims = await claim(store, 1)

    assert [claimed.job.id for claimed in claims] == [job.id]


async def test_a_worker_may_have_more_kinds_than_any_query_has_terms(store: Store) -> None:
    jobs = await submit_many(store, 3)
    kinds = [f"kind-{n}" for n in range(2000)]

    claims = await claim(store, 2, kinds=[*kinds[:1000], "only", *kinds[1000:]])

    assert [claimed.job.id for claimed in claims] == ids(jobs)[:2]


# not before its time


async def test_a_delayed_job_is_claimed_when_its_time_has_come_and_not_before(timed: Store, clock: Clock) -> None:
    job = await submit(timed, delay=60.0)
    clock.forward(59.5)
    assert await claim(timed) == []

    clock.forward(0.5)

    assert await waiting(timed) == [(job.id, ONLY)]


async def test_delayed_jobs_do_not_stand_in_the_way_of_others(timed: Store) -> None:
    await submit_many(timed, 20, delay=60.0, priority=9)
    job = await submit(timed)

    assert await waiting(timed) == [(job.id, ONLY)]


async def test_delayed_jobs_are_claimed_by_urgency_once_they_are_due(timed: Store, clock: Clock) -> None:
    first, second = await submit(timed, delay=60.0), await submit(timed, delay=30.0)
    urgent = await submit(timed, delay=45.0, priority=1)

    clock.forward(60.0)

    assert await waiting(timed) == [(urgent.id, ONLY), (first.id, ONLY), (second.id, ONLY)]


async def test_a_crowd_that_becomes_due_at_once_does_not_hide_a_job_for_ever(timed: Store, clock: Clock) -> None:
    await submit_many(timed, 1200, UNKNOWN_KIND, delay=30.0)
    job = await submit(timed, delay=60.0)
    clock.forward(61.0)

    claims = await claim(timed, 1) or await claim(timed, 1) or await claim(timed, 1)

    assert [claimed.job.id for claimed in claims] == [job.id]


async def test_delayed_tasks_are_listed_by_when_they_were_queued_until_they_are_due(timed: Store, clock: Clock) -> None:
    first = await submit(timed, delay=60.0)
    ahead = [await submit(timed, delay=10.0, now=clock() + seconds) for seconds in (500.0, 900.0)]
    await submit(timed)

    async def listed(after: float, limit: int = 10) -> list[str]:
        return [job.id for job, _ in (await timed.overdue(limit, queued_after=after)).tasks]

    assert await listed(clock() + 60.0) == [ahead[1].id, ahead[0].id]
    assert await listed(clock() + 60.0, limit=1) == [ahead[1].id]
    assert await listed(clock() - 1.0) == [ahead[1].id, ahead[0].id, first.id]

    await cancel(timed, ahead[1].id)
    clock.forward(60.0)
    await claim(timed)

    assert await listed(0.0) == [ahead[0].id]


async def test_leases_are_listed_by_when_they_end(timed: Store, clock: Clock) -> None:
    short, long, longer = [await started(timed, lease=seconds) for seconds in (30.0, 500.0, 900.0)]

    async def listed(after: float, limit: int = 10) -> list[str]:
        return [job.id for job, _ in (await timed.overdue(limit, leased_after=after)).tasks]

    assert await listed(clock() + 60.0) == [longer.job.id, long.job.id]
    assert await listed(clock() + 60.0, limit=1) == [longer.job.id]
    assert await listed(clock()) == [longer.job.id, long.job.id, short.job.id]

    await timed.renew([Lease(longer.job.id, ONLY, longer.token)], 30.0)

    assert await listed(clock() + 60.0) == [long.job.id]


async def test_a_task_that_asked_for_later_comes_later(timed: Store, clock: Clock) -> None:
    claimed = await started(timed)
    await made(timed, lifecycle.later(claimed.job, ONLY, token=claimed.token, seconds=5.0, now=clock()))
    assert await claim(timed) == []

    clock.forward(5.0)

    assert await waiting(timed) == [(claimed.job.id, ONLY)]


# the store picks, decide decides


async def test_a_claim_commits_what_was_decided(store: Store, other: Store) -> None:
    job = await submit(store)

    [claimed] = await claim(store)

    assert claimed.job.status is Status.RUNNING
    assert claimed.job.version == job.version + 1
    assert await held(other, job.id) == claimed.job
    assert await words(other, job.id) == ["submitted", "started", "stage_started"]
    assert await other.held_by("w", limit=10) == [(claimed.job, ONLY)]


async def test_decide_is_given_the_job_as_it_is_now(store: Store, other: Store) -> None:
    job = await submit(store, APART)
    [first] = await claim(other, kinds=["left"])
    seen: list[tuple[Job, TaskId]] = []

    await store.claim({"default": 5}, KINDS, lambda job, at: seen.append((job, at)))

    assert seen == [(first.job, RIGHT)]
    assert first.job.version > job.version


def _nothing(_job: Job, _at: TaskId) -> Change | None:
    return None


def _refuse(job: Job, _at: TaskId) -> Change | None:
    raise NotAllowed(verb="start", status=job.status.value)


def _not_found(job: Job, _at: TaskId) -> Change | None:
    raise JobNotFound(job_id=job.id)


def _unreadable(job: Job, _at: TaskId) -> Change | None:
    raise CorruptRecord(what="plan", job_id=job.id, reason="it is not one")


every_no = pytest.mark.parametrize("no", [_nothing, _refuse, _not_found, _unreadable])


@every_no
async def test_an_entry_that_decide_will_not_start_is_removed(
    store: Store, other: Store, no: Callable[[Job, TaskId], Change | None]
) -> None:
    job = await submit(store)

    claims = await store.claim({"default": 5}, KINDS, no)

    assert claims == []
    assert await claim(other) == []
    assert await held(other, job.id) == job
    assert await other.held_by("w", limit=10) == []


@every_no
async def test_an_entry_that_decide_will_not_start_does_not_stop_those_behind_it(
    store: Store, no: Callable[[Job, TaskId], Change | None]
) -> None:
    first, refused, last = await submit_many(store, 3)
    start = starter(store)

    claims = await store.claim({"default": 5}, KINDS, lambda job, at: (no if job.id == refused.id else start)(job, at))

    assert [claimed.job.id for claimed in claims] == [first.id, last.id]
    assert await waiting(store) == []


async def test_one_refused_task_leaves_the_other_tasks_of_its_job(store: Store) -> None:
    job = await submit(store, APART)
    start = starter(store)

    claims = await store.claim({"default": 5}, KINDS, lambda job, at: start(job, at) if at == RIGHT else None)

    assert tasks(claims) == [(job.id, RIGHT)]
    assert await held(store, job.id) == claims[0].job


async def test_a_mistake_in_decide_is_raised_and_loses_nothing(timed: Store, clock: Clock) -> None:
    first, second = await submit_many(timed, 2)
    start = starter(timed)

    def mistaken(job: Job, at: TaskId) -> Change | None:
        if job.id == second.id:
            raise ZeroDivisionError
        return start(job, at)

    with pytest.raises(ZeroDivisionError):
        await timed.claim({"default": 5}, KINDS, mistaken)

    clock.forward(10.0)
    assert await timed.get(ids([first, second])) == [first, second]
    assert await waiting(timed) == [(first.id, ONLY), (second.id, ONLY)]


async def test_a_stopped_job_starts_nothing(store: Store) -> None:
    job = await submit(store, APART)
    await claim(store, kinds=["left"])

    await cancel(store, job.id)

    assert await claim(store) == []


# several tasks of one job


async def test_parallel_stages_of_one_job_come_in_one_claim_each_with_its_own_token(store: Store) -> None:
    job = await submit(store, APART)

    claims = await claim(store)

    found = await held(store, job.id)
    assert tasks(claims) == [(job.id, LEFT), (job.id, RIGHT)]
    assert [claimed.token for claimed in claims] == [token_of(found, at) for at in (LEFT, RIGHT)]
    assert claims[0].token != claims[1].token
    assert found.version == job.version + 2
    assert [event.n for event in await store.events(job.id)] == list(range(1, found.events + 1))


async def test_all_elements_of_a_stage_come_in_one_claim_in_their_order(store: Store) -> None:
    job = await split(store, 12)

    claims = await claim(store)

    assert tasks(claims) == [(job.id, page(n)) for n in range(12)]
    assert len({claimed.token for claimed in claims}) == 12
    assert {at for _, at in await store.held_by("w", limit=20)} == {page(n) for n in range(12)}
    assert (await store.renew([lease_of(claimed) for claimed in claims], LEASE)).lost == frozenset()


async def test_a_limit_may_cut_through_the_elements_of_a_stage(store: Store, other: Store) -> None:
    job = await split(store, 12)
    await claim(store, 5)

    claims = await claim(other)

    assert tasks(claims) == [(job.id, page(n)) for n in range(5, 12)]


# what an attempt is given


async def test_a_claim_brings_the_spec(store: Store) -> None:
    spec = Spec(b'{"platform":"730"}', metadata={"a": 1})
    await submit(store, spec=spec)

    [claimed] = await claim(store)

    assert claimed.spec == spec


async def test_each_claim_brings_the_spec_of_its_own_job(store: Store) -> None:
    specs = [Spec(b"%d" % n) for n in range(3)]
    for spec in specs:
        await submit(store, spec=spec)

    claims = await claim(store)

    assert [claimed.spec for claimed in claims] == specs


async def test_a_first_stage_needs_nothing(store: Store) -> None:
    claimed = await started(store, CHAIN)

    assert claimed.upstream == {}


async def test_a_claim_brings_the_results_of_the_stages_it_needs_and_no_others(store: Store) -> None:
    await submit(store, CHAIN)
    await finish(store, await claim_one(store), Result(b'"from onnx"'))
    await finish(store, await claim_one(store), Result(b'"from bie"'))

    claimed = await claim_one(store)

    assert claimed.upstream == {"bie": (Result(b'"from bie"'),)}


async def test_results_of_elements_come_in_the_order_of_the_elements(store: Store) -> None:
    """Twelve, so that an order by text (0, 1, 10, 11, 2) would be another."""
    await split(store, 12)
    for claimed in reversed(await claim(store)):
        await finish(store, claimed, Result(b"%d" % claimed.task.element))

    claimed = await claim_one(store)

    assert claimed.task == BOOK
    assert [result.value for result in claimed.upstream["page"]] == [b"%d" % n for n in range(12)]


async def test_every_element_is_given_the_list_it_is_an_element_of(store: Store) -> None:
    claimed = await started(store, FAN)
    await finish(store, claimed, Result(b"[1,2]"), width=2)

    claims = await claim(store)

    assert [claimed.upstream for claimed in claims] == [{"split": (Result(b"[1,2]"),)}] * 2


async def test_a_stage_over_nothing_gives_what_gathers_it_an_empty_list(store: Store) -> None:
    await split(store, 0)

    claimed = await claim_one(store)

    assert (claimed.task, claimed.upstream) == (BOOK, {"page": ()})


# how much there is


async def test_what_is_ready_is_counted_by_queue_and_no_further_than_asked(store: Store) -> None:
    await submit_many(store, 3)
    await submit(store, ELSEWHERE)
    await submit(store, UNKNOWN_KIND)
    await submit(store, delay=60.0)
    kinds = {"default": ["only"], "elsewhere": ["only", "unknown"], "empty": ["only"], "nothing": []}

    found = await store.ready(kinds)

    assert found == {"default": 3, "elsewhere": 1, "empty": 0, "nothing": 0}
    assert await store.ready({"default": ["only", "unknown"]}) == {"default": 4}
    assert await store.ready(kinds, limit=2) == {**found, "default": 2}
    assert await store.ready({}) == {}


async def test_however_many_wait_none_of_them_is_dropped(store: Store) -> None:
    """What is told to watchers and outside readers may be cut short; what waits to be claimed may not."""
    many = 10_001
    await split(store, many, plan(stage("split"), stage("page", each("split"), elements=many)))

    assert await store.ready({"default": ["page"]}, limit=2 * many) == {"default": many}


async def test_what_was_claimed_is_not_ready_any_more(store: Store) -> None:
    await submit_many(store, 3)

    await claim_one(store)

    assert await store.ready({"default": ["only"]}) == {"default": 2}
