"""People are told of new kinds of failures: webhooks through the outbox, a command by its input, a flood in brief."""

from __future__ import annotations

import json
import os
import shlex
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from packhorse import crashpoints
from packhorse.background import alerts
from packhorse.background.alerts import HOLD, MESSAGES, POLL, SHOWN, Alerts
from packhorse.background.failures import LATEST
from packhorse.background.webhooks import build_message
from packhorse.core.failures import FailureAction
from packhorse.core.plan import AlertRate
from packhorse.core.webhooks import NO_JOB
from packhorse.store.base import Store
from packhorse.store.collections.failures import add_action, dismiss_group, take_actions
from packhorse.store.collections.webhooks import add_endpoint, list_deliveries, settle_delivery, take_deliveries
from tests.background.test_bulk_actions import Killed, dying
from tests.contract.builders import ONE, plan, stage
from tests.contract.failures import BY_ANN, failing, failing_many, only_group, wrong
from tests.contract.keys import endpoint
from tests.contract.stores import Clock

KEEP = "import sys; open(sys.argv[1], 'a').write(sys.stdin.read() + '\\n'); sys.exit(int(sys.argv[2]))"


def written(to: Path, code: int = 0) -> str:
    """A command that keeps what it is told, and ends with this code."""
    return shlex.join([sys.executable, "-c", KEEP, str(to), str(code)])


def said(to: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in to.read_text().splitlines()] if to.exists() else []


def made(store: Store, command: str = "") -> Alerts:
    return Alerts(store, command, luck=lambda: 0.0)


async def posted(store: Store, to: str = "e1") -> list[dict[str, Any]]:
    return [json.loads(each.body) for each in reversed(await list_deliveries(store, to, 1000))]


def names(count: int) -> list[str]:
    """Words that differ by more than a number."""
    return [f"Way {chr(97 + n // 26)}{chr(97 + n % 26)}." for n in range(count)]


async def test_a_new_kind_is_told_to_every_webhook_of_its_tenant_once(store: Store) -> None:
    for id, tenant in (("e1", "default"), ("e2", "default"), ("e3", "acme")):
        await add_endpoint(store, endpoint(id, tenant=tenant))
    await failing(store, wrong("Model 7 is broken."))
    await failing(store, wrong("Model 8 is broken."))

    await made(store).tick()
    await made(store).tick()

    [message] = await posted(store)
    assert message["type"] == "failure.new"
    assert message["data"]["more"] == 0
    [group] = message["data"]["groups"]
    assert (group["message"], group["count"], group["error_code"]) == ("Model 7 is broken.", 2, "BROKEN")
    assert await posted(store, "e2") == [message]
    assert await posted(store, "e3") == []
    [delivery] = await list_deliveries(store, "e1")
    assert delivery.job_id == NO_JOB
    assert await build_message(store, delivery) == delivery.body.encode()


async def test_one_that_is_seen_again_after_a_dismissal_is_told_as_that(store: Store) -> None:
    await add_endpoint(store, endpoint())
    await failing(store)
    await made(store).tick()
    await dismiss_group(store, "default", (await only_group(store)).fingerprint, BY_ANN)

    await failing(store)
    await made(store).tick()

    assert [message["type"] for message in await posted(store)] == ["failure.new", "failure.again"]


async def test_a_flood_is_told_in_one_message_that_says_how_many_more(store: Store) -> None:
    await add_endpoint(store, endpoint())
    await failing_many(store, *map(wrong, names(SHOWN + 15)))

    await made(store).tick()

    [message] = await posted(store)
    assert (len(message["data"]["groups"]), message["data"]["more"]) == (SHOWN, 15)


async def test_a_tenant_is_told_only_so_often_and_hears_of_the_rest_later(store: Store, clock: Clock) -> None:
    await add_endpoint(store, endpoint())
    for message in names(MESSAGES + 4):
        await failing(store, wrong(message))
        await made(store).tick()
    early = await posted(store)
    clock.forward(120.0)
    await made(store).tick()

    assert len(early) == MESSAGES
    [rest] = (await posted(store))[MESSAGES:]
    assert len(rest["data"]["groups"]) == 4


