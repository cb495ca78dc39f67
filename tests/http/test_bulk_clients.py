"""Many jobs at once, as both clients ask for it."""

from __future__ import annotations

import secrets
from collections.abc import Iterator

import pytest

from packhorse import Client
from packhorse.errors import InvalidInput
from tests.http.both import KINDS, opened
from tests.http.processes import Server


@pytest.fixture(params=KINDS)
def client(request: pytest.FixtureRequest, server: Server) -> Iterator[Client]:
    with opened(request.param, server.url) as client:
        yield client


@pytest.fixture
def user(client: Client) -> str:
    """Somebody with three jobs that wait."""
    user = secrets.token_hex(4)
    for a in range(3):
        client.submit("add", {"a": a}, user=user)
    return user


def test_many_are_submitted_in_their_order_however_many_requests_it_takes(client: Client) -> None:
    user = secrets.token_hex(4)
    items = [{"parameters": {"a": "wrong" if a == 1001 else a}} for a in range(1003)]

    found = client.submit_many(items, pipeline="add", user=user)

    wrong = found.pop(1001)
    assert isinstance(wrong, InvalidInput)
    assert [each["field"] for each in wrong.errors] == ["items[1].a"]  # of the second request
    assert [job["parameters"]["a"] for job in found if isinstance(job, dict)] == [*range(1001), 1002]
    assert client.count(user=user)["count"] == 1000
    assert client.submit_many([]) == []


def statuses(client: Client, user: str) -> list[str]:
    return [job["status"] for job in client.iterate(user=user)]


def test_jobs_are_counted(client: Client, user: str) -> None:
    assert client.count(user=user, status="pending") == {"count": 3, "is_at_least": False}
    assert client.count(user=user, created_until="2026-01-01T00:00:00Z")["count"] == 0


def test_a_trial_changes_nothing(client: Client, user: str) -> None:
    found = client.cancel_jobs(user=user, dry_run=True)

    assert (found["count"], len(found["first"])) == (3, 3)
    assert statuses(client, user) == ["pending"] * 3


def test_all_are_changed_however_many_requests_it_takes(client: Client, user: str) -> None:
    for a in range(199):
        client.submit("add", {"a": a}, user=user)

    found = client.cancel_jobs(user=user)

    assert (found["count"], found["left"], found["next"]) == (202, {}, None)
    assert set(statuses(client, user)) == {"cancelled"}


def test_those_of_given_ids_are_cancelled_retried_and_deleted(client: Client, user: str) -> None:
    ids = [job["job_id"] for job in client.iterate(user=user)]

    assert client.cancel_jobs(ids[:2])["count"] == 2
    assert client.retry_jobs([ids[0], ids[2]])["left"] == {"pending": 1}
    assert client.delete_jobs([ids[1]])["count"] == 1
    assert statuses(client, user) == ["pending", "pending"]


def test_what_is_not_said_is_refused(client: Client) -> None:
    with pytest.raises(InvalidInput, match="Nothing is selected"):
        client.cancel_jobs()
