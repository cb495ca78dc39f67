"""The one door to a job: what is asked together travels together, and everyone hears what really became of it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from msgspec.structs import replace

from packhorse.core import lifecycle
from packhorse.core.changes import Change
from packhorse.core.models import Job
from packhorse.core.plan import Status, TaskStatus
from packhorse.errors import (
    Conflict,
    CorruptRecord,
    JobNotFound,
    LeaseLost,
    NotAllowed,
    PackhorseError,
    SlotTaken,
    StoreError,
    StoreUnavailable,
    UnknownOutcome,
)
from packhorse.jobs.transact import TRIES, Transactor
from packhorse.store.base import Claim, Store
from packhorse.store.sqlite import SqliteStore
from tests.contract.builders import (
    APART,
    LEASE,
    LEFT,
    SLOTTED,
    UNKNOWN,
    cancelled,
    claim,
    claim_one,
    dump,
    finish,
    held,
    lease_of,
    settled,
    started,
    submit,
    sure,
    words,
)
from tests.contract.stores import Clock
from tests.store.sqlite.inside import write
from tests.worker.builders import SEVEN_KINDS, cancelling, finishing, lose, retry, started_seven
from tests.worker.faulty import Faults


def commits(faults: Faults) -> list[list[Change]]:
    """What travelled in each commit."""
    return [list(args[0]) for args in faults.args("commit")]


async def both(*asked: Awaitable[Any]) -> list[Any]:
    """Outcomes of what is asked for in one turn of the loop, and so in one round."""
    return await asyncio.gather(*asked, return_exceptions=True)


# Deciding


async def test_a_verb_is_committed_and_its_job_is_given(store: Store, transact: Transactor) -> None:
    job = await submit(store)

    after = await transact(job.id, cancelling(store))

    assert after.status is Status.CANCELLED
    assert await held(store, job.id) == after


async def test_a_verb_with_nothing_to_do_gives_the_job_as_it_is(
    store: Store, transact: Transactor, faults: Faults
) -> None:
    job = await cancelled(store)

    after = await transact(job.id, cancelling(store))

    assert after == job
    assert commits(faults) == []


async def test_a_job_that_moved_meanwhile_is_looked_at_again(
    store: Store, transact: Transactor, faults: Faults
) -> None:
    job = await submit(store)
    faults.before("commit", lambda: claim_one(store))

    after = await transact(job.id, cancelling(store))

    assert (after.status, after.stopping) == (Status.RUNNING, "cancel")
    assert len(commits(faults)) == 2
    assert await held(store, job.id) == after


async def test_a_job_that_never_stops_moving_is_given_up(store: Store, transact: Transactor, faults: Faults) -> None:
    left, right = await started_apart(store)
    await hand_back(store, right)
    for _ in range(TRIES):
        faults.before("commit", lambda: moved(store))

    with pytest.raises(Conflict):
        await transact(left.job.id, finishing(store, left))

    assert 1 < len(commits(faults)) <= TRIES
    assert (await transact(left.job.id, finishing(store, left))).stage("left").status is TaskStatus.COMPLETED


async def test_a_job_that_is_not_there_is_not_found(transact: Transactor, store: Store) -> None:
    with pytest.raises(JobNotFound):
        await transact(UNKNOWN, cancelling(store))


async def test_what_a_verb_refuses_on_the_real_job_is_raised(transact: Transactor, store: Store) -> None:
    claimed = await started(store)
    done = await finish(store, claimed)

    with pytest.raises(NotAllowed):
        await transact(done.id, cancelling(store))
    with pytest.raises(LeaseLost):
        await transact(done.id, finishing(store, claimed))


# Memory


async def test_what_was_learnt_saves_a_look(transact: Transactor, store: Store, faults: Faults) -> None:
    claimed = await started(store)
    transact.learn([claimed.job])

    await transact(claimed.job.id, finishing(store, claimed))

    assert faults.names() == ["commit"]


@pytest.mark.parametrize(("slots", "others", "calls"), [(1, 99, 1), (1, 100, 2), (50, 199, 1), (50, 200, 2)])
async def test_a_worker_remembers_100_jobs_or_four_per_slot(
    shaky: Store, store: Store, faults: Faults, slots: int, others: int, calls: int
) -> None:
    transact, claimed = Transactor(shaky, slots=slots), await started(store)
    transact.learn([claimed.job, *(replace(claimed.job, id=str(n)) for n in range(others))])

    await transact(claimed.job.id, finishing(store, claimed))

    assert faults.names() == ["get", "commit"][-calls:]


async def test_nothing_to_do_on_a_remembered_job_is_decided_again_on_the_real_one(
    transact: Transactor, store: Store
) -> None:
    claimed = await started(store)
    remembered = await transact(claimed.job.id, cancelling(store))
    assert remembered.stopping == "cancel"
    await finish(store, claimed)
    assert (await retry(store, claimed.job.id, "*")).status is Status.PENDING

    after = await transact(claimed.job.id, cancelling(store))

    assert (after.status, after.run) == (Status.CANCELLED, 2)
    assert await held(store, claimed.job.id) == after


async def test_a_refusal_on_a_remembered_job_is_decided_again_on_the_real_one(
    transact: Transactor, store: Store
) -> None:
    job = await submit(store)
    transact.learn([job])
    claimed = await claim_one(store)

    after = await transact(job.id, finishing(store, claimed))

    assert after.status is Status.COMPLETED
    assert await held(store, job.id) == after


async def test_a_verb_decided_on_a_remembered_job_that_moved_is_decided_again(
    transact: Transactor, store: Store
) -> None:
    job = await submit(store)
    transact.learn([job])
    await claim_one(store)

    after = await transact(job.id, cancelling(store))

    assert (after.status, after.stopping) == (Status.RUNNING, "cancel")
    assert await held(store, job.id) == after


async def test_a_remembered_job_that_is_gone_is_not_found(transact: Transactor, store: Store) -> None:
    claimed = await started(store)
    transact.learn([claimed.job])
    done = await finish(store, claimed)
    assert done.purge_at is not None
    await store.commit([lifecycle.purge(done, now=done.purge_at)])  # type: ignore[list-item]
    await store.erase(done.id)

    with pytest.raises(JobNotFound):
        await transact(done.id, finishing(store, claimed))


# Together


async def test_seven_finishes_that_waited_travel_in_one_commit_each_decided_on_the_one_before(
    transact: Transactor, store: Store, faults: Faults
) -> None:
    claims = await started_seven(store)
    other = await submit(store)
    hold = faults.hold("commit")
    first = asyncio.create_task(transact(other.id, cancelling(store)))
    await hold.arrived.wait()

    waiting = [asyncio.create_task(transact(each.job.id, finishing(store, each))) for each in claims]
    await asyncio.sleep(0)
    hold.release.set()
    afters = await asyncio.gather(*waiting)

    assert (await first).status is Status.CANCELLED
    assert [len(changes) for changes in commits(faults)] == [1, 7]
    [_, folded] = commits(faults)
    assert [change.before for change in folded[1:]] == [change.after for change in folded[:-1]]
    assert afters == [change.after for change in folded]
    assert await held(store, claims[0].job.id) == afters[-1]
    assert [each.task.stage for each in await claim(store, kinds=SEVEN_KINDS)] == ["end"]


async def test_verbs_on_different_jobs_travel_in_one_commit(transact: Transactor, store: Store, faults: Faults) -> None:
    first, second = await submit(store), await submit(store)

    await both(transact(first.id, cancelling(store)), transact(second.id, cancelling(store)))

    assert [len(changes) for changes in commits(faults)] == [2]


async def test_a_member_refused_by_the_store_harms_no_other(transact: Transactor, store: Store, faults: Faults) -> None:
    late, first, second = await started(store), await started(store), await started(store)
    transact.learn([late.job, first.job, second.job])
    faults.before("commit", lambda: lose(store, late))

    outcomes = await both(*(transact(each.job.id, finishing(store, each)) for each in (late, first, second)))

    assert isinstance(outcomes[0], LeaseLost)
    assert [job.status for job in outcomes[1:]] == [Status.COMPLETED] * 2
    assert (await held(store, late.job.id)).status is Status.RUNNING
    assert await held(store, second.job.id) == outcomes[2]


async def test_a_member_decided_on_what_was_refused_is_decided_again(
    transact: Transactor, store: Store, clock: Clock
) -> None:
    left, right = await started_apart(store)
    clock.forward(LEASE)
    await store.renew([lease_of(left)], LEASE)

    refused, finished = await both(
        transact(left.job.id, losing(store, left)), transact(right.job.id, finishing(store, right))
    )

    assert isinstance(refused, Conflict)
    assert isinstance(finished, Job)
    stored = await held(store, left.job.id)
    assert stored == finished
    assert stored.task(left.task) == left.job.task(left.task)


async def test_a_refused_slot_is_told_to_its_own_caller_only(transact: Transactor, store: Store) -> None:
    ended = await cancelled(store, SLOTTED)
    active = await submit(store, SLOTTED)

    refused, done = await both(
        transact(ended.id, lambda job: lifecycle.retry(job, now=store.now())), transact(active.id, cancelling(store))
    )

    assert isinstance(refused, SlotTaken)
    assert done.status is Status.CANCELLED
    assert (await held(store, ended.id)).status is Status.CANCELLED


@pytest.mark.parametrize("error", [ValueError("a bug"), NotAllowed("no")])
async def test_an_error_in_a_verb_reaches_only_its_caller(transact: Transactor, store: Store, error: Exception) -> None:
    first, second, third = await submit(store), await submit(store), await submit(store)

    def broken(_job: Job) -> Change:
        raise error

    outcomes = await both(
        transact(first.id, cancelling(store)), transact(second.id, broken), transact(third.id, cancelling(store))
    )

    assert outcomes[1] is error
    assert [outcomes[0].status, outcomes[2].status] == [Status.CANCELLED] * 2
    assert await held(store, second.id) == second


async def test_a_record_that_cannot_be_read_harms_only_who_asks_for_it(transact: Transactor, store: Store) -> None:
    first, corrupt, third = await submit(store), await submit(store), await submit(store)
    assert isinstance(store, SqliteStore)
    await write(store, "UPDATE jobs SET state = 'x' WHERE id = ?", corrupt.id)

    outcomes = await both(*(transact(job.id, cancelling(store)) for job in (first, corrupt, third)))

    assert isinstance(outcomes[1], CorruptRecord)
    assert [outcomes[0].status, outcomes[2].status] == [Status.CANCELLED] * 2


async def test_a_caller_that_went_away_harms_no_other(transact: Transactor, store: Store, faults: Faults) -> None:
    gone, there = await submit(store), await submit(store)
    hold = faults.hold("commit")
    asked = [asyncio.create_task(transact(job.id, cancelling(store))) for job in (gone, there)]
    await hold.arrived.wait()

    asked[0].cancel()
    hold.release.set()

    assert (await asked[1]).status is Status.CANCELLED
    assert (await transact(gone.id, cancelling(store))).status is Status.CANCELLED


# A store that fails


@pytest.mark.parametrize("call", ["get", "commit"])
async def test_a_store_that_is_away_is_told_to_the_caller_and_can_be_asked_again(
    transact: Transactor, store: Store, faults: Faults, call: str
) -> None:
    job = await submit(store)
    before = await dump(store)
    faults.refuse(call, StoreUnavailable)

    with pytest.raises(StoreUnavailable):
        await transact(job.id, cancelling(store))

    assert await dump(store) == before
    assert (await transact(job.id, cancelling(store))).status is Status.CANCELLED


async def test_nobody_is_told_yes_because_of_a_neighbour_whose_change_was_not_made(
    transact: Transactor, store: Store, faults: Faults
) -> None:
    job = await submit(store)
    faults.refuse("commit", StoreUnavailable, times=2)

    outcomes = await both(transact(job.id, cancelling(store)), transact(job.id, cancelling(store)))

    assert [type(error) for error in outcomes] == [StoreUnavailable] * 2
    assert await held(store, job.id) == job


async def test_nobody_is_told_no_because_of_a_neighbour_whose_change_was_not_made(
    transact: Transactor, store: Store, faults: Faults
) -> None:
    claimed = await started(store)
    faults.refuse("commit", StoreUnavailable)

    finished, stopped = await both(
        transact(claimed.job.id, finishing(store, claimed)), transact(claimed.job.id, cancelling(store))
    )

    assert isinstance(finished, StoreUnavailable)
    assert stopped.stopping == "cancel"
    assert await held(store, claimed.job.id) == stopped


# Answers that were lost

Lost = Callable[[Faults, bool], None]


def raises_it(faults: Faults, was_made: bool) -> None:
    (faults.lose_answer if was_made else faults.refuse)("commit", UnknownOutcome)


def says_it_of_each_change(faults: Faults, was_made: bool) -> None:
    if was_made:
        faults.alter("commit", lambda answers: [UnknownOutcome()] * len(answers))
    else:
        faults.refuse("commit", UnknownOutcome)


lost_answers = pytest.mark.parametrize("lose_answer", [raises_it, says_it_of_each_change])


@lost_answers
async def test_a_change_whose_answer_was_lost_is_looked_up_and_not_made_twice(
    transact: Transactor, store: Store, faults: Faults, lose_answer: Lost
) -> None:
    claimed = await started(store)
    lose_answer(faults, True)
    with pytest.raises(UnknownOutcome):
        await transact(claimed.job.id, finishing(store, claimed), change_id="once")
    before = await dump(store)

    after = await transact(claimed.job.id, finishing(store, claimed), change_id="once")

    assert after.status is Status.COMPLETED
    assert len(commits(faults)) == 1
    assert await dump(store) == before


@lost_answers
async def test_a_change_that_was_not_made_is_made_by_the_second_call(
    transact: Transactor, store: Store, faults: Faults, lose_answer: Lost
) -> None:
    claimed = await started(store)
    lose_answer(faults, False)
    with pytest.raises(UnknownOutcome):
        await transact(claimed.job.id, finishing(store, claimed), change_id="once")
    assert (await held(store, claimed.job.id)).status is Status.RUNNING

    after = await transact(claimed.job.id, finishing(store, claimed), change_id="once")

    assert after.status is Status.COMPLETED
    assert await store.has_change(claimed.job.id, "once")
    assert (await words(store, claimed.job.id)).count("completed") == 1


async def test_a_look_up_that_fails_is_made_again_before_anything_is_decided(
    transact: Transactor, store: Store, faults: Faults
) -> None:
    claimed = await started(store)
    faults.lose_answer("commit", UnknownOutcome)
    faults.refuse("has_change", StoreUnavailable)

    errors = [await tried(transact, store, claimed), await tried(transact, store, claimed)]
    after = await transact(claimed.job.id, finishing(store, claimed), change_id="once")

    assert [type(error) for error in errors] == [UnknownOutcome, StoreUnavailable]
    assert after.status is Status.COMPLETED
    assert len(commits(faults)) == 1


async def test_a_look_up_that_fails_harms_no_other(transact: Transactor, store: Store, faults: Faults) -> None:
    claimed, other = await started(store), await submit(store)
    faults.lose_answer("commit", UnknownOutcome)
    await tried(transact, store, claimed)
    faults.refuse("has_change", StoreUnavailable)

    failed, done = await both(tried(transact, store, claimed), transact(other.id, cancelling(store)))

    assert isinstance(failed, StoreUnavailable)
    assert isinstance(done, Job)


async def test_a_retry_that_came_between_does_not_hide_that_the_change_was_made(
    transact: Transactor, store: Store, faults: Faults
) -> None:
    claimed = await started(store)
    faults.lose_answer("commit", UnknownOutcome)
    await tried(transact, store, claimed)
    again = await retry(store, claimed.job.id, "*")

    after = await transact(claimed.job.id, finishing(store, claimed), change_id="once")

    assert after == again


async def test_a_change_that_is_made_between_the_two_reads_after_a_lost_answer_counts_as_made(
    transact: Transactor, store: Store, faults: Faults
) -> None:
    claimed = await started(store)
    faults.refuse("commit", UnknownOutcome)
    await tried(transact, store, claimed)
    late = replace(sure(finishing(store, claimed)(claimed.job)), id="once")
    faults.after("has_change", lambda: store.commit([late]))

    after = await transact(claimed.job.id, finishing(store, claimed), change_id="once")

    assert after.status is Status.COMPLETED
    assert await held(store, claimed.job.id) == after


async def test_a_change_that_was_not_made_is_refused_after_another_look_up(
    transact: Transactor, store: Store, faults: Faults
) -> None:
    claimed = await started(store)
    faults.refuse("commit", UnknownOutcome)
    await tried(transact, store, claimed)
    await lose(store, claimed)

    with pytest.raises(LeaseLost):
        await transact(claimed.job.id, finishing(store, claimed), change_id="once")

    assert faults.names().count("has_change") == 2


async def tried(transact: Transactor, store: Store, claimed: Claim) -> PackhorseError:
    try:
        await transact(claimed.job.id, finishing(store, claimed), change_id="once")
    except StoreError as error:
        return error
    raise AssertionError


async def started_apart(store: Store) -> tuple[Claim, Claim]:
    """A job with two stages side by side, both claimed."""
    await submit(store, APART)
    left, right = sorted(await claim(store, 2), key=lambda each: each.task)
    assert left.task == LEFT
    return left, right


def losing(store: Store, claimed: Claim) -> Callable[[Job], Change]:
    return lambda job: lifecycle.lose(job, claimed.task, token=claimed.token, now=store.now())


async def hand_back(store: Store, claimed: Claim) -> None:
    await settled(
        store,
        claimed.job.id,
        lambda job: lifecycle.hand_back(job, claimed.task, token=claimed.token, now=store.now()),
    )


async def moved(store: Store) -> None:
    """Somebody takes what waits and gives it back."""
    await hand_back(store, await claim_one(store))
