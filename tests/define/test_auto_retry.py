"""Policies as people write them, and what they come to in the plan."""

from __future__ import annotations

from typing import Any

import pytest

from packhorse import App, Params, Revive
from packhorse.core import plan as plans
from packhorse.errors import DefinitionError


class Nothing(Params):
    pass


def plan_of(**options: Any) -> plans.Plan:
    pipeline = App("app").pipeline("one", Nothing, **options)

    @pipeline.stage
    def only(ctx: Any, p: Nothing) -> None: ...

    return pipeline.plan()


def test_a_policy_travels_with_the_plan() -> None:
    policy = Revive(codes=("HTTP_500", "TIMEOUT"), times=2, backoff="5m", budget=7, per="1h")

    assert plan_of(revive=policy).revive == plans.Revive(("HTTP_500", "TIMEOUT"), 2, 300.0, 7, 3_600.0)
    assert plan_of(revive=Revive(codes="TIMEOUT")).revive.codes == ("TIMEOUT",)
    assert plan_of(revive=None).revive == plans.Revive()
    assert "revive" not in plan_of(revive=None).unset
    assert {"revive", "pending"} <= set(plan_of().unset)


def test_how_long_a_run_may_wait_is_a_time() -> None:
    assert plan_of(pending="90m").pending == 5_400.0


@pytest.mark.parametrize(
    "options",
    [
        {"revive": Revive(codes=("not a code",))},
        {"revive": Revive(codes=("A",), times=0)},
        {"revive": Revive(codes=("A",), budget=0)},
        {"revive": Revive(codes=("A",), times=True)},
        {"revive": Revive(codes=("A",), backoff=0)},
        {"revive": Revive(codes=("A",), per="soon")},
        {"pending": 0},
    ],
    ids=["code", "times", "budget", "bool", "backoff", "per", "pending"],
)
def test_what_makes_no_sense_is_refused(options: Any) -> None:
    with pytest.raises(DefinitionError):
        plan_of(**options)
