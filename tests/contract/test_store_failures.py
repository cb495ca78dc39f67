"""Failures: kept and counted with the status they are about, settled with the run that mends them, forgotten later."""

from __future__ import annotations

import asyncio

import pytest
from msgspec.structs import replace

from packhorse.core import failures as rules
from packhorse.core import lifecycle
from packhorse.core.models import FailedRun, Firing, Settled
from packhorse.core.plan import Revive
from packhorse.errors import Conflict
from packhorse.store.base import FailureFilter, Store
from packhorse.store.collections.failures import add_action, dismiss_group, get_group, list_times, take_actions
from packhorse.store.redis import RedisStore
from tests.contract.builders import (
    UNKNOWN,
    cancelled,
    claim_one,
    completed,
    fail,
    finishing,
    made,
    marked,
    plan,
    refused,
    stage,
    started,
    submission,
)
from tests.contract.failures import (
    ALL,
    BY_ANN,
    DISMISSED,
    OPEN,
    RESOLVED,
    RETRIED,
    again,
    assert_counted,
    failing,
    failing_many,
    id_of,
    mended,
    one,
    only_group,
    wrong,
)
from tests.contract.stores import Clock

REVIVED = plan(stage("only"), revive=Revive(("BROKEN",), times=3, backoff=60.0, budget=7, per=600.0))


# The end of a run


async def test_a_run_that_fails_leaves_a_failure_with_all_that_is_known_of_it(store: Store, other: Store) -> None:
    job = await failing(store, wrong("Model 7 is broken."), user="ann", trace_id="t1", tenant="default")

    assert await other.failures(ALL) == [
        FailedRun(
            id=id_of(job),
            fingerprint=rules.fingerprint("convert", "only", "BROKEN", "Model 8 is broken."),
            job_id=job.id,
            run=1,
            tenant="default",
            user="ann",
            pipeline="convert",
            code="BROKEN",
            message="Model 7 is broken.",
            at=job.completed_at or 0.0,
            stage="only",
            attempts=1,
            trace_id="t1",
        )
    ]
    await assert_counted(other)


async def test_a_job_of_a_schedule_says_which(store: Store) -> None:
    change = submission(now=store.now())
    await made(store, replace(change, after=replace(change.after, firing=Firing("nightly", 60.0))))
    await fail(store, await claim_one(store), wrong())

    [failure] = await store.failures(FailureFilter("default", schedule="nightly"))

    assert failure.schedule == "nightly"
    assert await store.failures(FailureFilter("default", schedule="other")) == []


async def test_nothing_else_leaves_one(store: Store) -> None:
    await completed(store)
    await cancelled(store)

    assert await store.failures(ALL) == []
    assert await store.failure_groups("default") == []
    assert await take_actions(store, "alert", 10, 60.0) == []


async def test_a_refused_commit_leaves_neither_a_failure_nor_a_count(store: Store) -> None:
    first = await failing(store)
    await take_actions(store, "alert", 10, 60.0)
    claim = await started(store)
    late = lifecycle.fail(claim.job, claim.task, token=claim.token, error=wrong(), luck=0.0, now=store.now())
    await made(store, finishing(claim, now=store.now()))

    await refused(store, late)

    assert [each.id for each in await store.failures(ALL)] == [id_of(first)]
    assert (await only_group(store)).count == 1
    assert await take_actions(store, "alert", 10, 60.0) == []
    await assert_counted(store)


async def test_what_says_the_same_is_one_group_and_what_says_another_thing_is_another(store: Store) -> None:
    same = [wrong(f"No answer from '{host}' in {n} s.") for n, host in enumerate(("a", "b", "c"))]
    await failing_many(store, *same, wrong("No answer at all."), wrong(same[0].message, code="SLOW"))

    groups = await store.failure_groups("default")

    assert sorted(group.count for group in groups) == [1, 1, 3]
    await assert_counted(store)


async def test_a_group_counts_each_of_its_users_once(store: Store, other: Store) -> None:
    for user in ("ann", "bob", "ann"):
        await failing(store, user=user)

    group = await only_group(other)

    assert (group.count, group.users, group.unlisted) == (3, 2, 0)


async def test_past_so_many_users_their_number_is_a_least_one_and_stays_right(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rules, "MAX_USERS", 2)
    for user in ("ann", "bob", "cid", "bob", "dan"):
        await failing(store, user=user)
    full = await only_group(store)

    await store.forget_failures(store.now() + 60, 3)
    less = await only_group(store)
    await store.forget_failures(store.now() + 60, 10)

    assert (full.count, full.users, full.unlisted) == (5, 2, 2)
    assert (less.count, less.users, less.unlisted) == (2, 1, 1)
    assert await store.failure_groups("default") == []


