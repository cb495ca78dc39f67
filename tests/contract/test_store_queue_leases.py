"""Leases over time: renewed by who holds them, overdue by the store's clock, and jobs past their deadline."""

from __future__ import annotations

from packhorse.core import lifecycle
from packhorse.core.plan import Status
from packhorse.store.base import Filter, Lease, Renewal, Store
from tests.contract.builders import (
    APART,
    HOUR,
    LEASE,
    LEFT,
    ONLY,
    RIGHT,
    SLOTTED,
    UNKNOWN,
    attempt_of,
    cancel,
    claim,
    claim_one,
    completed,
    fail,
    finish,
    held,
    ids,
    lease_of,
    made,
    settled,
    split,
    started,
    submit,
    submit_many,
    token_of,
    words,
)
from tests.contract.stores import Clock, OpenStore

NONE: frozenset[Lease] = frozenset()


# renew


async def test_a_renewed_lease_lasts_its_seconds_from_now(timed: Store, clock: Clock) -> None:
    claimed = await started(timed, lease=LEASE)
    clock.forward(10.0)

    await timed.renew([lease_of(claimed)], LEASE)

    clock.forward(LEASE - 0.5)
    assert (await timed.overdue(limit=10)).tasks == []
    clock.forward(0.5)
    assert (await timed.overdue(limit=10)).tasks == [(claimed.job, ONLY)]


async def test_a_renewal_says_nothing_about_a_lease_that_goes_on(store: Store) -> None:
    claimed = await started(store)

    renewal = await store.renew([lease_of(claimed)], LEASE)

    assert renewal == Renewal(NONE, NONE)


async def test_renewing_under_a_wrong_token_is_lost_and_moves_nothing(timed: Store, clock: Clock) -> None:
    claimed = await started(timed, lease=LEASE)
    wrong = lease_of(claimed)._replace(token="somebody else")

    renewal = await timed.renew([wrong], 10 * LEASE)

    assert renewal.lost == {wrong}
    clock.forward(LEASE)
    assert (await timed.overdue(limit=10)).tasks == [(claimed.job, ONLY)]


async def test_a_superseded_attempt_cannot_renew_the_lease_of_the_next(timed: Store, clock: Clock) -> None:
    old = await started(timed, lease=LEASE)
    clock.forward(LEASE)
    await made(timed, lifecycle.lose(old.job, ONLY, token=old.token, now=clock()))
    new = await claim_one(timed, worker="w2", lease=LEASE)

    renewal = await timed.renew([lease_of(old)], 10 * LEASE)

    assert renewal.lost == {lease_of(old)}
    clock.forward(LEASE)
    assert (await timed.overdue(limit=10)).tasks == [(new.job, ONLY)]


async def test_a_lease_that_never_was_is_lost(store: Store) -> None:
    pending = await submit(store)
    never = [Lease(UNKNOWN, ONLY, "t"), Lease(pending.id, ONLY, "t"), Lease(pending.id, LEFT, "t")]

    renewal = await store.renew(never, LEASE)

    assert renewal.lost == frozenset(never)


async def test_a_lost_lease_among_many_harms_no_other(timed: Store, clock: Clock) -> None:
    first, gone, last = [await started(timed, lease=LEASE) for _ in range(3)]
    await finish(timed, gone)
    clock.forward(LEASE - 1.0)

    renewal = await timed.renew([lease_of(each) for each in (first, gone, last)], LEASE)

    assert renewal.lost == {lease_of(gone)}
    clock.forward(LEASE - 1.0)
    assert (await timed.overdue(limit=10)).tasks == []


async def test_an_overdue_lease_that_nobody_took_is_renewed(timed: Store, clock: Clock) -> None:
    claimed = await started(timed, lease=LEASE)
    clock.forward(10 * LEASE)

    renewal = await timed.renew([lease_of(claimed)], LEASE)

    assert renewal.lost == frozenset()
    assert (await timed.overdue(limit=10)).tasks == []


async def test_a_renewal_tells_which_jobs_are_being_stopped(store: Store, other: Store) -> None:
    stopped, going_on = await started(store), await started(store)
    await cancel(other, stopped.job.id)

    renewal = await store.renew([lease_of(stopped), lease_of(going_on)], LEASE)

    assert renewal == Renewal(NONE, frozenset({lease_of(stopped)}))


async def test_a_failed_sibling_stops_the_others(store: Store) -> None:
    await submit(store, APART)
    left, right = await claim(store)
    await fail(store, left)

    renewal = await store.renew([lease_of(left), lease_of(right)], LEASE)

    assert renewal == Renewal(frozenset({lease_of(left)}), frozenset({lease_of(right)}))


