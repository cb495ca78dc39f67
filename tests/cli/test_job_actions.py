"""Jobs cancelled, retried and deleted from the command line, one or many."""

from __future__ import annotations

import secrets

import pytest

from tests.cli.conftest import Tell
from tests.cli.house import Dev


@pytest.fixture
def ask(tell: Tell, shared: Dev, monkeypatch: pytest.MonkeyPatch) -> Tell:
    monkeypatch.setenv("PACKHORSE_URL", shared.url)
    return tell


@pytest.fixture
def user(shared: Dev) -> str:
    """Somebody with two jobs that wait for an hour."""
    user = secrets.token_hex(4)
    for _ in range(2):
        shared.client.submit("greet", {"name": "ann"}, user=user, delay="1h")
    return user


def ids(shared: Dev, user: str) -> list[str]:
    return [job["job_id"] for job in shared.client.iterate(user=user)]


def statuses(shared: Dev, user: str) -> list[str]:
    return [job["status"] for job in shared.client.iterate(user=user)]


def test_jobs_are_counted_by_what_they_have_in_common(ask: Tell, user: str) -> None:
    assert ask("jobs", "--count", "--user", user).out == "2\n"
    assert ask("jobs", "--count", "--user", user, "--until", "2026-01-01T00:00:00Z").out == "0\n"
    assert ask("jobs", "--count", "--user", user, "--json").json == {"count": 2, "is_at_least": False}


def test_jobs_are_searched_by_metadata_and_user(ask: Tell, shared: Dev, user: str) -> None:
    job = shared.client.submit("greet", {"name": "ann"}, user=user, delay="1h", metadata={"order": user})

    found = ask("jobs", "--search", f"order={user}", "--json").json["items"]

    assert [each["job_id"] for each in found] == [job["job_id"]]
    assert [each["job_id"] for each in shared.client.iterate(q=user)] == ids(shared, user)
    assert len(ids(shared, user)) == 3
    assert ask("jobs", "--search", user, "--count").code == 3


def test_all_that_are_found_are_only_counted_until_somebody_means_it(ask: Tell, shared: Dev, user: str) -> None:
    said = ask("cancel", "--user", user, "--status", "pending")

    assert (said.code, said.out) == (1, "Would cancel 2 jobs.\n")
    assert said.last_line == "Nothing was changed. To do it, add: --yes"
    assert statuses(shared, user) == ["pending", "pending"]


def test_all_that_are_found_are_changed(ask: Tell, shared: Dev, user: str) -> None:
    assert ask("cancel", "--user", user, "--yes").out == "Cancelled 2 jobs.\n"
    assert statuses(shared, user) == ["cancelled", "cancelled"]

    assert ask("delete", "--user", user, "--pipeline", "greet", "--dry-run").out == "Would delete 2 jobs.\n"
    assert ask("delete", "--user", user, "--pipeline", "greet", "--yes").out == "Deleted 2 jobs.\n"
    assert statuses(shared, user) == []


def test_several_ids_are_meant_as_they_are_given(ask: Tell, shared: Dev, user: str) -> None:
    first, second = ids(shared, user)

    said = ask("cancel", first, second, "none")

    assert (said.code, said.out) == (0, "Cancelled 2 jobs.\nLeft 1 job unchanged: not found.\n")
    assert ask("retry", first, second).out == "Retried 2 jobs.\n"
    assert ask("cancel", first, "none").out == "Cancelled 1 job.\nLeft 1 job unchanged: not found.\n"


@pytest.mark.parametrize("verb", ["cancel", "retry", "delete"])
def test_who_says_nothing_means_nothing(ask: Tell, verb: str) -> None:
    said = ask(verb)

    assert said.code == 2
    assert "--all" in said.err


@pytest.mark.parametrize("options", [["--stage", "greet"], ["--failed-elements"]])
def test_what_runs_again_is_named_for_one_job(ask: Tell, shared: Dev, user: str, options: list[str]) -> None:
    said = ask("retry", *ids(shared, user), *options)

    assert said.code == 2
    assert "a single job" in said.err


def test_failed_elements_run_again_only_if_there_are_any(ask: Tell, shared: Dev, user: str) -> None:
    first, _ = ids(shared, user)
    ask("cancel", first)

    said = ask("retry", first, "--failed-elements")

    assert said.code == 3
    assert "No elements of this job have failed" in said.err
