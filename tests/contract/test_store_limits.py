"""Limits: never more than allowed in the step that starts a task, and nothing waits while there is room."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import pytest

from packhorse.core import lifecycle
from packhorse.core.changes import Change
from packhorse.core.limits import Limit
from packhorse.core.models import Job
from packhorse.errors import Conflict
from packhorse.store.base import Claim, Store, is_own_work
from tests.contract.builders import (
    BROKEN,
    LEASE,
    ONE,
    ONLY,
    RESULT,
    cancel,
    claim,
    claim_one,
    each,
    fail,
    finish,
    finishing,
    held,
    lease_of,
    made,
    needs,
    page,
    plan,
    refused,
    settled,
    split,
    stage,
    start_of,
    started,
    submission,
    submit,
    submit_many,
)
from tests.contract.limited import address, at_once, finish_all, limited, of_site, per_minute, submit_for, users_of
from tests.contract.stores import Clock

__all__ = ["address"]

pytestmark = pytest.mark.cluster

USER = "convert.user=default/ann"
TWO = limited(at_once(2))
ONCE = limited(at_once(1))


async def used(store: Store, key: str = USER) -> tuple[int, int]:
    """How many hold the key, and how many are parked under it."""
    [state] = await store.limit_states([key])
    return state.used, state.parked


# at once


async def test_no_more_start_than_the_limit_says(store: Store) -> None:
    await submit_many(store, 5, TWO)

    assert len(await claim(store)) == 2
    assert await claim(store) == []
    assert await used(store) == (2, 3)


async def test_one_claim_of_one_task_at_a_time_counts_the_same(store: Store) -> None:
    await submit_many(store, 5, TWO)

    assert [len(await claim(store, 1)) for _ in range(4)] == [1, 1, 0, 0]


async def test_callers_that_claim_together_do_not_exceed_the_limit(store: Store, other: Store) -> None:
    await submit_many(store, 20, limited(at_once(3)))

    found = await asyncio.gather(*(claim(each, 1) for each in (store, other) for _ in range(6)))

    assert sum(map(len, found)) == 3
    assert (await used(store))[0] == 3


async def test_each_user_has_a_limit_of_their_own(store: Store) -> None:
    await submit_for(store, ONCE, ["ann", "ann", "bob", "bob", "eve"])

    assert users_of(await claim(store)) == "ann bob eve"


async def test_users_of_two_tenants_are_two(store: Store) -> None:
    await submit(store, ONCE, tenant="a", user="b/c")
    await submit(store, ONCE, tenant="a/b", user="c")

    assert len(await claim(store)) == 2


async def test_a_tenant_and_a_parameter_are_counted_apart(store: Store) -> None:
    both = limited(at_once(1, "params.site"), at_once(2, "tenant"))
    for tenant, site in (("a", "x"), ("a", "x"), ("a", "y"), ("a", "z"), ("b", "x"), ("b", "w")):
        await submit(store, both, of_site(site), tenant=tenant)

    found = await claim(store)

    assert [(each.job.tenant, each.job.limit_values["site"]) for each in found] == [("a", "x"), ("a", "y"), ("b", "w")]


async def test_a_name_is_shared_by_pipelines_and_queues(store: Store) -> None:
    gpu = at_once(1, "", "gpu")
    await submit(store, limited(gpu))
    await submit(store, plan(stage("left", queue="other", limits=(gpu,)), pipeline="b"))

    [first] = await claim(store)
    assert await claim(store, queue="other") == []
    await finish(store, first)

    assert len(await claim(store, queue="other")) == 1


async def test_elements_of_one_job_count_one_by_one(store: Store) -> None:
    wide = plan(stage("split"), stage("page", each("split"), limits=(at_once(2),)))
    job = await split(store, 5, wide)

    found = await claim(store)

    assert [each.task for each in found] == [page(0), page(1)]
    await finish(store, found[1])
    assert [each.task for each in await claim(store)] == [page(2)]
    assert (await held(store, job.id)).task(page(3)).status == "pending"  # type: ignore[union-attr]


async def test_what_has_no_limit_passes_what_is_stopped(store: Store) -> None:
    await submit_many(store, 3, ONCE)
    [free] = await submit_many(store, 1, ONE)

    found = await claim(store)

    assert len(found) == 2
    assert found[1].job.id == free.id


# room comes back


async def ended_by_cancel(store: Store, claimed: Claim) -> None:
    await cancel(store, claimed.job.id)
    fails = partial(lifecycle.fail, at=claimed.task, token=claimed.token, error=BROKEN, luck=0.0, now=store.now())
    await settled(store, claimed.job.id, fails)


End = Callable[[Store, Claim], Awaitable[object]]


def by(verb: Callable[..., Change], **options: Any) -> End:
    async def end(store: Store, claimed: Claim) -> None:
        def decide(job: Job) -> Change:
            return verb(job, claimed.task, token=claimed.token, now=store.now(), **options)

        await settled(store, claimed.job.id, decide)

    return end


ENDS: dict[str, End] = {
    "finished": finish,
    "failed": fail,
    "to be retried": by(lifecycle.fail, error=BROKEN, luck=0.0),
    "lost": by(lifecycle.lose, witnessed=True),
    "later": by(lifecycle.later, seconds=60.0),
    "handed back": by(lifecycle.hand_back),
    "skipped": by(lifecycle.skip, reason="none"),
    "cancelled": ended_by_cancel,
}


@pytest.mark.parametrize("how", ENDS)
async def test_the_next_one_may_start_when_a_lease_has_ended(store: Store, how: str) -> None:
    jobs = await submit_many(store, 3, ONCE)
    first = await claim_one(store)
    assert await claim(store) == []

    await ENDS[how](store, first)

    expected = jobs[0] if how in ("handed back", "lost") else jobs[1]
    assert [each.job.id for each in await claim(store)] == [expected.id]
    assert (await used(store))[0] == 1


async def test_the_reaper_gives_back_what_a_lost_worker_held(timed: Store, clock: Clock) -> None:
    await submit_many(timed, 2, ONCE)
    first = await claim_one(timed)
    clock.forward(LEASE + 1)
    [(job, task)] = (await timed.overdue(10)).tasks

    await made(timed, lifecycle.lose(job, task, token=first.token, now=timed.now()))

    assert len(await claim(timed)) == 1
    assert (await used(timed))[0] == 1


async def test_a_lost_worker_makes_room_for_what_waits(timed: Store, clock: Clock) -> None:
    """The task itself has no attempt left, so only the one that is parked can use the room."""
    _, second = await submit_many(timed, 2, plan(stage("only", limits=(at_once(1),), retries=0)))
    first = await claim_one(timed)
    assert await claim(timed) == []
    clock.forward(LEASE + 1)
    [(job, task)] = (await timed.overdue(10)).tasks

    await made(timed, lifecycle.lose(job, task, token=first.token, now=timed.now()))

    assert [each.job.id for each in await claim(timed)] == [second.id]


async def test_a_lease_that_is_renewed_is_counted_once(store: Store) -> None:
    await submit_many(store, 3, TWO)
    first, _ = await claim(store)
    await store.renew([lease_of(first)], LEASE)

    assert await used(store) == (2, 1)


async def test_each_end_wakes_one(store: Store) -> None:
    await submit_many(store, 6, limited(at_once(3)))
    first = await claim(store)

    await finish(store, first[0])
    assert len(await claim(store)) == 1
    await finish(store, first[1])
    await finish(store, first[2])
    assert len(await claim(store)) == 2
    assert await used(store) == (3, 0)


async def test_other_workers_hear_that_there_is_room(store: Store, other: Store) -> None:
    await submit_many(store, 2, ONCE)
    first = await claim_one(store)
    assert await claim(other) == []
    mark = await other.wait_for_change(None, 0, is_working=True)

    await finish(store, first)

    assert await other.wait_for_change(mark, 20.0, is_working=True) != mark


def test_the_end_of_a_task_with_limits_is_not_its_workers_own_matter() -> None:
    job = start_of(ONLY, "t", 1.0)(submission(ONCE, now=1.0).after).after
    free = start_of(ONLY, "t", 1.0)(submission(ONE, now=1.0).after).after

    assert not is_own_work(lifecycle.finish(job, ONLY, token="t", result=RESULT, now=2.0))
    assert is_own_work(lifecycle.finish(free, ONLY, token="t", result=RESULT, now=2.0))


async def test_the_most_urgent_is_woken(store: Store) -> None:
    first = await started(store, ONCE)
    await submit(store, ONCE)
    urgent = await submit(store, ONCE, priority=5)
    assert await claim(store) == []

    await finish(store, first)

    assert [each.job.id for each in await claim(store)] == [urgent.id]


async def test_what_nobody_serves_does_not_keep_the_room_from_others(store: Store) -> None:
    gpu = at_once(1, "", "gpu")
    first = await started(store, limited(gpu))
    await submit_many(store, 3, plan(stage("left", kind="nobody", limits=(gpu,)), pipeline="old"))
    await submit(store, limited(gpu))
    assert await claim(store, kinds=["only", "nobody"]) == []

    await finish(store, first)

    assert len(await claim(store, kinds=["only"])) == 1


async def test_a_woken_task_that_finds_another_limit_full_makes_way(store: Store) -> None:
    both = limited(at_once(1), at_once(1, "", "gpu"))
    await submit_for(store, both, ["ann"])
    await submit_for(store, limited(at_once(1)), ["bob"])  # bob is busy, and not on the gpu
    ann, _bob = await claim(store)
    await submit_for(store, both, ["eve", "bob", "bob", "dan"])
    assert await claim(store) == []

    await finish(store, ann)  # the gpu is free: eve is the first
    [eve] = await claim(store)
    assert eve.job.user == "eve"
    await finish(store, eve)  # bob is next, but busy: dan

    assert users_of(await claim(store)) == "dan"


async def test_a_cancelled_task_that_was_woken_makes_way(store: Store) -> None:
    first = await started(store, ONCE)
    second, third = await submit_many(store, 2, ONCE)
    assert await claim(store) == []
    await finish(store, first)

    await cancel(store, second.id)

    assert [each.job.id for each in await claim(store)] == [third.id]


async def test_a_cancelled_task_is_parked_no_longer(store: Store) -> None:
    first = await started(store, ONCE)
    second, third = await submit_many(store, 2, ONCE)
    assert await claim(store) == []

    await cancel(store, second.id)

    assert await used(store) == (1, 1)
    await finish(store, first)
    assert [each.job.id for each in await claim(store)] == [third.id]


async def test_a_task_that_comes_back_waits_like_any_other(store: Store) -> None:
    jobs = await submit_many(store, 2, ONCE)
    first = await claim_one(store)
    await by(lifecycle.hand_back)(store, first)

    assert [each.job.id for each in await claim(store)] == [jobs[0].id]
    assert await used(store) == (1, 1)


async def test_delayed_tasks_are_counted_when_they_are_due(timed: Store, clock: Clock) -> None:
    for _ in range(3):
        await submit(timed, ONCE, delay=10.0)
    clock.forward(11.0)

    first = await claim_one(timed)
    assert await claim(timed) == []
    await finish(timed, first)

    assert len(await claim(timed)) == 1


async def test_what_is_parked_is_not_ready(store: Store) -> None:
    await submit_many(store, 3, ONCE)
    await claim(store)

    assert await store.ready({"default": ["only"]}) == {"default": 0}


async def test_nothing_is_left_when_all_is_done(store: Store) -> None:
    await submit_many(store, 7, limited(at_once(2), at_once(3, "tenant")))
    while found := await claim(store):
        await finish_all(store, found)

    assert await store.limit_states() == []


async def test_a_start_that_is_committed_apart_is_refused_over_the_limit(store: Store) -> None:
    jobs = await submit_many(store, 2, ONCE)

    await made(store, start_of(ONLY, "t1", store.now())(await held(store, jobs[0].id)))
    late = start_of(ONLY, "t2", store.now())(jobs[1])

    assert type(await refused(store, late)) is Conflict
    assert (await used(store))[0] == 1


async def test_two_starts_in_one_commit_are_counted_one_after_the_other(store: Store) -> None:
    jobs = await submit_many(store, 2, ONCE)

    starts = [start_of(ONLY, f"t{n}", store.now())(job) for n, job in enumerate(jobs)]
    outcomes = await store.commit(starts)

    assert [type(each) for each in outcomes] == [type(None), Conflict]


async def test_the_next_stage_of_a_job_is_counted_in_the_step_that_ends_the_one_before(store: Store) -> None:
    chain = plan(stage("onnx", limits=(at_once(1),)), stage("bie", needs("onnx"), limits=(at_once(1),)))
    await submit(store, chain)

    [first] = await claim(store)
    assert (await store.commit([finishing(first, now=store.now())])) == [None]

    assert len(await claim(store)) == 1
    assert (await used(store))[0] == 1


async def test_tasks_of_one_limit_with_two_numbers_go_by_their_own(store: Store) -> None:
    """The plan was changed: older jobs keep theirs."""
    await submit_many(store, 2, limited(at_once(1)))
    await submit_many(store, 4, limited(at_once(3)))

    found = await claim(store)
    assert len(found) == 3
    await finish(store, found[0])

    assert len(await claim(store)) == 1


# operators


async def test_a_raised_limit_wakes_what_waits(store: Store, other: Store) -> None:
    await submit_many(store, 5, ONCE)
    await claim(store)

    await other.set_limit("convert.user", 3)

    assert len(await claim(store)) == 2
    [state] = await store.limit_states([USER])
    assert (state.most, state.used, state.parked) == (3, 3, 2)


async def test_a_lowered_limit_stops_what_is_ready(store: Store) -> None:
    await submit_many(store, 5, TWO)
    first, second = await claim(store)
    await store.set_limit("convert.user", 1)

    await finish(store, first)
    assert await claim(store) == []
    await finish(store, second)

    assert len(await claim(store)) == 1


async def test_zero_stops_everything_until_it_is_taken_back(store: Store) -> None:
    await store.set_limit("convert.user", 0)
    await submit_many(store, 3, TWO)
    assert await claim(store) == []

    await store.set_limit("convert.user", None)

    assert len(await claim(store)) == 2


async def test_a_value_is_for_its_name_only(store: Store) -> None:
    await submit_for(store, limited(at_once(1, name="convert.user")), ["ann", "ann"])
    await submit_for(store, limited(at_once(1, name="convert.users")), ["bob", "bob"])
    await store.set_limit("convert.user", 2)

    assert users_of(await claim(store)) == "ann ann bob"


async def test_states_name_who_holds_and_since_when(timed: Store, clock: Clock) -> None:
    await submit_many(timed, 3, TWO)
    now = clock.now
    claims = await claim(timed, worker="w7")

    [state] = await timed.limit_states()

    assert (state.key, state.most, state.used, state.parked, state.free_at) == (USER, None, 2, 1, None)
    assert [(each.job_id, each.task, each.worker, each.since) for each in state.holders] == [
        (each.job.id, ONLY, "w7", now) for each in claims
    ]


async def test_states_are_listed_by_name_in_pages(store: Store) -> None:
    await submit_for(
        store, limited(at_once(1, name="a"), at_once(5, "", "a"), at_once(1, name="b")), ["u1", "u2", "u3"]
    )
    await submit_for(store, limited(at_once(1, name="a.b")), ["u1"])
    await claim(store)

    everything = [each.key for each in await store.limit_states()]
    mine = [each.key for each in await store.limit_states(name="a")]
    second = [each.key for each in await store.limit_states(name="a", after="a=default/u1", limit=1)]

    users = [f"=default/u{n}" for n in (1, 2, 3)]
    assert everything == ["a", "a.b=default/u1", *(f"a{each}" for each in users), *(f"b{each}" for each in users)]
    assert mine == ["a", *(f"a{each}" for each in users)]
    assert second == ["a=default/u2"]


async def test_a_key_that_nobody_uses_has_a_state(store: Store) -> None:
    await store.set_limit("gpu", 4)

    [state] = await store.limit_states(["gpu"])

    assert (state.key, state.most, state.used, state.holders, state.parked) == ("gpu", 4, 0, (), 0)


# rates


async def test_a_rate_is_kept_in_every_window(timed: Store, clock: Clock) -> None:
    await submit_many(timed, 50, limited(per_minute(3)))
    began: list[float] = []
    while clock.now < 1_800_000_000.0 + 250:
        found = await claim(timed)
        began += [clock.now] * len(found)
        await finish_all(timed, found)
        clock.forward(7.0)

    assert len(began) > 10
    for begin in began:
        assert sum(begin <= at <= begin + 60.0 for at in began) <= 3


@pytest.mark.parametrize(("wait", "expected"), [(59.0, 0), (60.0, 0), (60.5, 2), (1_000.0, 2)])
async def test_a_window_includes_both_of_its_ends(timed: Store, clock: Clock, wait: float, expected: int) -> None:
    await submit_many(timed, 9, limited(per_minute(2)))
    assert len(await claim(timed)) == 2

    clock.forward(wait)
    await submit(timed, limited(per_minute(2)), priority=1)  # one that was not stopped before

    assert len(await claim(timed)) == expected


async def test_each_start_frees_its_own_room(timed: Store, clock: Clock) -> None:
    await submit_many(timed, 9, limited(per_minute(2)))
    assert len(await claim(timed, 1)) == 1
    clock.forward(30.0)
    assert len(await claim(timed)) == 1
    clock.forward(30.5)
    assert len(await claim(timed)) == 1
    clock.forward(15.0)
    assert await claim(timed) == []
    clock.forward(15.0)

    assert len(await claim(timed)) == 1


async def test_a_start_counts_although_its_lease_has_ended(timed: Store) -> None:
    await submit_many(timed, 3, limited(per_minute(1)))
    await finish(timed, await claim_one(timed))

    assert await claim(timed) == []


async def test_a_state_says_when_a_rate_has_room_again(timed: Store, clock: Clock) -> None:
    await submit_many(timed, 3, limited(per_minute(1)))
    now = clock.now
    await claim(timed)
    clock.forward(5.0)

    [state] = await timed.limit_states()

    assert (state.key, state.used, state.parked, state.free_at) == (
        "convert.user.per_minute=default/ann",
        1,
        2,
        now + 60.0,
    )


async def test_an_operator_changes_a_rate(timed: Store, clock: Clock) -> None:
    await submit_many(timed, 9, limited(per_minute(1)))
    await claim(timed)

    await timed.set_limit("convert.user.per_minute", 4)
    assert len(await claim(timed)) == 3
    await timed.set_limit("convert.user.per_minute", 0)
    clock.forward(61.0)
    assert await claim(timed) == []
    await timed.set_limit("convert.user.per_minute", None)

    assert len(await claim(timed)) == 1


async def test_a_clock_that_was_ahead_does_not_block_a_rate(timed: Store, clock: Clock) -> None:
    """Starts that lie in the future count as of now: no longer than a window, and not less."""
    await submit_many(timed, 3, limited(per_minute(1)))
    clock.forward(86_400.0)
    await claim(timed)
    clock.forward(-86_400.0)
    assert await claim(timed) == []

    clock.forward(61.0)

    assert len(await claim(timed)) == 1


async def test_both_kinds_of_limits_hold_together(timed: Store, clock: Clock) -> None:
    await submit_many(timed, 9, limited(at_once(2), per_minute(3)))
    first, second = await claim(timed)
    await finish(timed, first)
    [third] = await claim(timed)
    await finish(timed, second)
    assert await claim(timed) == []
    await finish(timed, third)
    clock.forward(61.0)

    assert len(await claim(timed)) == 2


async def test_a_later_stage_counts_by_the_parameters_of_its_own_job(store: Store) -> None:
    site = Limit("convert.params.site", "params.site", 1)
    later = plan(stage("onnx"), stage("only", needs("onnx"), limits=(site,)))
    for name in ("a", "b"):
        await submit(store, later, of_site(name))
    for first in await claim(store):
        await finish(store, first)

    begun = await claim(store)

    assert {found.job.limit_values["site"] for found in begun} == {"a", "b"}
    assert {state.key: state.used for state in await store.limit_states(name=site.name)} == {
        f"{site.name}=a": 1,
        f"{site.name}=b": 1,
    }
    await finish_all(store, begun)
    assert await store.limit_states(name=site.name) == []
