"""Which plans are refused, and with which words."""

from __future__ import annotations

import pytest

from packhorse.core.plan import DEFAULT_KEEP, Plan, Status, check_plan, purge_at
from packhorse.errors import DefinitionError
from tests.core.plans import APART, CHAIN, DIAMOND, FAN, NESTED, NOW, ONE, each, gather, needs, plan, stage


@pytest.mark.parametrize(
    "good",
    [
        ONE,
        CHAIN,
        APART,
        DIAMOND,
        FAN,
        NESTED,
        plan(stage("split"), stage("page", each("split")), stage("index", each("split"), gather("page"))),
        plan(stage("split"), stage("style"), stage("page", each("split"), needs("style"), needs("split"))),
        plan(stage("split"), stage("page", each("split")), stage("seal", each("page"), gather("page"))),
    ],
)
def test_a_plan_that_can_run_is_accepted(good: Plan) -> None:
    check_plan(good)


@pytest.mark.parametrize(
    ("bad", "says"),
    [
        (plan(), "Pipeline 'convert' has no stages."),
        (plan(stage("a"), stage("a")), "Pipeline 'convert' has two stages named 'a'."),
        (plan(stage("a", needs("b"))), "Stage 'a' of 'convert' needs 'b', but no earlier stage has that name."),
        (
            plan(stage("a", needs("b")), stage("b")),
            "Stage 'a' of 'convert' needs 'b', but no earlier stage has that name.",
        ),
        (plan(stage("a", needs("a"))), "Stage 'a' of 'convert' needs 'a', but no earlier stage has that name."),
        (
            plan(stage("a"), stage("b", each("a")), stage("c", needs("b"))),
            "Stage 'b' runs once per element, so 'c' must use gather(b) or each(gather(b)).",
        ),
        (
            plan(stage("a"), stage("b", gather("a"))),
            "Stage 'a' runs once, so 'b' must use needs(a), not gather.",
        ),
        (
            plan(stage("a"), stage("b"), stage("c", each("a"), each("b"))),
            "Stage 'c' has two each(...) parameters; it can run over one list only.",
        ),
    ],
)
def test_a_plan_that_could_not_run_is_refused(bad: Plan, says: str) -> None:
    with pytest.raises(DefinitionError) as refusal:
        check_plan(bad)

    assert refusal.value.message == says


DAY = 86_400.0


@pytest.mark.parametrize("status", [Status.COMPLETED, Status.FAILED, Status.CANCELLED])
def test_a_plan_that_says_nothing_keeps_its_jobs_a_week(status: Status) -> None:
    assert purge_at(ONE, status, NOW) == NOW + 7 * DAY


def test_a_plan_says_it_per_status() -> None:
    kept = plan(stage("only"), keep={Status.FAILED: 30 * DAY})

    assert [purge_at(kept, status, NOW) for status in (Status.FAILED, Status.COMPLETED)] == [
        NOW + 30 * DAY,
        NOW + DEFAULT_KEEP,
    ]


def test_a_job_may_be_kept_not_at_all() -> None:
    assert purge_at(plan(stage("only"), keep={Status.COMPLETED: 0.0}), Status.COMPLETED, NOW) == NOW
