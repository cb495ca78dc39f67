"""Fair queues: each share gets its turns, however many tasks the others have."""

from __future__ import annotations

from collections import Counter

import pytest

from packhorse.core.limits import Fair
from packhorse.store.base import Store
from tests.contract.builders import KINDS, ONE, cancel, claim, claim_one, finish, plan, stage, submit
from tests.contract.limited import address, at_once, fair, limited, starts, submit_for, users_of
from tests.contract.stores import Clock

__all__ = ["address"]

pytestmark = pytest.mark.cluster

FAIR = fair()


async def test_shares_take_turns(store: Store) -> None:
    await submit_for(store, FAIR, ["ann"] * 5 + ["bob"] * 2 + ["eve"])

    assert users_of(await claim(store)) == "ann bob eve ann bob ann ann ann"


async def test_turns_go_on_from_claim_to_claim(store: Store, other: Store) -> None:
    await submit_for(store, FAIR, ["ann"] * 5 + ["bob"] * 3)

    found = [(await claim_one(each)).job.user for each in (store, other, store, other, store)]

    assert found == ["ann", "bob", "ann", "bob", "ann"]


async def test_a_large_backlog_does_not_hold_up_a_small_one(store: Store) -> None:
    await submit_for(store, FAIR, ["ann"] * 500)
    await submit_for(store, FAIR, ["bob"] * 50)
    await submit_for(store, FAIR, ["eve"] * 5)

    found = (await starts(store, 20)) + [each.job.user for each in await claim(store, 100)]

    assert found[:20].count("eve") == 5
    both = Counter(found[20:115])
    assert both["ann"] + both["bob"] == 95
    assert Counter(found)["bob"] == 50
    assert abs(found[:100].count("bob") - found[:100].count("ann")) <= 5


async def test_weights_give_turns_in_proportion(store: Store) -> None:
    weighted = fair(ann=3.0)
    await submit_for(store, weighted, ["ann"] * 80 + ["bob"] * 80)

    found = Counter(users_of(await claim(store, 80)).split())

    assert 58 <= found["ann"] <= 62


async def test_priority_orders_only_within_a_share(store: Store) -> None:
    await submit_for(store, FAIR, ["ann", "ann", "bob", "bob"])
    urgent = await submit(store, FAIR, user="bob", priority=9)

    first, second, third, _, _ = await claim(store)

    assert [first.job.user, third.job.user] == ["ann", "ann"]
    assert second.job.id == urgent.id


async def test_who_comes_later_begins_with_the_others(store: Store) -> None:
    """It neither has to wait for what was started before, nor is it owed what it did not ask for."""
    await submit_for(store, FAIR, ["ann"] * 40)
    assert await starts(store, 20) == ["ann"] * 20
    await submit_for(store, FAIR, ["bob"] * 20)

    found = await starts(store, 10)

    assert found.count("bob") == 5
    assert "bob" in found[:2]


async def test_idling_earns_no_credit(store: Store) -> None:
    await submit_for(store, FAIR, ["ann"] * 40 + ["bob"])
    await starts(store, 21)
    await submit_for(store, FAIR, ["bob"] * 20)

    assert (await starts(store, 10)).count("bob") == 5


async def test_leaving_and_coming_back_earns_no_turn(store: Store) -> None:
    await submit_for(store, FAIR, ["ann"] * 10)
    found = []
    for _ in range(6):  # bob always has one job only
        await submit_for(store, FAIR, ["bob"])
        found += await starts(store, 2)

    assert Counter(found) == {"ann": 6, "bob": 6}


async def test_newcomers_do_not_starve_who_waits(store: Store) -> None:
    await submit_for(store, FAIR, ["zoe"] * 3)
    found = []
    for n in range(12):
        await submit_for(store, FAIR, [f"new{n:02}"])
        found += await starts(store, 1)

    assert found.count("zoe") == 3


async def test_cancelled_tasks_cost_their_share_nothing(store: Store) -> None:
    await submit_for(store, FAIR, ["ann"] * 10)
    for each in [await submit(store, FAIR, user="bob") for _ in range(5)]:
        await cancel(store, each.id)
    await submit_for(store, FAIR, ["bob"] * 2)

    assert (await starts(store, 4)).count("bob") == 2


async def test_a_tenant_is_one_share_whoever_submits(store: Store) -> None:
    by_tenant = fair("tenant")
    for user in "abcdef":
        await submit(store, by_tenant, tenant="big", user=user)
    await submit(store, by_tenant, tenant="small")

    found = [each.job.tenant for each in await claim(store, 3)]

    assert found == ["big", "small", "big"]


async def test_kinds_of_a_queue_share_the_turns(store: Store) -> None:
    """A tenant with two pipelines does not get twice as much."""
    left, right = (plan(stage(name, fair=Fair("user")), pipeline=name) for name in ("left", "right"))
    for _ in range(6):
        await submit_for(store, left, ["ann"])
        await submit_for(store, right, ["ann"])
        await submit_for(store, left, ["bob"])

    found = Counter(users_of(await claim(store, 8)).split())

    assert found == {"ann": 4, "bob": 4}


