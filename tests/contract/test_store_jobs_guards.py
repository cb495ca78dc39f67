"""Each guard on its own: the version is right, and the guard alone decides."""

from __future__ import annotations

from msgspec.structs import replace

from packhorse.core import lifecycle
from packhorse.core.changes import Change, Foremost, Guard, Holds, MakeDue, Overdue, SlotFree, Waiting
from packhorse.core.models import Job, Result, TaskId
from packhorse.errors import AlreadySubmitted, Conflict, LeaseLost, SlotTaken
from packhorse.store.base import Store
from tests.contract.builders import (
    APART,
    CHAIN,
    LEASE,
    LEFT,
    ONE,
    ONLY,
    RIGHT,
    SLOT,
    SLOTTED,
    claim,
    claim_one,
    completed,
    failed,
    held,
    lease_of,
    made,
    refused,
    split,
    started,
    submission,
    submit,
    sure,
)
from tests.contract.stores import Clock


def touch(job: Job, *guards: Guard, now: float) -> Change:
    """The next version of the job, changed in nothing but its time, under these guards."""
    return Change(job, replace(job, version=job.version + 1, updated_at=now), guards)


# Holds


async def test_a_write_under_the_token_of_the_lease_is_made(store: Store) -> None:
    claimed = await started(store)

    job = await made(store, touch(claimed.job, Holds(ONLY, claimed.token), now=1.0))

    assert await held(store, job.id) == job


async def test_a_write_under_another_token_is_refused_with_the_job_and_stage(store: Store) -> None:
    claimed = await started(store)

    error = await refused(store, touch(claimed.job, Holds(ONLY, "somebody else"), now=1.0))

    assert isinstance(error, LeaseLost)
    assert (error.facts["job_id"], error.facts["stage"]) == (claimed.job.id, "only")
    assert await held(store, claimed.job.id) == claimed.job


async def test_a_write_under_a_token_without_any_lease_is_refused(store: Store) -> None:
    job = await submit(store)

    error = await refused(store, touch(job, Holds(ONLY, "t"), now=1.0))

    assert isinstance(error, LeaseLost)


async def test_the_token_of_one_element_is_not_good_for_another(store: Store) -> None:
    job = await split(store, 2)
    first, second = await claim(store)
    assert (first.job.id, first.token) != (job.id, second.token)

    error = await refused(store, touch(second.job, Holds(second.task, first.token), now=1.0))

    assert isinstance(error, LeaseLost)


async def test_the_token_of_one_job_is_not_good_for_another(store: Store) -> None:
    first, second = await started(store), await started(store)

    error = await refused(store, touch(second.job, Holds(ONLY, first.token), now=1.0))

    assert isinstance(error, LeaseLost)


async def test_a_token_is_good_after_its_time_as_long_as_nobody_took_the_lease(timed: Store, clock: Clock) -> None:
    claimed = await started(timed)
    clock.forward(10 * LEASE)

    job = await made(timed, touch(claimed.job, Holds(ONLY, claimed.token), now=1.0))

    assert (await held(timed, job.id)).version == job.version


# Overdue


async def test_a_lease_in_time_is_not_overdue_whatever_the_caller_thinks_the_time_is(
    timed: Store, clock: Clock
) -> None:
    claimed = await started(timed, lease=LEASE)
    clock.forward(LEASE - 0.5)
    a_day_ahead = clock() + 86_400.0

    error = await refused(timed, lifecycle.lose(claimed.job, ONLY, token=claimed.token, now=a_day_ahead))

    assert type(error) is Conflict
    assert await held(timed, claimed.job.id) == claimed.job


async def test_a_lease_past_its_time_is_overdue_whatever_the_caller_thinks_the_time_is(
    timed: Store, clock: Clock
) -> None:
    claimed = await started(timed, lease=LEASE)
    clock.forward(LEASE)
    a_day_behind = clock() - 86_400.0

    job = await made(timed, lifecycle.lose(claimed.job, ONLY, token=claimed.token, now=a_day_behind))

    assert await held(timed, job.id) == job
    assert await timed.held_by("w", limit=10) == []


async def test_a_loss_decided_before_a_renewal_is_refused(timed: Store, clock: Clock) -> None:
    claimed = await started(timed, lease=LEASE)
    clock.forward(LEASE)
    [(job, at)] = (await timed.overdue(limit=10)).tasks
    loss = lifecycle.lose(job, at, token=claimed.token, now=clock())
    await timed.renew([lease_of(claimed)], LEASE)

    error = await refused(timed, loss)

    assert type(error) is Conflict
    assert await held(timed, job.id) == claimed.job
    assert (await timed.renew([lease_of(claimed)], LEASE)).lost == frozenset()


