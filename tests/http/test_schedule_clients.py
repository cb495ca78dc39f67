"""Schedules through both clients, against a real server and a real worker."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from packhorse import Client
from packhorse.errors import EditedMeanwhile, InvalidInput, ScheduleNotFound, VersionNeeded
from tests.http.both import KINDS, opened
from tests.http.processes import Server, until

NEW_YEAR = "0 0 1 1 *"


@pytest.fixture(params=KINDS)
def client(running: Server, request: pytest.FixtureRequest) -> Iterator[Client]:
    with opened(request.param, running.url) as client:
        yield client


@pytest.fixture
def id(request: pytest.FixtureRequest) -> str:
    """One for each test: the server is that of all of them."""
    kind = request.node.callspec.params["client"]
    return f"{request.node.originalname[5:40]}-{kind}"


def put(client: Client, id: str, **changes: Any) -> dict[str, Any]:
    given = {"cron": NEW_YEAR, "pipeline": "add", "parameters": {"a": 1}, "user": "ann"}
    return client.put_schedule(id, **{**given, **changes})


def test_a_schedule_is_edited_on_the_version_that_was_seen(client: Client, id: str) -> None:
    made = put(client, id)

    with pytest.raises(VersionNeeded):
        put(client, id)
    edited = put(client, id, parameters={"a": 2}, version=made["version"], reason="more")
    with pytest.raises(EditedMeanwhile):
        put(client, id, version=made["version"])

    assert client.schedule(id) == edited
    assert edited in list(client.schedules())
    assert client.diff_schedule(id, 1, 2) == [{"field": "parameters.a", "old": 1, "new": 2}]
    assert client.schedule_version(id, 2)["reason"] == "more"


def test_versions_come_back(client: Client, id: str) -> None:
    put(client, id)
    client.pause_schedule(id, "not now")
    client.resume_schedule(id, version=2)
    back = client.rollback_schedule(id, 2, "not yet")
    gone = client.delete_schedule(id)

    assert (back["active"], back["version"]) == (False, 4)
    assert gone["deleted_at"] is not None
    assert [each["action"] for each in client.schedule_versions(id)["items"]] == [
        "deleted",
        "rolled back to 2",
        "resumed",
        "paused",
        "created",
    ]


def test_what_is_run_now_has_a_result_to_be_found(client: Client, id: str) -> None:
    put(client, id, parameters={"a": 20, "b": 22})

    client.run_schedule(id)

    run = until(lambda: next((each for each in client.schedule_runs(id)["items"] if each["output_url"]), None))
    job = client.get(run["job_id"])
    assert (run["status"], run["manual"], run["trace_id"]) == ("completed", True, job["trace_id"])
    assert (job["result"], job["origin"], job["schedule_id"]) == (42, "schedule", id)
    assert run["output_url"] == f"/api/v1/jobs/{job['job_id']}/result"


def test_a_preview_and_what_is_refused(client: Client, id: str) -> None:
    assert len(client.preview_schedule("*/5 * * * *", "Europe/Berlin")) == 10
    with pytest.raises(ScheduleNotFound):
        client.schedule("unknown")
    with pytest.raises(InvalidInput, match="empty"):
        client.schedule(" ")
    with pytest.raises(InvalidInput):
        put(client, id, cron="0 0 31 2 *")
    with pytest.raises(InvalidInput):
        client.reset_schedule("")
