"""`packhorse webhooks` against a real server and a real receiver."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from packhorse.cli.commands import webhooks
from packhorse.client import Client
from packhorse.errors import Unreachable
from tests.cli.conftest import Tell
from tests.cli.house import House, until
from tests.servers.web import Web, answering, web_aside

SERVED = {"PACKHORSE_SECRET_KEY": "k" * 32, "PACKHORSE_OUTBOUND_ALLOW": "127.0.0.0/8"}


def answers(house: House) -> bool:
    try:
        with Client(house.url) as client:
            return client.pipelines() == []
    except Unreachable:
        return False


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    house = House(tmp_path_factory.mktemp("served"))
    house.start("serve", "--keyless", "--port", str(house.port), env=SERVED)
    until(lambda: answers(house))
    yield house.url
    house.end()


@pytest.fixture
def ask(tell: Tell, url: str, monkeypatch: pytest.MonkeyPatch) -> Tell:
    monkeypatch.setenv("PACKHORSE_URL", url)
    return tell


@pytest.fixture
def receiver() -> Iterator[Web]:
    with web_aside() as receiver:
        yield receiver


def test_a_webhook_is_made_tried_listed_and_removed(ask: Tell, receiver: Web) -> None:
    added = ask("webhooks", "add", f"{receiver.url}/hook")
    words = added.out.split()
    webhook_id = words[words.index("webhook") + 1]
    tried = ask("webhooks", "test", webhook_id)
    listed = ask("webhooks", "list")
    bare = ask("webhooks")
    removed = ask("webhooks", "remove", webhook_id)
    then = json.loads(ask("webhooks", "--json").out)

    assert (added.code, tried.code, listed.code, removed.code) == (0, 0, 0, 0)
    assert words[words.index("secret") + 1].startswith("whsec_")
    assert "only once" in added.err
    assert (tried.out.strip(), receiver.asked[0].json["type"]) == ("The receiver accepted it.", "webhook.test")
    assert webhook_id in listed.out
    assert bare.out == listed.out
    assert f"{receiver.url}/hook" in listed.out
    assert "whsec_" not in listed.out
    assert [each["reason"] for each in then["items"] if each["webhook_id"] == webhook_id] == ["It was removed."]


def test_a_receiver_that_does_not_take_it_is_told_by_the_exit_code(ask: Tell, receiver: Web) -> None:
    receiver.answer = answering(500)
    webhook_id = json.loads(ask("webhooks", "add", receiver.url, "--json").out)["webhook_id"]

    tried = ask("webhooks", "test", webhook_id)

    assert (tried.code, tried.out.strip()) == (1, "Not delivered: HTTP_500.")


def test_an_address_inside_is_refused_with_the_way_out(ask: Tell) -> None:
    said = ask("webhooks", "add", "https://10.0.0.1/")

    assert (said.code, said.last_line) == (
        3,
        "Use a public address. An operator can allow this one with PACKHORSE_OUTBOUND_ALLOW.",
    )


@pytest.mark.parametrize("command", ["remove", "test"])
def test_a_webhook_that_is_not_there_is_told_with_how_to_list_them(ask: Tell, command: str) -> None:
    missing = ask("webhooks", command, "nope")
    empty = ask("webhooks", command, " ")

    assert (missing.code, missing.last_line) == (3, "List the webhooks with: packhorse webhooks")
    assert empty.code == 2


def test_messages_that_wait_are_listed_with_the_reason(ask: Tell, receiver: Web, url: str) -> None:
    with Client(url) as client:
        made = client.add_webhook(receiver.url)

    none = ask("webhooks", "deliveries", made["webhook_id"])
    as_json = json.loads(ask("webhooks", "deliveries", made["webhook_id"], "--json").out)
    unknown = ask("webhooks", "deliveries", "nope")

    assert (none.code, "All messages are delivered" in none.err) == (0, True)
    assert as_json == {"items": [], "next": None}
    assert unknown.code == 3


def test_a_message_that_waits_has_a_row() -> None:
    delivery = {
        "id": "j.1.e",
        "job_id": "j",
        "run": 1,
        "attempts": 2,
        "next_at": "2026-01-01T00:00:00Z",
        "error": "HTTP_500",
    }

    assert webhooks._delivery_row(delivery) == ("j.1.e", 2, "2026-01-01T00:00:00Z", "HTTP_500")
