"""Schedules as flat documents: a stale one brings nothing back, and no field can be taken for a parameter."""

from __future__ import annotations

import pytest

from packhorse.errors import InvalidInput
from packhorse.jobs.job_config import check_names
from tests.http.unserved import Http

DOCUMENT = {"job_id": "nightly", "pipeline": "add", "user_id": "ann", "cron": "0 3 * * *", "a": 1}


async def test_a_document_that_was_read_before_a_delete_does_not_bring_the_schedule_back(http: Http) -> None:
    read = (await http.put("job_config/nightly", json=DOCUMENT)).json()
    assert (await http.delete("schedules/nightly", headers={"If-Match": '"1"'})).is_success

    stale = await http.put("job_config/nightly", json={**DOCUMENT, "updated_at": read["updated_at"]})
    gone = await http.get("job_config/nightly")
    new = await http.put("job_config/nightly", json=DOCUMENT)

    assert (stale.status_code, gone.status_code, new.status_code) == (412, 404, 201)


def test_a_parameter_with_the_name_of_a_field_is_refused_and_named() -> None:
    check_names(["url", "retries"])

    with pytest.raises(InvalidInput) as refused:
        check_names(["url", "zone", "active"])

    assert [each["field"] for each in refused.value.errors] == ["active", "zone"]
