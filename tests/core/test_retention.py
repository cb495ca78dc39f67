"""How long an ended job is kept."""

from __future__ import annotations

import pytest

from packhorse.core.plan import Status
from packhorse.core.retention import DAY, KEEP, purge_at
from tests.core.plans import NOW, ONE, plan, stage


@pytest.mark.parametrize("status", [Status.COMPLETED, Status.FAILED, Status.CANCELLED])
def test_a_plan_that_says_nothing_keeps_its_jobs_a_week(status: Status) -> None:
    assert purge_at(ONE, status, NOW) == NOW + 7 * DAY


def test_a_plan_says_it_per_status() -> None:
    kept = plan(stage("only"), keep={Status.FAILED: 30 * DAY})

    assert [purge_at(kept, status, NOW) for status in (Status.FAILED, Status.COMPLETED)] == [NOW + 30 * DAY, NOW + KEEP]


def test_a_job_may_be_kept_not_at_all() -> None:
    assert purge_at(plan(stage("only"), keep={Status.COMPLETED: 0.0}), Status.COMPLETED, NOW) == NOW
