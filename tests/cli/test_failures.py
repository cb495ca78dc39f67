"""`packhorse failures` against a real server and a real worker."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.cli.conftest import Tell
from tests.cli.house import Dev, until


@pytest.fixture
def ask(tell: Tell, shared: Dev, monkeypatch: pytest.MonkeyPatch) -> Tell:
    monkeypatch.setenv("PACKHORSE_URL", shared.url)
    return tell


def failing(shared: Dev, why: str) -> dict[str, Any]:
    """The failure of a job that was just run."""
    job = shared.client.submit("fail", {"why": why}, wait=30)
    ended = shared.client.wait(job["job_id"], 60)
    assert ended["status"] == "failed", ended
    [failure] = shared.client.failures(job_id=job["job_id"])["items"]
    return dict(failure)


def carried_out(ask: Tell, order_id: str) -> dict[str, Any]:
    def look() -> dict[str, Any]:
        order: dict[str, Any] = json.loads(ask("failures", "orders", order_id, "--json").out)
        return order if order["ended_at"] else {}

    return until(look)


def test_failures_are_listed_grouped_and_shown(ask: Tell, shared: Dev) -> None:
    failure = failing(shared, "Nothing to be done.")

    listed = ask("failures", "--code", "ASKED_FOR", "--status", "open")
    groups = ask("failures", "groups")
    shown = ask("failures", "show", failure["failure_id"])
    group = ask("failures", "show", failure["fingerprint"])
    of_job = ask("failures", "show", failure["job_id"])
    completed = shared.client.submit("greet", {"name": "ann"}, wait=30)["job_id"]
    without = ask("failures", "show", completed)
    none = ask("failures", "--code", "NOTHING")

    assert (listed.code, groups.code, shown.code, group.code, none.code) == (0, 0, 0, 0, 0)
    assert failure["failure_id"] in listed.out
    assert "Nothing to be done." in groups.out
    assert failure["fingerprint"] in groups.out
    assert failure["trace_id"] in shown.out
    assert "ASKED_FOR" in group.out
    assert of_job.out == shown.out
    assert (without.code, without.err.splitlines()[0]) == (3, f"Job {completed} has no failure: it is completed.")
    assert none.err.strip() == "No failures found."


def test_a_group_is_tried_then_retried_and_the_order_followed(ask: Tell, shared: Dev) -> None:
    failure = failing(shared, "Once more, please.")

    trial = ask("failures", "retry", "--group", failure["fingerprint"], "--dry-run")
    order = json.loads(ask("failures", "retry", "--group", failure["fingerprint"], "--pace", "50", "--json").out)
    done = carried_out(ask, order["order"]["order_id"])
    listed = ask("failures", "orders")

    assert trial.out.splitlines()[0] == "Would retry 1 failure."
    assert failure["failure_id"] in trial.out
    assert (order["count"], done["done"], done["left"]) == (1, 1, {})
    assert order["order"]["order_id"] in listed.out
    assert shared.client.failure(failure["failure_id"])["status"] == "retried"


def test_one_is_dismissed_by_its_id_with_a_reason(ask: Tell, shared: Dev) -> None:
    failure = failing(shared, "Leave it.")

    said = ask("failures", "dismiss", failure["failure_id"], "--reason", "It is known.")
    without = ask("failures", "dismiss", failure["failure_id"])

    assert said.code == 0
    assert said.out.startswith("Dismissing 1 failure: order ")
    assert without.code == 2
    found = until(lambda: _settled(shared, failure["failure_id"]))
    assert (found["status"], found["settled"]["reason"]) == ("dismissed", "It is known.")


def _settled(shared: Dev, failure_id: str) -> dict[str, Any]:
    found = shared.client.failure(failure_id)
    return dict(found) if found["settled"] else {}


def test_what_is_not_there_or_not_said_is_told_with_the_way_on(ask: Tell) -> None:
    missing = ask("failures", "show", "0-nope")
    nothing = ask("failures", "retry")
    empty = ask("failures", "show", " ")

    assert (missing.code, missing.last_line) == (3, "List the failures with: packhorse failures")
    assert nothing.code == 3
    assert "Nothing is selected: give ids or a filter" in nothing.err
    assert empty.code == 2


def test_dismissed_groups_are_listed_by_themselves_and_each_shows_its_trend(ask: Tell, shared: Dev) -> None:
    failure = failing(shared, "The trend of it.")

    listed = ask("failures", "groups")
    dismissed = ask("failures", "groups", "--dismissed", "--json")

    [row] = [line for line in listed.out.splitlines() if failure["fingerprint"] in line]
    assert "·█ " in row
    assert failure["fingerprint"] not in [each["fingerprint"] for each in dismissed.json["items"]]