async def test_a_worker_without_a_kind_leaves_its_turn(store: Store) -> None:
    left, right = (plan(stage(name, fair=Fair("user")), pipeline=name) for name in ("left", "right"))
    await submit_for(store, left, ["ann", "ann"])
    await submit_for(store, right, ["bob"])

    assert users_of(await claim(store, kinds=["right"])) == "bob"
    assert users_of(await claim(store, kinds=["left"])) == "ann ann"


async def test_queues_have_turns_of_their_own(store: Store) -> None:
    other = plan(stage("only", queue="other", fair=Fair("user")))
    await submit_for(store, FAIR, ["ann"] * 4)
    assert users_of(await claim(store)) == "ann ann ann ann"
    await submit_for(store, other, ["bob", "ann"])

    assert sorted(users_of(await claim(store, queue="other")).split()) == ["ann", "bob"]


async def test_what_has_no_share_goes_by_age_beside_the_turns(store: Store) -> None:
    await submit_for(store, FAIR, ["ann"])
    await submit_for(store, ONE, ["old"])
    await submit_for(store, FAIR, ["ann"])
    await submit_for(store, ONE, ["new"])
    await submit_for(store, ONE, ["urgent"], priority=3)

    assert users_of(await claim(store)) == "urgent ann old ann new"


async def test_delayed_tasks_take_turns_when_they_are_due(timed: Store, clock: Clock) -> None:
    await submit_for(timed, FAIR, ["ann"] * 4)
    await submit(timed, FAIR, user="bob", delay=10.0)
    assert users_of(await claim(timed, 2)) == "ann ann"
    clock.forward(11.0)

    assert sorted(users_of(await claim(timed, 2)).split()) == ["ann", "bob"]


async def test_a_task_with_a_share_is_ready(store: Store) -> None:
    await submit_for(store, FAIR, ["ann", "bob"])

    assert await store.ready({"default": KINDS}) == {"default": 2}


async def test_statistics_see_whose_turn_it_is(store: Store) -> None:
    jobs = [await submit(store, FAIR, user=user) for user in ("ann", "ann", "bob")]
    await claim_one(store)

    heads = {head.job_id for head in await store.heads({"default": ["only"]})}

    assert heads
    assert heads <= {jobs[1].id, jobs[2].id}


# aging


async def test_aging_lets_an_old_task_overtake_a_newer_one_of_higher_priority(timed: Store, clock: Clock) -> None:
    aging = fair(aging=60.0)
    await submit_for(timed, aging, ["bob"])
    old = await submit(timed, aging)
    clock.forward(300.0)
    new = await submit(timed, aging, priority=4)
    urgent = await submit(timed, aging, priority=6)

    found = await claim(timed)

    assert [each.job.id for each in found if each.job.user == "ann"] == [urgent.id, old.id, new.id]
    assert users_of(found) == "ann bob ann ann"


async def test_aging_needs_no_fairness(timed: Store, clock: Clock) -> None:
    aging = fair("", aging=60.0)
    old = await submit(timed, aging, user="ann")
    clock.forward(300.0)
    new = await submit(timed, aging, user="bob", priority=4)
    newer = await submit(timed, aging, user="eve", priority=6)

    assert [each.job.id for each in await claim(timed)] == [newer.id, old.id, new.id]


# with limits


async def test_a_limit_wakes_shares_in_turns(store: Store) -> None:
    """The 5,000 videos of one customer wait for the one GPU, and so does the single one of another."""
    gpu = limited(at_once(1, "", "gpu"), fair=Fair("user"))
    await submit_for(store, gpu, ["ann"] * 6 + ["bob"] * 2 + ["eve"])

    found = await starts(store, 9)

    assert Counter(found[:6]) == {"ann": 3, "bob": 2, "eve": 1}
    assert Counter(found) == {"ann": 6, "bob": 2, "eve": 1}


async def test_weights_hold_among_what_is_parked(store: Store) -> None:
    gpu = limited(at_once(1, "", "gpu"), fair=Fair("user", {"ann": 3.0}))
    await submit_for(store, gpu, ["ann"] * 30 + ["bob"] * 30)

    found = Counter(await starts(store, 24))

    assert 16 <= found["ann"] <= 20


async def test_a_share_that_is_stopped_lets_others_pass(store: Store) -> None:
    mine = limited(at_once(1), fair=Fair("user"))
    await submit_for(store, mine, ["ann"] * 3 + ["bob"] * 2)

    first, second = await claim(store)
    assert [first.job.user, second.job.user] == ["ann", "bob"]
    await finish(store, second)

    assert users_of(await claim(store)) == "bob"