async def test_an_overdue_lease_under_another_token_is_somebody_elses(timed: Store, clock: Clock) -> None:
    claimed = await started(timed, lease=LEASE)
    clock.forward(LEASE)

    error = await refused(timed, touch(claimed.job, Overdue(ONLY, "somebody else"), now=1.0))

    assert isinstance(error, Conflict)


async def test_what_is_not_leased_is_not_overdue(store: Store) -> None:
    job = await submit(store)

    error = await refused(store, touch(job, Overdue(ONLY, "t"), now=1.0))

    assert isinstance(error, Conflict)


async def test_a_loss_that_was_witnessed_needs_no_waiting(store: Store) -> None:
    claimed = await started(store)

    job = await made(store, lifecycle.lose(claimed.job, ONLY, token=claimed.token, now=1.0, witnessed=True))

    assert await held(store, job.id) == job


# Waiting


async def test_a_task_in_its_queue_may_be_started(store: Store) -> None:
    job = await submit(store)

    after = await made(store, lifecycle.start(job, ONLY, token="t", worker="w", lease=LEASE, now=store.now()))

    assert await held(store, job.id) == after
    assert await claim(store) == []


async def test_a_task_that_is_no_longer_in_its_queue_is_not_started(store: Store) -> None:
    job = await submit(store)
    await store.claim({"default": 1}, ["only"], lambda job, at: None)

    error = await refused(store, lifecycle.start(job, ONLY, token="t", worker="w", lease=LEASE, now=store.now()))

    assert type(error) is Conflict
    assert await held(store, job.id) == job
    assert await store.held_by("w", limit=10) == []


async def test_a_neighbours_entry_is_not_the_tasks_own(store: Store) -> None:
    await submit(store, APART)
    [claimed] = await claim(store, kinds=["left"])

    error = await refused(store, touch(claimed.job, Waiting(LEFT), now=1.0))

    assert type(error) is Conflict
    await made(store, touch(claimed.job, Waiting(RIGHT), now=1.0))


# SlotFree


async def test_a_taken_slot_names_the_job_that_has_it(store: Store) -> None:
    active = await submit(store, SLOTTED)

    error = await refused(store, submission(SLOTTED, now=store.now()))

    assert isinstance(error, SlotTaken)
    assert error.facts["active_job_id"] == active.id


async def test_a_slot_is_free_for_the_job_that_holds_it(store: Store) -> None:
    job = await submit(store, SLOTTED)

    after = await made(store, touch(job, SlotFree(SLOT), now=1.0))

    assert await held(store, job.id) == after


async def test_a_second_submit_of_my_own_id_hears_that_it_exists_not_that_the_slot_is_taken(store: Store) -> None:
    job = await submit(store, SLOTTED)

    error = await refused(store, submission(SLOTTED, job_id=job.id, now=store.now()))

    assert type(error) is Conflict


async def test_a_slot_is_free_again_when_its_job_has_ended(store: Store) -> None:
    await completed(store, SLOTTED)

    job = await submit(store, SLOTTED)

    assert await store.holder(SLOT) == job.id


async def test_a_retry_takes_the_slot_again(store: Store) -> None:
    job = await failed(store, SLOTTED)

    await made(store, lifecycle.retry(job, now=store.now()))

    assert await store.holder(SLOT) == job.id


async def test_slots_of_two_users_and_two_tenants_are_four(store: Store) -> None:
    owners = [(tenant, user) for tenant in ("acme", "acme/ann") for user in ("ann", "ann/convert")]

    jobs = [await submit(store, SLOTTED, tenant=tenant, user=user) for tenant, user in owners]

    assert [await store.holder(job.slot or "") for job in jobs] == [job.id for job in jobs]


# KeyUnused


async def test_a_used_key_names_the_job_and_the_fingerprint_it_was_used_for(store: Store) -> None:
    job = await submit(store, key="k", fingerprint="f")

    error = await refused(store, submission(now=store.now(), key="k", fingerprint="other"))

    assert isinstance(error, AlreadySubmitted)
    assert (error.facts["job_id"], error.facts["fingerprint"]) == (job.id, "f")
    assert await store.find_by_key("k") == (job.id, "f")


async def test_a_key_is_looked_at_before_any_slot(store: Store) -> None:
    job = await submit(store, SLOTTED, key="k")

    error = await refused(store, submission(SLOTTED, now=store.now(), key="k"))

    assert isinstance(error, AlreadySubmitted)
    assert error.facts["job_id"] == job.id


async def test_a_key_stays_used_after_its_job_has_ended(store: Store) -> None:
    job = await completed(store, key="k")

    error = await refused(store, submission(now=store.now(), key="k"))

    assert isinstance(error, AlreadySubmitted)
    assert error.facts["job_id"] == job.id


async def test_jobs_without_a_key_do_not_meet(store: Store) -> None:
    await submit(store)

    job = await submit(store)

    assert await held(store, job.id) == job


# all of them