async def test_a_lease_lost_while_the_job_is_stopping_is_lost_not_stopping(store: Store) -> None:
    claimed = await started(store)
    await cancel(store, claimed.job.id)
    wrong = lease_of(claimed)._replace(token="somebody else")

    renewal = await store.renew([wrong], LEASE)

    assert renewal == Renewal(frozenset({wrong}), NONE)


async def test_renewing_is_no_history(store: Store) -> None:
    claimed = await started(store)
    told = await words(store, claimed.job.id)

    await store.renew([lease_of(claimed)], LEASE)

    assert await held(store, claimed.job.id) == claimed.job
    assert await words(store, claimed.job.id) == told


async def test_renewing_nothing_is_nothing(store: Store) -> None:
    renewal = await store.renew([], LEASE)

    assert renewal == Renewal(NONE, NONE)


async def test_a_worker_that_renews_in_time_is_never_overdue(timed: Store, clock: Clock) -> None:
    claimed = await started(timed, lease=LEASE)

    for _ in range(10):
        clock.forward(5.0)
        await timed.renew([lease_of(claimed)], LEASE)
        assert (await timed.overdue(limit=10)).tasks == []


# standing


async def test_standing_says_what_a_renewal_would_say(store: Store, other: Store) -> None:
    gone, stopped, going_on = [await started(store) for _ in range(3)]
    await finish(store, gone)
    await cancel(store, stopped.job.id)
    wrong = lease_of(going_on)._replace(token="somebody else")
    leases = [lease_of(gone), lease_of(stopped), lease_of(going_on), wrong, Lease(UNKNOWN, ONLY, "t")]

    found = await other.renew(leases, None)

    assert found == Renewal(frozenset({lease_of(gone), wrong, leases[-1]}), frozenset({lease_of(stopped)}))
    assert found == await store.renew(leases, LEASE)


async def test_asking_how_a_lease_stands_does_not_move_its_deadline(timed: Store, clock: Clock) -> None:
    claimed = await started(timed, lease=LEASE)
    clock.forward(LEASE - 1.0)

    await timed.renew([lease_of(claimed)], None)

    clock.forward(1.0)
    assert (await timed.overdue(limit=10)).tasks == [(claimed.job, ONLY)]


async def test_an_overdue_lease_that_nobody_took_still_stands(timed: Store, clock: Clock) -> None:
    claimed = await started(timed, lease=LEASE)
    clock.forward(10 * LEASE)

    found = await timed.renew([lease_of(claimed)], None)

    assert found == Renewal(NONE, NONE)


# overdue


async def test_a_lease_is_overdue_when_its_time_is_over_and_not_before(timed: Store, clock: Clock) -> None:
    claimed = await started(timed, lease=LEASE)
    clock.forward(LEASE - 0.5)
    assert (await timed.overdue(limit=10)).tasks == []

    clock.forward(0.5)

    assert (await timed.overdue(limit=10)).tasks == [(claimed.job, ONLY)]


async def test_every_handle_sees_what_is_overdue(timed: Store, clock: Clock, open_store: OpenStore) -> None:
    claimed = await started(timed, lease=LEASE)
    neighbour = await open_store(clock=clock)

    clock.forward(LEASE)

    assert (await neighbour.overdue(limit=10)).tasks == [(claimed.job, ONLY)]


async def test_only_what_is_overdue_is_given_and_the_rest_goes_on(timed: Store, clock: Clock) -> None:
    short, _long = await started(timed, lease=5.0), await started(timed, lease=50.0)

    clock.forward(10.0)

    assert (await timed.overdue(limit=10)).tasks == [(short.job, ONLY)]


async def test_every_task_of_a_job_is_overdue_for_itself(timed: Store, clock: Clock) -> None:
    job = await split(timed, 12)
    await claim(timed, lease=LEASE)

    clock.forward(LEASE)

    found = (await timed.overdue(limit=20)).tasks
    assert {(job.id, at) for job, at in found} == {(job.id, ("page", n)) for n in range(12)}


async def test_a_sweep_in_small_steps_loses_every_overdue_lease(timed: Store, clock: Clock) -> None:
    jobs = await submit_many(timed, 7)
    await claim(timed, lease=LEASE)
    clock.forward(LEASE)

    while found := (await timed.overdue(limit=3)).tasks:
        assert len(found) <= 3
        for job, at in found:
            await made(timed, lifecycle.lose(job, at, token=token_of(job, at), now=clock()))

    assert [claimed.job.id for claimed in await claim(timed)] == ids(jobs)


