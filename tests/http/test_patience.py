"""Clients that are told when to come again: what they wait for, and how long."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from packhorse.errors import Forbidden, PackhorseError, RateExceeded, StoreUnavailable
from tests.http.both import KINDS, opened
from tests.servers.web import Answer, Web, answering, in_turn, web_aside


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    found: str = request.param
    return found


@pytest.fixture
def server() -> Iterator[Web]:
    with web_aside() as server:
        yield server


def refusing(status: int, type: str, wait: str = "1") -> Answer:
    body = json.dumps({"type": f"urn:packhorse:{type}", "title": "No", "status": status, "detail": "Not now."}).encode()
    return answering(status, body, retry_after=wait, content_type="application/problem+json")


JOB = answering(200, b'{"job_id": "j1"}', content_type="application/json")
BUSY = refusing(429, "rate-exceeded")
AWAY = refusing(503, "store-unavailable")


@pytest.mark.parametrize("refusal", [BUSY, AWAY], ids=["429", "503"])
def test_what_is_read_is_asked_for_again_when_the_server_says_so(server: Web, kind: str, refusal: Answer) -> None:
    server.answer = in_turn(refusal, refusal, JOB)
    told: list[tuple[float, str]] = []

    with opened(kind, server.url, on_wait=lambda seconds, error: told.append((seconds, error.message))) as client:
        job = client.get("j1")

    assert job == {"job_id": "j1"}
    assert told == [(1.0, "Not now.")] * 2
    assert [each.method for each in server.asked] == ["GET"] * 3


def test_a_submit_is_sent_again_under_its_key(server: Web, kind: str) -> None:
    server.answer = in_turn(BUSY, JOB)

    with opened(kind, server.url) as client:
        client.submit("add", {"a": 1})

    keys = {each.headers["idempotency-key"] for each in server.asked}
    assert (len(server.asked), len(keys)) == (2, 1)


def outcomes(*found: str | None) -> Answer:
    """Of a batch: a job's id, or a problem that passes."""
    busy = {"type": "urn:packhorse:rate-exceeded", "detail": "Not now.", "retry_after": 1}
    items = [{"job": job and {"job_id": job}, "problem": None if job else busy} for job in found]
    return answering(200, json.dumps({"items": items}).encode(), content_type="application/json")


def test_items_of_a_batch_that_were_refused_for_now_are_sent_again_under_their_keys(server: Web, kind: str) -> None:
    server.answer = in_turn(outcomes("j1", None, "j3", None), outcomes(None, "j4"), outcomes("j2"))

    with opened(kind, server.url) as client:
        found = client.submit_many([{"parameters": {"a": n}} for n in range(4)], pipeline="add")

    sent = [[each["idempotency_key"] for each in asked.json["items"]] for asked in server.asked]
    assert found == [{"job_id": f"j{n}"} for n in range(1, 5)]
    assert sent[1:] == [[sent[0][1], sent[0][3]], [sent[0][1]]]
    assert len(set(sent[0])) == 4


def test_a_batch_that_cannot_go_on_says_so_of_each_item_without_an_outcome(server: Web, kind: str) -> None:
    denied = refusing(403, "forbidden")
    server.answer = in_turn(outcomes(*["j1"] * 1000), denied)

    with opened(kind, server.url, wait=0) as client:
        found = client.submit_many([{}] * 1002, pipeline="add")
        with pytest.raises(Forbidden):
            client.submit_many([{}], pipeline="add")

    assert found[:1000] == [{"job_id": "j1"}] * 1000
    assert [type(each) for each in found[1000:]] == [Forbidden] * 2


def test_an_item_that_nobody_accepts_in_time_has_its_refusal_as_outcome(server: Web, kind: str) -> None:
    server.answer = outcomes("j1", None)

    with opened(kind, server.url, wait=0) as client:
        found = client.submit_many([{}, {}], pipeline="add")

    assert (found[0], type(found[1]), len(server.asked)) == ({"job_id": "j1"}, RateExceeded, 1)


def test_a_download_waits_as_well(server: Web, kind: str, tmp_path: Path) -> None:
    value = answering(200, b"[1]", content_type="application/json")
    server.answer = in_turn(refusing(429, "too-many-downloads"), value)

    with opened(kind, server.url) as client:
        assert client.result("j1", tmp_path) == [1]


def test_what_may_not_be_done_twice_is_not_sent_twice(server: Web, kind: str) -> None:
    server.answer = in_turn(AWAY, JOB)

    with opened(kind, server.url) as client, pytest.raises(StoreUnavailable) as raised:
        client.retry("j1")

    assert len(server.asked) == 1
    assert raised.value.retry_after == 1.0


@pytest.mark.parametrize(("wait", "asked"), [(0.0, "1"), (5.0, "6"), (5.0, "soon"), (5.0, "")])
def test_who_would_have_to_wait_for_too_long_is_told_at_once(server: Web, kind: str, wait: float, asked: str) -> None:
    server.answer = refusing(429, "rate-exceeded", asked)

    with opened(kind, server.url, wait=wait) as client, pytest.raises(RateExceeded):
        client.get("j1")

    assert len(server.asked) == 1


def test_waiting_ends_when_the_time_for_it_is_over(server: Web, kind: str) -> None:
    server.answer = BUSY
    told: list[PackhorseError] = []

    with opened(kind, server.url, wait=2.5, on_wait=lambda _, e: told.append(e)) as client, pytest.raises(RateExceeded):
        client.get("j1")

    assert 1 <= len(told) <= 2
    assert len(server.asked) == len(told) + 1