async def test_failures_that_come_together_are_all_counted(store: Store, other: Store) -> None:
    claims = [await started(handle, user=f"u{n % 7}") for n in range(10) for handle in (store, other)]

    await asyncio.gather(
        *(fail((store, other)[n % 2], claim, wrong(f"It broke {n % 3} times.")) for n, claim in enumerate(claims))
    )

    assert (await only_group(store)).count == 20
    await assert_counted(other)


# Alerts and revivals


async def test_a_new_fingerprint_is_an_action_to_tell_people_and_one_that_is_known_is_none(store: Store) -> None:
    first, _ = await failing(store), await failing(store)

    told = await take_actions(store, "alert", 10, 60.0)

    assert [(each.id, each.tenant) for each in told] == [(f"alert.{id_of(first)}", "default")]
    assert b'"kind":"new"' in told[0].body
    assert await take_actions(store, "alert", 10, 60.0) == []


async def test_a_dismissed_group_that_is_seen_again_is_open_again_and_told_of(store: Store, other: Store) -> None:
    await failing(store)
    group = await only_group(store)
    await dismiss_group(store, "default", group.fingerprint, BY_ANN)
    dismissed = await only_group(other)
    await take_actions(store, "alert", 10, 60.0)

    job = await failing(store)

    assert dismissed.dismissal == BY_ANN
    seen = await only_group(other)
    assert (seen.dismissal, seen.seen_again) == (None, job.completed_at)
    [told] = await take_actions(store, "alert", 10, 60.0)
    assert b'"kind":"again"' in told.body


async def test_a_policy_puts_a_revival_off_and_says_how_many_there_may_be(timed: Store, clock: Clock) -> None:
    job = await failing(timed, plan=REVIVED)

    failure = await one(timed, job)
    early = await take_actions(timed, "revive", 10, 60.0)
    clock.forward(60.0)
    due = await take_actions(timed, "revive", 10, 60.0)

    assert (failure.revived, failure.times, failure.budget) == (0, 3, (7, 600.0))
    assert failure.revive_at == failure.at + 60.0
    assert early == []
    assert [each.id for each in due] == [f"revive.{failure.id}"]


async def test_a_revived_job_waits_twice_as_long_and_after_so_many_times_no_more(timed: Store, clock: Clock) -> None:
    job = await failing(timed, plan=REVIVED)
    waits = []
    for _ in range(3):
        await again(timed, job, by="policy", is_revival=True)
        job = await fail(timed, await claim_one(timed), wrong())
        failure = await one(timed, job)
        waits.append(None if failure.revive_at is None else failure.revive_at - failure.at)
        clock.forward(1.0)

    assert waits == [120.0, 240.0, None]
    assert (await one(timed, job)).revived == 3
    await again(timed, job)
    job = await fail(timed, await claim_one(timed), wrong())
    assert (await one(timed, job)).revived == 0


async def test_what_a_policy_does_not_name_is_not_revived(timed: Store, clock: Clock) -> None:
    await failing(timed, wrong(code="OTHER"), plan=REVIVED)
    clock.forward(3_600.0)

    assert await take_actions(timed, "revive", 10, 60.0) == []


# What becomes of it


async def test_a_retry_settles_the_failure_of_the_run_before_in_the_same_step(store: Store, other: Store) -> None:
    job = await failing(store)

    await again(store, job, by="ann")

    failure = await one(other, job)
    assert failure.status is RETRIED
    assert failure.settled is not None
    assert (failure.settled.by, failure.settled.run) == ("ann", 2)
    await assert_counted(other)


async def test_a_run_that_completes_resolves_what_it_was_a_retry_of(store: Store) -> None:
    job = await failing(store)

    await mended(store, job)

    failure = await one(store, job)
    assert (failure.status, failure.settled and failure.settled.run) == (RESOLVED, 2)
    assert (await only_group(store)).resolved == 1
    await assert_counted(store)


async def test_a_run_that_fails_again_is_another_failure_of_the_same_group(store: Store) -> None:
    first = await failing(store)
    await again(store, first)
    second = await fail(store, await claim_one(store), wrong())

    assert [(each.run, each.status) for each in await store.failures(ALL)] == [(2, OPEN), (1, RETRIED)]
    assert (await only_group(store)).count == 2
    await mended(store, second)
    assert {each.status for each in await store.failures(ALL)} == {RESOLVED}
    await assert_counted(store)


async def test_changes_of_one_job_in_one_commit_settle_what_they_have_just_recorded(store: Store) -> None:
    claim = await started(store)
    failed = lifecycle.fail(claim.job, claim.task, token=claim.token, error=wrong(), luck=0.0, now=store.now())
    retried = lifecycle.retry(failed.after, now=store.now(), by="ann")
    assert retried is not None

    assert await store.commit([failed, retried]) == [None, None]

    assert (await one(store, failed.after)).status is RETRIED
    await assert_counted(store)


