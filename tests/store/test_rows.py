"""What the SQL stores read from the row of a job."""

from __future__ import annotations

import pytest

from packhorse.core.json import VERSION
from packhorse.errors import CorruptRecord, SchemaTooNew
from packhorse.store.rows import Plans, job_from

FIELDS = ("j1", "default", "ann", None, "unreadable", 0, "t1", None, "pending", 1, 0, 0)
TIMES = (1.0, 1.0, None, None, 1.0, None, None)


def state(version: int) -> bytes:
    return f"[{version}, 1, 1, null, null, []]".encode()


@pytest.fixture
def plans() -> Plans:
    plans = Plans()
    plans.add("unreadable", b"{}")
    return plans


def test_a_job_of_a_newer_version_is_too_new_although_its_plan_is_unreadable(plans: Plans) -> None:
    with pytest.raises(SchemaTooNew):
        job_from(FIELDS, TIMES, state(VERSION + 1), plans)


def test_a_job_of_this_version_with_an_unreadable_plan_is_corrupt(plans: Plans) -> None:
    with pytest.raises(CorruptRecord) as caught:
        job_from(FIELDS, TIMES, state(VERSION), plans)

    assert caught.value.facts["what"] == "plan"