async def test_a_task_that_ended_is_not_overdue(timed: Store, clock: Clock) -> None:
    await completed(timed)

    clock.forward(10 * LEASE)

    assert (await timed.overdue(limit=10)).tasks == []


async def test_a_lost_attempt_is_spent_and_the_next_one_is_due(timed: Store, clock: Clock) -> None:
    claimed = await started(timed, SLOTTED, lease=LEASE)
    clock.forward(LEASE)

    await settled(timed, claimed.job.id, lambda job: lifecycle.lose(job, ONLY, token=claimed.token, now=clock()))

    [again] = await claim(timed, worker="w2")
    assert attempt_of(again.job) == 2
    assert again.token != claimed.token


# held_by


async def test_a_worker_holds_what_it_claimed_and_nothing_else(store: Store, other: Store) -> None:
    mine, _theirs = await started(store, worker="w"), await started(store, worker="w2")

    assert await other.held_by("w", limit=10) == [(mine.job, ONLY)]


async def test_a_worker_nobody_knows_holds_nothing(store: Store) -> None:
    await started(store)

    assert await store.held_by("nobody", limit=10) == []


async def test_what_a_worker_holds_is_cut_at_the_limit(store: Store) -> None:
    await split(store, 5)
    await claim(store, worker="w2")

    assert len(await store.held_by("w2", limit=3)) == 3
    assert len(await store.held_by("w2", limit=10)) == 5


async def test_what_a_worker_holds_is_found_behind_all_that_others_hold(store: Store) -> None:
    await submit_many(store, 501)  # one more than any store looks at in one step
    assert len(await claim(store, worker="w2")) == 501

    mine = await started(store, worker="w")

    assert await store.held_by("w", limit=10) == [(mine.job, ONLY)]


async def test_the_leases_of_a_worker_seen_dead_are_lost_at_once(store: Store) -> None:
    await submit(store, APART)
    await claim(store)

    while found := await store.held_by("w", limit=1):
        [(job, at)] = found
        await made(store, lifecycle.lose(job, at, token=token_of(job, at), now=1.0, witnessed=True))

    assert await store.held_by("w", limit=10) == []
    assert {claimed.task for claimed in await claim(store, worker="w2")} == {LEFT, RIGHT}


# expired


async def test_a_job_past_its_deadline_is_expired_and_not_before(timed: Store, clock: Clock) -> None:
    job = await submit(timed)
    clock.forward(HOUR - 0.5)
    assert await timed.expired(limit=10) == []

    clock.forward(0.5)

    assert await timed.expired(limit=10) == [job]


async def test_a_running_job_past_its_deadline_is_expired(timed: Store, clock: Clock) -> None:
    claimed = await started(timed)

    clock.forward(HOUR)

    assert await timed.expired(limit=10) == [claimed.job]


async def test_a_job_that_is_being_stopped_is_not_expired_again(timed: Store, clock: Clock) -> None:
    claimed = await started(timed)
    clock.forward(HOUR)

    await settled(timed, claimed.job.id, lambda job: lifecycle.expire(job, now=clock()))

    assert await timed.expired(limit=10) == []
    assert (await held(timed, claimed.job.id)).stopping == "expire"


async def test_an_ended_job_does_not_expire(timed: Store, clock: Clock) -> None:
    await completed(timed)

    clock.forward(HOUR)

    assert await timed.expired(limit=10) == []


async def test_a_full_page_of_jobs_being_stopped_does_not_hide_the_expired(timed: Store, clock: Clock) -> None:
    for _ in range(5):
        await cancel(timed, (await started(timed)).job.id)
    job = await submit(timed)

    clock.forward(HOUR + 1.0)

    assert await timed.expired(limit=1) == [job]


async def test_a_retried_job_has_a_deadline_of_its_own(timed: Store, clock: Clock) -> None:
    job = await submit(timed)
    clock.forward(HOUR)
    job = await settled(timed, job.id, lambda job: lifecycle.expire(job, now=clock()))
    assert job.status is Status.FAILED

    job = await made(timed, lifecycle.retry(job, now=clock()))

    assert await timed.expired(limit=10) == []
    clock.forward(HOUR)
    assert await timed.expired(limit=10) == [job]


async def test_the_expired_are_cut_at_the_limit_and_all_come_in_time(timed: Store, clock: Clock) -> None:
    await submit_many(timed, 5)
    clock.forward(HOUR)

    while found := await timed.expired(limit=2):
        assert len(found) <= 2
        for job in found:
            await made(timed, lifecycle.expire(job, now=clock()))

    assert {job.status for job in await timed.find(Filter())} == {Status.FAILED}