async def test_a_command_is_told_on_its_input_without_our_settings(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PACKHORSE_SECRET_KEY", "canary")
    to = tmp_path / "said"
    code = "import os, sys, json; json.dump([dict(os.environ), sys.stdin.read(), sys.argv[2]], open(sys.argv[1], 'w'))"
    await failing(store)

    await made(store, shlex.join([sys.executable, "-c", code, str(to), "a; touch b"])).tick()

    environment, given, argument = json.loads(to.read_text())
    assert json.loads(given)["type"] == "failure.new"
    assert argument == "a; touch b"
    assert "canary" not in str(environment)


async def test_a_command_that_fails_is_run_again_and_webhooks_are_not_told_twice(
    store: Store, tmp_path: Path, clock: Clock
) -> None:
    await add_endpoint(store, endpoint())
    await failing(store)
    to = tmp_path / "said"

    await made(store, written(to, code=1)).tick()
    [delivery] = await take_deliveries(store, 10, 60.0)
    await settle_delivery(store, delivery, next_at=None)
    clock.forward(5.0)
    await made(store, written(to)).tick()
    clock.forward(86_400.0)
    await made(store, written(to)).tick()

    assert len(said(to)) == 2
    assert await list_deliveries(store, "e1") == []


async def test_a_command_that_is_not_there_or_never_ends_holds_nobody_up(
    store: Store, tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(alerts, "PATIENCE", 0.5)
    pid = tmp_path / "pid"
    sleeping = f"import os, time; open({str(pid)!r}, 'w').write(str(os.getpid())); time.sleep(600)"
    await failing(store)

    await made(store, str(tmp_path / "nothing")).tick()
    clock.forward(5.0)
    await made(store, shlex.join([sys.executable, "-c", sleeping])).tick()

    until = time.monotonic() + 30
    while pid.exists() and os.path.exists(f"/proc/{pid.read_text()}") and time.monotonic() < until:
        time.sleep(0.01)
    assert not pid.exists() or not os.path.exists(f"/proc/{pid.read_text()}")
    clock.forward(3_600.0)
    [left] = await take_actions(store, "alert", 10, 1.0)
    assert b'"is_posted":true' in left.body


async def test_what_was_posted_before_its_poster_died_is_told_by_the_next_under_the_same_id(
    store: Store, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    await add_endpoint(store, endpoint())
    await failing(store)
    monkeypatch.setattr(crashpoints, "hook", dying("alert.posted"))
    with pytest.raises(Killed):
        await made(store).tick()
    monkeypatch.setattr(crashpoints, "hook", None)
    before = await list_deliveries(store, "e1")
    clock.forward(HOLD)

    await made(store).tick()

    assert await list_deliveries(store, "e1") == before
    clock.forward(HOLD)
    assert await take_actions(store, "alert", 10, 1.0) == []


async def test_a_group_that_is_forgotten_meanwhile_is_nobodys_news(store: Store, clock: Clock) -> None:
    await add_endpoint(store, endpoint())
    await failing(store)
    clock.forward(1.0)
    await store.forget_failures(clock.now, 10)

    await made(store).tick()

    assert await posted(store) == []
    clock.forward(HOLD)
    assert await take_actions(store, "alert", 10, 1.0) == []


async def test_an_alert_that_cannot_be_read_keeps_nobody_from_hearing_of_the_others(store: Store, clock: Clock) -> None:
    await add_endpoint(store, endpoint())
    await add_action(store, FailureAction("0", "alert", "default", b"{", clock.now))
    await failing(store)

    await made(store).tick()

    assert len(await posted(store)) == 1
    clock.forward(LATEST)
    assert [each.id for each in await take_actions(store, "alert", 10, 1.0)] == ["0"]


async def test_with_nothing_to_tell_it_rests(store: Store) -> None:
    assert await made(store).tick() == POLL


EVERY = replace(ONE, alerts=AlertRate())
RATE = replace(ONE, alerts=AlertRate(3, 86_400.0))


async def test_every_failure_of_a_pipeline_that_asks_for_it_is_told_with_its_record(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(alerts, "RECORDED", 2)
    await add_endpoint(store, endpoint())
    jobs = await failing_many(store, *[wrong("The same.")] * 5, plan=EVERY)

    await made(store).tick()
    await made(store).tick()

    messages = await posted(store)
    assert {message["type"] for message in messages} == {"failure.recorded"}
    told = [failure for message in messages for failure in message["data"]["failures"]]
    assert [failure["job_id"] for failure in told] == [job.id for job in jobs]
    assert told[0].keys() >= {"trace_id", "job_id", "error_code", "message", "attempts", "timestamp", "schedule_id"}
    assert (len(messages), told[0]["error_code"], told[0]["attempts"]) == (3, "BROKEN", 1)


async def die(*_: object, **_facts: object) -> None:
    raise Killed


async def delivered(store: Store) -> list[dict[str, Any]]:
    """What the webhooks get now; the outbox has nothing of it afterwards."""
    taken = await take_deliveries(store, 10, 60.0)
    for delivery in taken:
        await settle_delivery(store, delivery, next_at=None)
    return [json.loads(each.body) for each in taken]


async def test_many_failures_in_a_short_time_are_told_once_in_that_time(store: Store, clock: Clock) -> None:
    await add_endpoint(store, endpoint())
    await failing_many(store, wrong("One."), wrong("Two."), plan=RATE)
    await made(store).tick()
    below = await delivered(store)

    await failing_many(store, wrong("Three."), wrong("Four."), plan=RATE)
    await made(store).tick()
    [message] = await delivered(store)
    await failing(store, wrong("Five."), plan=RATE)
    await made(store).tick()

    assert await delivered(store) == below == []
    assert (message["type"], message["data"]["pipeline"]) == ("failure.rate", "convert")
    assert message["data"]["rate"] == {"failures": 3, "seconds": 86_400.0}
    assert [failure["message"] for failure in message["data"]["failures"]] == ["Three.", "Four."]


async def test_a_tenant_gets_messages_about_rates_only_so_often_and_the_rest_later(store: Store, clock: Clock) -> None:
    await add_endpoint(store, endpoint())
    for n in range(MESSAGES + 1):
        each = plan(stage("only"), pipeline=f"convert{n}", alerts=AlertRate(2, 30.0))
        await failing_many(store, wrong("One."), wrong("Two."), plan=each)
    await made(store).tick()
    early = await delivered(store)
    clock.forward(120.0)
    await made(store).tick()

    assert len(early) == MESSAGES
    assert len(await delivered(store)) == 1


BEFORE = {"keeping": "_keep", "charged": "_message"}  # where it dies, and what is called there


@pytest.mark.parametrize("at", [*BEFORE, "posted", "command"])
async def test_a_rate_alert_survives_the_death_of_its_worker(
    store: Store, tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch, at: str
) -> None:
    await add_endpoint(store, endpoint())
    await failing_many(store, wrong("One."), wrong("Two."), wrong("Three."), plan=RATE)
    command = written(tmp_path / "told")
    with monkeypatch.context() as patch:
        if at in BEFORE:
            patch.setattr(alerts.Alerts, BEFORE[at], die)
        elif at == "posted":
            patch.setattr(crashpoints, "hook", dying("alert.posted"))
        else:
            patch.setattr(alerts, "run", die)
        with pytest.raises(Killed):
            await made(store, command).tick()
    if at == "command":
        assert len(await delivered(store)) == 1
    clock.forward(2 * HOLD)
    await made(store, command).tick()
    await made(store, command).tick()

    assert [message["type"] for message in said(tmp_path / "told")] == ["failure.rate"]
    assert len(await delivered(store)) == (at != "command")


async def test_a_command_that_failed_is_told_of_the_same_failures_again(store: Store, tmp_path: Path) -> None:
    await failing_many(store, wrong("One."), wrong("Two."), plan=EVERY)
    await made(store, written(tmp_path / "told", code=1)).tick()
    actions = await take_actions(store, "alert", 10, 60.0)

    [message] = said(tmp_path / "told")

    assert [failure["message"] for failure in message["data"]["failures"]] == ["One.", "Two."]
    assert actions == []  # they are due later
