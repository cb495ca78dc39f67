"""Which failures of a pipeline people are alerted to."""

from __future__ import annotations

from typing import Any

import pytest

from packhorse import AlertRate, App, Params
from packhorse.core import plan as plans
from packhorse.errors import DefinitionError


class Nothing(Params):
    pass


def plan_of(**options: Any) -> plans.Plan:
    pipeline = App("a").pipeline("b", Nothing, **options)
    pipeline.stage(name="only")(lambda ctx, p: None)
    return pipeline.plan()


def test_a_pipeline_says_which_failures_people_are_alerted_to() -> None:
    assert plan_of().alerts is plan_of(alerts="new").alerts is None
    assert plan_of(alerts="every").alerts == plans.AlertRate(1)
    assert plan_of(alerts=AlertRate(10, per="5m")).alerts == plans.AlertRate(10, 300.0)


@pytest.mark.parametrize("alerts", ["never", 3, AlertRate(1), AlertRate(5, per=0)])
def test_what_is_no_policy_is_refused(alerts: Any) -> None:
    with pytest.raises(DefinitionError, match="alerts"):
        plan_of(alerts=alerts)