async def test_a_refused_retry_settles_nothing(store: Store) -> None:
    slotted = plan(stage("only"), slot="convert")
    job = await failing(store, plan=slotted)
    await started(store, slotted)

    await refused(store, lifecycle.retry(job, now=store.now()))

    assert (await one(store, job)).status is OPEN
    await assert_counted(store)


async def test_open_ones_are_dismissed_and_others_stay_as_they_are(store: Store, other: Store) -> None:
    open, known, retried = [await failing(store) for _ in range(3)]
    await store.dismiss_failures([id_of(known)], Settled(1.0, "bob"))
    await again(store, retried)

    ids = [id_of(open), id_of(known), id_of(retried), UNKNOWN, id_of(open)]
    done = await other.dismiss_failures(ids, BY_ANN)

    assert done == [id_of(open)]
    assert (await one(store, open)).settled == BY_ANN
    assert [(await one(store, job)).status for job in (open, known, retried)] == [DISMISSED, DISMISSED, RETRIED]
    await assert_counted(store)


async def test_dismissing_twice_at_once_counts_once(store: Store, other: Store) -> None:
    jobs = [await failing(store) for _ in range(5)]
    ids = [id_of(job) for job in jobs]

    done = await asyncio.gather(*(handle.dismiss_failures(ids, BY_ANN) for handle in (store, other) for _ in range(3)))

    assert sorted(id for each in done for id in each) == sorted(ids)
    await assert_counted(store)


async def test_a_group_that_is_not_there_cannot_be_dismissed(store: Store) -> None:
    await failing(store)
    group = await only_group(store)

    await dismiss_group(store, "default", "0" * 24, BY_ANN)
    await dismiss_group(store, "acme", group.fingerprint, BY_ANN)

    assert await get_group(store, "default", "0" * 24) is None
    assert await get_group(store, "acme", group.fingerprint) is None
    assert await get_group(store, "default", group.fingerprint) == group


# Asked


async def test_failures_come_newest_first_and_page_by_page(store: Store) -> None:
    jobs = [await failing(store, wrong(f"Way {'abc'[n % 3]}.")) for n in range(7)]
    newest = sorted((id_of(job) for job in jobs), reverse=True)

    first = await store.failures(ALL, limit=3)
    second = await store.failures(ALL, before=first[-1].id, limit=3)
    third = await store.failures(ALL, before=second[-1].id, limit=3)

    assert [each.id for page in (first, second, third) for each in page] == newest
    assert await store.failures(ALL, before=newest[-1]) == []


async def test_each_filter_finds_its_own(timed: Store, clock: Clock) -> None:
    ann = await failing(timed, wrong("One."), user="ann")
    clock.forward(10.0)
    bob = await failing(timed, wrong("Two.", code="SLOW"), user="bob", plan=plan(stage("only"), pipeline="other"))
    clock.forward(10.0)
    await timed.dismiss_failures([id_of(bob)], BY_ANN)
    of_ann = await one(timed, ann)

    async def found(**wanted: object) -> list[str]:
        return [each.job_id for each in await timed.failures(FailureFilter("default", **wanted))]  # type: ignore[arg-type]

    assert await found(fingerprint=of_ann.fingerprint) == [ann.id]
    assert await found(user="bob") == [bob.id]
    assert await found(code="SLOW") == [bob.id]
    assert await found(pipeline="other") == [bob.id]
    assert await found(status=OPEN) == [ann.id]
    assert await found(status=DISMISSED) == [bob.id]
    assert await found(job_id=ann.id) == [ann.id]
    assert await found(job_id="nobody") == []
    assert await found(since=of_ann.at + 5) == [bob.id]
    assert await found(until=of_ann.at + 5) == [ann.id]
    assert await found(user="ann", code="SLOW") == []


async def test_a_tenant_sees_its_own_only(store: Store) -> None:
    mine, theirs = await failing(store), await failing(store, tenant="acme/x")

    assert [each.job_id for each in await store.failures(ALL)] == [mine.id]
    assert [each.job_id for each in await store.failures(FailureFilter("acme/x"))] == [theirs.id]
    assert (await only_group(store)).count == (await only_group(store, "acme/x")).count == 1
    await assert_counted(store, "acme/x")


async def test_a_rare_one_is_found_behind_many_others(store: Store) -> None:
    rare = await failing(store, wrong("Rare.", code="RARE"))
    await failing_many(store, *[wrong()] * 300)

    assert [each.job_id for each in await store.failures(FailureFilter("default", code="RARE"))] == [rare.id]


