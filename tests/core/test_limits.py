"""What tasks are counted under, and whose turn they take."""

from __future__ import annotations

from typing import Any

import pytest

from packhorse.core import lifecycle
from packhorse.core.changes import EndLease, Grant, MakeDue, TakeBack, WithinLimits
from packhorse.core.limits import KEY_LENGTH, Fair, Limit, LimitUse, Share, name_of, uses_of, values_from, window_of
from packhorse.core.models import Spec
from packhorse.core.plan import Plan, check_plan
from packhorse.errors import DefinitionError
from tests.core.plans import BROKEN, NOW, ONLY, plan, stage, submitted, sure

USER = Limit("convert.user", "user", 2)
SITE = Limit("convert.params.site.per_minute", "params.site", 30, 60.0, default="all")
GPU = Limit("gpu", "", 1)


def limited(*limits: Limit, fair: Fair | None = None) -> Plan:
    return plan(stage("only", limits=limits, fair=fair))


def keys(plan: Plan, parameters: bytes = b"{}", **options: str) -> list[str]:
    job = lifecycle.submit(plan, Spec(parameters), **{"job_id": "j", "user": "ann", "now": NOW, **options}).after  # type: ignore[arg-type]
    return [use.key for use in uses_of(job, ONLY)]


def test_keys_are_made_of_the_limit_and_what_it_goes_by() -> None:
    every = limited(USER, Limit("convert.tenant", "tenant", 9), SITE, GPU)

    assert keys(every, b'{"site":"oslo"}', tenant="acme") == [
        "convert.user=acme/ann", "convert.tenant=acme", "convert.params.site.per_minute=oslo", "gpu",
    ]  # fmt: skip


def test_no_name_makes_the_key_of_another() -> None:
    assert keys(limited(USER), tenant="a/b", user="c") != keys(limited(USER), tenant="a", user="b/c")
    assert keys(limited(SITE), b'{"site":"a=b"}') == ["convert.params.site.per_minute=a%3Db"]


@pytest.mark.parametrize(
    ("parameters", "value"),
    [
        (b"{}", "all"),
        (b'{"site":null}', "null"),
        (b'{"site":3}', "3"),
        (b'{"site":true}', "true"),
        (b'{"site":{"b":1,"a":[2]}}', "%7B%22a%22%3A%5B2%5D%2C%22b%22%3A1%7D"),
    ],
)
def test_every_value_of_a_parameter_is_counted_apart(parameters: bytes, value: str) -> None:
    assert keys(limited(SITE), parameters) == [f"convert.params.site.per_minute={value}"]


@pytest.mark.parametrize("by", ["user", "tenant"])
def test_long_names_of_users_and_tenants_fit_into_an_index(by: Any) -> None:
    named = plan(stage("only", limits=(Limit(f"convert.{by}", by, 1),), fair=Fair(by)))
    owners = [f"{'火' * 254}{end}" for end in "ab"]

    dues = [submit_for(named, owner) for owner in owners]

    keys = {due.limits[0].key for due in dues}
    shares = {due.share.name for due in dues if due.share is not None}
    assert len(keys) == len(shares) == 2
    assert max(map(len, keys | shares)) <= 2 * KEY_LENGTH + len("convert.tenant=/")


def submit_for(named: Plan, owner: str) -> MakeDue:
    change = lifecycle.submit(named, Spec(b"{}"), job_id="j", user=owner, tenant=owner, now=NOW)
    [due] = [effect for effect in change.effects if isinstance(effect, MakeDue)]
    return due


def test_long_values_are_cut_and_stay_apart() -> None:
    one, other = (values_from(limited(SITE), {"site": "x" * 500 + end})["site"] for end in "ab")

    assert len(one) == len(other) == KEY_LENGTH
    assert one != other


def test_a_key_tells_the_name_and_the_window_of_its_limit() -> None:
    key = "convert.params.site.per_minute=a%3Db"

    assert (name_of(key), window_of(name_of(key))) == (SITE.name, 60.0)
    assert (name_of("gpu"), window_of("gpu"), window_of("convert.user")) == ("gpu", 0.0, 0.0)


def test_a_task_is_counted_from_its_start_to_the_end_of_its_lease() -> None:
    use = LimitUse("convert.user", "convert.user=default/ann", 2)
    job = submitted(limited(USER))

    begin = lifecycle.start(job, ONLY, token="t", worker="w", lease=9.0, now=NOW)
    end = lifecycle.fail(begin.after, ONLY, token="t", error=BROKEN, luck=0.0, now=NOW)

    assert WithinLimits(ONLY, (use,)) in begin.guards
    assert Grant(ONLY, "t", "w", 9.0, (use,)) in begin.effects
    assert EndLease(ONLY, (use,)) in end.effects
    [again] = [effect for effect in end.effects if isinstance(effect, MakeDue)]
    assert again.limits == (use,)


def test_a_task_that_is_taken_back_names_its_limits() -> None:
    stop = sure(lifecycle.cancel(submitted(limited(GPU)), now=NOW))

    assert TakeBack(ONLY, (LimitUse("gpu", "gpu", 1),)) in stop.effects


def test_a_task_without_limits_is_decided_as_it_always_was() -> None:
    begin = lifecycle.start(submitted(), ONLY, token="t", worker="w", lease=9.0, now=NOW)

    assert [type(guard).__name__ for guard in begin.guards] == ["Waiting"]
    assert begin.effects == (TakeBack(ONLY), Grant(ONLY, "t", "w", 9.0))


def test_shares_are_users_or_tenants_with_their_weights() -> None:
    by_user, by_tenant = Fair("user", {"ann": 4.0}), Fair("tenant", {"acme": 0.5})

    assert _share(limited(fair=by_user), tenant="a/b") == Share("a%2Fb/ann", 0.25)
    assert _share(limited(fair=by_user), user="bob") == Share("default/bob", 1.0)
    assert _share(limited(fair=by_tenant), tenant="acme") == Share("acme", 2.0)


def test_waiting_counts_as_priority_where_there_is_aging() -> None:
    aging = limited(fair=Fair("", {}, 60.0))

    old, new = _share(aging, now=NOW), _share(aging, now=NOW + 300, priority=4)
    urgent = _share(aging, now=NOW + 300, priority=6)

    assert old is not None
    assert new is not None
    assert urgent is not None
    assert urgent.rank < old.rank < new.rank
    assert _share(limited(fair=Fair("user")), priority=7) == Share("default/ann", 1.0, -7)


def _share(plan: Plan, **options: object) -> Share | None:
    spec = Spec(b"{}")
    change = lifecycle.submit(plan, spec, **{"job_id": "j", "user": "ann", "now": NOW, **options})  # type: ignore[arg-type]
    [due] = [effect for effect in change.effects if isinstance(effect, MakeDue)]
    begin = lifecycle.start(change.after, ONLY, token="t", worker="w", lease=9.0, now=NOW + 999)
    [grant] = [effect for effect in begin.effects if isinstance(effect, Grant)]
    assert grant.share == due.share
    return due.share


def test_a_start_with_limits_is_not_prepared() -> None:
    assert lifecycle.prepare(submitted(limited(GPU)), ONLY) is None
    assert lifecycle.prepare(submitted(limited(fair=Fair("user"))), ONLY) is None
    assert lifecycle.prepare(submitted(), ONLY) is not None


def test_two_limits_of_one_name_are_refused() -> None:
    with pytest.raises(DefinitionError, match="'only' of 'convert' has two limits named 'gpu'"):
        check_plan(limited(GPU, GPU))