async def test_one_guard_of_several_is_enough_to_refuse(store: Store) -> None:
    claimed = await started(store, SLOTTED)
    right, wrong = Holds(ONLY, claimed.token), Holds(TaskId("only", 1), claimed.token)

    error = await refused(store, touch(claimed.job, right, SlotFree(SLOT), wrong, now=1.0))

    assert isinstance(error, LeaseLost)
    assert await held(store, claimed.job.id) == claimed.job


async def test_guards_look_at_the_state_at_the_time_of_the_commit(store: Store, other: Store) -> None:
    """Cancel and claim, decided at the same time: the slot of a stage that was claimed a moment ago is not freed."""
    job = await submit(store, SLOTTED)
    stop = sure(lifecycle.cancel(job, now=store.now()))
    claimed = await claim_one(other)

    error = await refused(store, stop)

    assert type(error) is Conflict
    assert await store.holder(SLOT) == job.id
    assert await held(store, job.id) == claimed.job
    assert (await store.renew([lease_of(claimed)], LEASE)).lost == frozenset()


# Foremost


async def foremost(store: Store, *, priority: int = 0, kinds: tuple[str, ...] | None = None) -> Change:
    """A claimed task of a job, and a change that is made only if nothing more urgent waits."""
    claimed = await started(store, priority=priority)
    kind = claimed.job.plan.stage("only").kind
    return touch(claimed.job, Foremost(ONLY, kinds if kinds is not None else (kind,)), now=1.0)


async def test_with_nothing_in_the_queue_a_task_is_foremost(store: Store) -> None:
    change = await foremost(store)

    assert await made(store, change) == change.after


async def test_what_is_younger_does_not_stand_before_it(store: Store) -> None:
    change = await foremost(store)
    await submit(store)

    assert await made(store, change) == change.after


async def test_what_is_more_urgent_stands_before_it(store: Store) -> None:
    change = await foremost(store, priority=3)
    await submit(store, priority=4)

    error = await refused(store, change)

    assert isinstance(error, Conflict)
    assert await held(store, change.after.id) == change.before


async def test_what_is_less_urgent_does_not_stand_before_it_however_old(store: Store) -> None:
    old = await submit(store, priority=2)
    change = await foremost(store, priority=3)

    assert change.after.id > old.id
    assert await made(store, change) == change.after


async def test_what_is_older_stands_before_it(store: Store) -> None:
    old = await started(store)
    change = await foremost(store)
    hand_back = lifecycle.hand_back(old.job, ONLY, token=old.token, now=store.now())
    await made(store, hand_back)

    assert isinstance(await refused(store, change), Conflict)


async def test_only_the_kinds_that_are_named_stand_before_it(store: Store) -> None:
    change = await foremost(store, kinds=("something", "else"))
    await submit(store, priority=9)

    assert await made(store, change) == change.after


async def test_what_is_not_due_yet_does_not_stand_before_it(store: Store) -> None:
    change = await foremost(store)
    await submit(store, priority=9, delay=3_600.0)

    assert await made(store, change) == change.after


async def test_what_was_delayed_until_now_stands_before_it(timed: Store, clock: Clock) -> None:
    change = await foremost(timed)
    await submit(timed, priority=9, delay=5.0)
    clock.forward(5.0)

    assert isinstance(await refused(timed, change), Conflict)


async def test_what_was_delayed_until_now_stands_before_all_of_a_call(timed: Store, clock: Clock) -> None:
    changes = [await foremost(timed), await foremost(timed)]
    await submit(timed, priority=9, delay=5.0)
    clock.forward(5.0)

    assert [type(outcome) for outcome in await timed.commit(changes)] == [Conflict, Conflict]


async def test_what_waits_in_another_queue_does_not_stand_before_it(store: Store) -> None:
    change = await foremost(store)
    elsewhere = replace(ONE, stages=(replace(ONE.stages[0], queue="other"),), fingerprint="elsewhere")
    await submit(store, elsewhere, priority=9)

    assert await made(store, change) == change.after


async def test_a_finish_goes_on_with_what_follows_in_one_step(store: Store, other: Store) -> None:
    await submit(store, CHAIN)
    claimed = await claim_one(store)
    finished = lifecycle.finish(claimed.job, claimed.task, token=claimed.token, result=Result(b"1"), now=store.now())
    [at] = [effect.task for effect in finished.effects if isinstance(effect, MakeDue)]
    kinds = [stage.kind for stage in CHAIN.stages]

    job = await made(
        store,
        lifecycle.follow(finished, at, kinds=kinds, token="next", worker="w", lease=LEASE, now=store.now()),
    )

    assert await claim(other) == []
    assert await held(other, job.id) == job
    assert await other.held_by("w", limit=10) == [(job, at)]
    assert [event.n for event in await other.events(job.id)] == list(range(1, job.events + 1))
    assert (await other.results([job.id]))[job.id].keys() == {claimed.task}