async def test_groups_come_last_seen_first_and_page_by_page(timed: Store, clock: Clock) -> None:
    for name in "abcab":
        await failing(timed, wrong(f"Way {name}."))
        clock.forward(1.0)

    groups = await timed.failure_groups("default")
    pages = [*await timed.failure_groups("default", limit=2)]
    pages += await timed.failure_groups("default", before=pages[-1].seen, limit=2)

    assert [group.message for group in groups] == ["Way b.", "Way a.", "Way c."]
    assert pages == groups
    assert [group.first_seen for group in groups] == [timed.now() - 4, timed.now() - 5, timed.now() - 3]


# The end of it


async def test_the_failure_of_a_job_that_is_gone_stays_until_its_own_time(store: Store) -> None:
    job = await failing(store)
    await store.erase((await marked(store, job)).id)

    assert await store.get([job.id]) == [None]
    assert [each.job_id for each in await store.failures(ALL)] == [job.id]
    assert [each.id for each in await store.failures(FailureFilter("default", job_id=job.id))] == [id_of(job)]
    await assert_counted(store)


async def test_what_is_old_is_forgotten_in_steps_and_counts_stay_right(timed: Store, clock: Clock) -> None:
    old = [await failing(timed, user=user) for user in ("ann", "bob", "cid")]
    clock.forward(100.0)
    until = clock.now
    young = await failing(timed, user="ann")
    await again(timed, old[1])

    steps = [await timed.forget_failures(until, 2) for _ in range(3)]

    assert steps == [2, 1, 0]
    assert [each.id for each in await timed.failures(ALL)] == [id_of(young)]
    group = await only_group(timed)
    assert (group.count, group.open, group.users, group.first_seen) == (1, 1, 1, old[0].completed_at)
    await assert_counted(timed)


async def test_two_that_forget_at_once_count_nothing_twice(timed: Store, open_store: object, clock: Clock) -> None:
    for n in range(20):
        await failing(timed, user=f"u{n % 3}")
    clock.forward(100.0)
    kept = await failing(timed)
    other = await open_store(clock=clock)  # type: ignore[operator]

    await asyncio.gather(*(handle.forget_failures(clock.now, 20) for handle in (timed, other)))

    assert [each.id for each in await timed.failures(ALL)] == [id_of(kept)]
    await assert_counted(timed)


async def test_a_retry_of_a_job_whose_failure_is_forgotten_settles_nothing(timed: Store, clock: Clock) -> None:
    job = await failing(timed)
    clock.forward(1.0)
    await timed.forget_failures(clock.now, 10)

    await mended(timed, job)

    assert await timed.failures(ALL) == []
    assert await timed.failure_groups("default") == []


async def test_groups_are_listed_without_a_look_at_their_failures(store: Store) -> None:
    """What it costs is shown in the bench; here, that the failures themselves may be missing."""
    await failing_many(store, *[wrong(f"Way {'abc'[n % 3]}.") for n in range(30)])
    if isinstance(store, RedisStore):
        await store._link.call("DEL", f"{store._link.prefix}failures")
    else:
        await store.forget_failures(0.0, 10)

    assert sorted(group.count for group in await store.failure_groups("default")) == [10, 10, 10]


async def test_the_times_of_groups_are_told_newest_first_as_many_as_asked_for(timed: Store, clock: Clock) -> None:
    start, times = clock.now, []
    for _ in range(3):
        clock.forward(10.0)
        times.append((await failing(timed, wrong("Way a."))).completed_at)
    other = await failing(timed, wrong("Way b."))
    await failing(timed, wrong("Way a."), tenant="other")
    a, b = [rules.fingerprint("convert", "only", "BROKEN", f"Way {way}.") for way in "ab"]

    found = await list_times(timed, "default", [b, "nothing", a], since=start, limit=2)
    later = await list_times(timed, "default", [a], since=start + 25.0, limit=10)

    assert [[pytest.approx(at, abs=0.001) for at in group] for group in found] == [
        [other.completed_at],
        [],
        [times[2], times[1]],
    ]
    assert [len(group) for group in later] == [1]
    assert await list_times(timed, "default", [], since=start, limit=2) == []


async def test_no_failure_is_lost_to_a_racing_retry(store: Store, other: Store) -> None:
    """Who retries and who dismisses a failure at the same moment leave it in one status, counted once."""
    for _ in range(10):
        job = await failing(store)
        change = lifecycle.retry(job, now=store.now())
        assert change is not None
        await asyncio.gather(store.commit([change]), other.dismiss_failures([id_of(job)], BY_ANN))
        assert (await one(store, job)).status in (RETRIED, DISMISSED)
        await finish_all(store)
    await assert_counted(store)


async def finish_all(store: Store) -> None:
    await made(store, finishing(await claim_one(store), now=store.now()))


async def test_the_action_of_a_failure_is_there_once(store: Store) -> None:
    await failing(store, plan=REVIVED)
    [alert] = await take_actions(store, "alert", 10, 60.0)

    with pytest.raises(Conflict):
        await add_action(store, alert)
