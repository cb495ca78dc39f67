"""Messages to a real receiver, by a clock that the test moves."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import logging
from base64 import b64decode, b64encode
from collections.abc import AsyncIterator
from email.utils import formatdate
from typing import Any

import pytest

from packhorse.background import webhooks
from packhorse.background.janitor import Janitor
from packhorse.background.webhooks import AT_ONCE, HOLD, IDLE, LINE, UNSIGNED, WebhookSender, secret_of
from packhorse.core.models import Job, Result
from packhorse.core.webhooks import DAY, ENDPOINT_GIVE_UP, MINUTE, WEBHOOK_AGES, Delivery
from packhorse.errors import CorruptRecord, StoreUnavailable
from packhorse.jobs.transact import Transactor
from packhorse.outbound import dns
from packhorse.outbound.addresses import Allow
from packhorse.outbound.calls import Outbound
from packhorse.schemas.jobs import job_to_json
from packhorse.store.base import Store
from packhorse.store.collections.webhooks import (
    Endpoint,
    add_endpoint,
    list_attempts,
    list_deliveries,
    list_endpoints,
    redeliver,
    settle_delivery,
)
from tests.contract.builders import SPEC, claim_one, completed, failed, finish, submit
from tests.contract.builders import cancelled as a_cancelled
from tests.contract.stores import Clock
from tests.servers.web import Asked, Web, answering, in_turn, web
from tests.servers.web import held as held_up
from tests.worker.builders import retry
from tests.worker.faulty import Faults

KEY = "k" * 32


@pytest.fixture
async def receiver() -> AsyncIterator[Web]:
    async with web() as receiver:
        yield receiver


@pytest.fixture
async def courier(shaky: Store) -> AsyncIterator[WebhookSender]:
    found = made(shaky)
    yield found
    await found.close()


def made(store: Store, key: str = KEY, allow: str = "127.0.0.0/8") -> WebhookSender:
    return WebhookSender(store, Outbound(Allow.of(allow), webhooks.POLICY), key, luck=lambda: 0.0)


async def endpoint(store: Store, url: str, id: str = "e1") -> Endpoint:
    found = Endpoint(id, "default", url, store.now())
    await add_endpoint(store, found)
    return found


async def turn(messenger: WebhookSender) -> None:
    """One look, and all that comes of it."""
    await messenger.tick()
    await messenger.wait_idle()


def is_signed(asked: Asked, endpoint_id: str = "e1", key: str = KEY) -> bool:
    """As a receiver checks it, written down once more."""
    secret = b64decode(secret_of(key, endpoint_id).removeprefix("whsec_"))
    id, at = asked.headers["webhook-id"], asked.headers["webhook-timestamp"]
    digest = hmac.new(secret, b".".join([id.encode(), at.encode(), asked.body]), hashlib.sha256).digest()
    return asked.headers["webhook-signature"] == "v1," + b64encode(digest).decode()


async def waiting(store: Store) -> list[Delivery]:
    return await list_deliveries(store, "e1")


@pytest.mark.parametrize(
    ("end", "type"), [(completed, "job.completed"), (failed, "job.failed"), (a_cancelled, "job.cancelled")]
)
async def test_a_message_tells_how_the_job_ended_in_its_one_shape(
    store: Store, courier: WebhookSender, receiver: Web, clock: Clock, end: Any, type: str
) -> None:
    await endpoint(store, f"{receiver.url}/hook?token=1")
    job: Job = await end(store, webhooks=("e1",))
    results = (await store.results([job.id])).get(job.id, {})

    await turn(courier)

    [asked] = receiver.asked
    assert (asked.method, asked.path, asked.headers["content-type"]) == ("POST", "/hook?token=1", "application/json")
    assert asked.json["type"] == type
    assert asked.json["timestamp"] == "2027-01-15T08:00:00.000000Z"
    assert asked.json["data"] == job_to_json(job, SPEC, results, {})
    assert asked.headers["webhook-id"] == f"{job.id}.1.e1"
    assert asked.headers["webhook-timestamp"] == str(int(clock.now))
    assert is_signed(asked)
    assert await waiting(store) == []


async def test_each_attempt_is_kept_with_its_answer_and_a_message_is_sent_again(
    store: Store, courier: WebhookSender, receiver: Web
) -> None:
    receiver.answer = in_turn(answering(500, b"disk full " * 500), answering(200, b"thanks"))
    await endpoint(store, f"{receiver.url}/hook")
    job = await completed(store, webhooks=("e1",))
    await turn(courier)

    await redeliver(store, job.id, 1, "e1")  # it waits for its next attempt: it is sent now
    await turn(courier)
    await redeliver(store, job.id, 1, "e1")  # it was delivered: it is sent once more
    await turn(courier)

    last, second, first = await list_attempts(store, "e1")
    assert [(each.status, each.error) for each in (first, second, last)] == [(500, "HTTP_500"), (200, ""), (200, "")]
    assert first.answer == ("disk full " * 500)[:1000]
    assert second.answer == "thanks"
    assert {each.id for each in (first, second, last)} == {f"{job.id}.1.e1"}
    assert {asked.headers["webhook-id"] for asked in receiver.asked} == {f"{job.id}.1.e1"}
    assert (first.job_id, first.run, first.bytes) == (job.id, 1, len(receiver.asked[0].body))
    assert await waiting(store) == []


async def test_an_answer_that_never_ends_does_not_fail_the_message(
    store: Store, courier: WebhookSender, receiver: Web, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(webhooks, "ANSWER_PATIENCE", 0.05)
    receiver.answer = answering(200, b"part", content_length="1000")
    await endpoint(store, f"{receiver.url}/hook")
    await completed(store, webhooks=("e1",))

    await turn(courier)

    [attempt] = await list_attempts(store, "e1")
    assert (attempt.status, attempt.error, attempt.answer) == (200, "", "part")
    assert await waiting(store) == []


async def test_a_name_is_looked_up_out_of_the_share_of_the_tenant_that_chose_it(store: Store) -> None:
    owners = []

    async def resolve(_host: str) -> list[Any]:
        owners.append(dns._owner.get())
        return []

    await endpoint(store, "https://example.org/")
    await completed(store, webhooks=("e1",))

    await turn(WebhookSender(store, Outbound(Allow.of(""), webhooks.POLICY, resolve=resolve), KEY, luck=lambda: 0.0))

    assert owners == ["default"]
    assert [each.error for each in await waiting(store)] == ["NOT_RESOLVED"]


async def test_a_job_without_webhooks_is_told_to_nobody(store: Store, courier: WebhookSender, receiver: Web) -> None:
    await endpoint(store, receiver.url)
    await completed(store)

    await turn(courier)

    assert receiver.asked == []


async def test_while_nobody_listens_the_outbox_is_not_even_looked_at(
    courier: WebhookSender, shaky: Store, faults: Faults
) -> None:
    assert await courier.tick() == IDLE
    assert faults.names() == ["scan endpoint"]


async def test_a_retry_is_told_again_under_another_id(store: Store, courier: WebhookSender, receiver: Web) -> None:
    await endpoint(store, receiver.url)
    job = await failed(store, webhooks=("e1",))
    await turn(courier)

    await retry(store, job.id)
    await finish(store, await claim_one(store))
    await turn(courier)

    assert [asked.json["type"] for asked in receiver.asked] == ["job.failed", "job.completed"]
    assert [asked.headers["webhook-id"] for asked in receiver.asked] == [f"{job.id}.1.e1", f"{job.id}.2.e1"]


async def test_a_message_about_a_run_is_about_that_run_though_the_next_has_begun(
    store: Store, courier: WebhookSender, receiver: Web
) -> None:
    await endpoint(store, receiver.url)
    job = await failed(store, webhooks=("e1",))
    await retry(store, job.id)

    await turn(courier)

    [asked] = receiver.asked
    assert (asked.json["type"], asked.json["data"]["status"], asked.json["data"]["run"]) == ("job.failed", "pending", 2)


async def test_what_is_too_long_for_a_message_is_left_out_and_said_to_be(
    store: Store, courier: WebhookSender, receiver: Web, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(webhooks, "LARGEST", 10_000)
    await endpoint(store, receiver.url)
    await submit(store, webhooks=("e1",))
    await finish(store, await claim_one(store), Result(b'"' + b"x" * 20_000 + b'"'))

    await turn(courier)

    [asked] = receiver.asked
    assert (asked.json["data"]["result"], asked.json["omitted"]) == (None, ["result"])
    assert len(asked.body) < 10_000


async def test_two_messengers_send_each_message_once(store: Store, receiver: Web) -> None:
    await endpoint(store, receiver.url)
    jobs = [await completed(store, user=f"u{n}", webhooks=("e1",)) for n in range(20)]
    both = [made(store), made(store)]

    await asyncio.gather(*(turn(each) for each in both))

    assert sorted(asked.headers["webhook-id"] for asked in receiver.asked) == sorted(f"{job.id}.1.e1" for job in jobs)


# Not taken.


async def test_a_message_that_is_not_taken_is_sent_again_under_the_same_id_after_growing_pauses(
    store: Store, courier: WebhookSender, receiver: Web, clock: Clock
) -> None:
    receiver.answer = in_turn(answering(500), answering(503), answering(302, location="/x"), answering(204))
    await endpoint(store, receiver.url)
    job = await completed(store, webhooks=("e1",))
    begun = clock.now
    seen: list[tuple[float, str]] = []

    while len(receiver.asked) < 4:
        await turn(courier)
        for left in await waiting(store):
            seen.append((left.next_at - begun, left.error))
            clock.now = left.next_at - 0.001
            await turn(courier)
            assert len(receiver.asked) == len(seen)  # not a moment too early
            clock.now = left.next_at

    assert seen == [(WEBHOOK_AGES[0], "HTTP_500"), (WEBHOOK_AGES[1], "HTTP_503"), (WEBHOOK_AGES[2], "HTTP_302")]
    assert {asked.headers["webhook-id"] for asked in receiver.asked} == {f"{job.id}.1.e1"}
    assert len({asked.headers["webhook-timestamp"] for asked in receiver.asked}) == 4
    assert all(is_signed(asked) for asked in receiver.asked)
    assert await waiting(store) == []


async def test_a_message_that_is_never_taken_is_given_up_with_a_line_in_the_log(
    store: Store, courier: WebhookSender, receiver: Web, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    receiver.answer = answering(500)
    await endpoint(store, receiver.url)
    job = await completed(store, webhooks=("e1",))

    await turn(courier)
    while left := await waiting(store):
        clock.now = left[0].next_at
        await turn(courier)

    assert len(receiver.asked) == len(WEBHOOK_AGES) + 1
    [line] = [record for record in caplog.records if "giving up" in record.message]
    assert (line.levelno, job.id in line.message, "HTTP_500" in line.message) == (logging.ERROR, True, True)
    assert (await list_endpoints(store))[0].ended_at is None


@pytest.mark.parametrize("status", [429, 503])
@pytest.mark.parametrize(
    ("said", "waited"),
    [
        ("120", 120.0),
        ("0", 5.0),
        ("soon", 5.0),
        ("²", 5.0),
        ("99999999999", DAY),
        (formatdate(1_800_000_090.0, usegmt=True), 90.0),
    ],
)
async def test_a_receiver_that_asks_for_time_is_given_some(
    store: Store, courier: WebhookSender, receiver: Web, clock: Clock, status: int, said: str, waited: float
) -> None:
    receiver.answer = answering(status, retry_after=said)
    await endpoint(store, receiver.url)
    await completed(store, webhooks=("e1",))

    await turn(courier)

    [left] = await waiting(store)
    assert left.next_at - clock.now == waited


async def test_who_is_gone_is_told_nothing_more(store: Store, courier: WebhookSender, receiver: Web) -> None:
    receiver.answer = answering(410)
    await endpoint(store, receiver.url)
    for user in ("ann", "bob"):
        await completed(store, user=user, webhooks=("e1",))

    await turn(courier)
    asked = len(receiver.asked)
    await completed(store, user="cid", webhooks=("e1",))
    await turn(courier)

    [ended] = await list_endpoints(store)
    assert (ended.ended_at, "410" in ended.reason) == (store.now(), True)
    assert (await waiting(store), len(receiver.asked)) == ([], asked)


async def test_who_takes_nothing_for_five_days_is_told_nothing_more(
    store: Store, courier: WebhookSender, receiver: Web, clock: Clock
) -> None:
    receiver.answer = answering(500)
    await endpoint(store, receiver.url)
    begun = clock.now

    while (await list_endpoints(store))[0].ended_at is None:
        await completed(store, user=f"u{clock.now}", webhooks=("e1",))
        await turn(courier)
        clock.forward(DAY)
        assert clock.now < begun + 30 * DAY

    [ended] = await list_endpoints(store)
    assert (ended.ended_at, "HTTP_500" in ended.reason) == (begun + ENDPOINT_GIVE_UP, True)
    assert await waiting(store) == []


async def test_a_single_message_taken_starts_the_five_days_anew(
    store: Store, courier: WebhookSender, receiver: Web, clock: Clock
) -> None:
    await endpoint(store, receiver.url)
    for day in range(9):
        receiver.answer = answering(200 if day == 4 else 500)
        await completed(store, user=f"u{day}", webhooks=("e1",))
        await turn(courier)
        clock.forward(DAY)

    assert (await list_endpoints(store))[0].ended_at is None


async def test_a_failure_long_ago_says_nothing_about_today(
    store: Store, courier: WebhookSender, receiver: Web, clock: Clock
) -> None:
    await endpoint(store, receiver.url)
    receiver.answer = answering(500)
    for user in ("ann", "bob"):
        await completed(store, user=user, webhooks=("e1",))
        await turn(courier)
        for left in await waiting(store):
            await settle_delivery(store, left, next_at=None)
        clock.forward(6 * DAY)

    assert (await list_endpoints(store))[0].ended_at is None


# Where it must not go.


async def test_a_name_that_leads_inside_is_never_connected_to(store: Store, receiver: Web) -> None:
    await endpoint(store, f"https://localhost:{receiver.port}/")
    await completed(store, webhooks=("e1",))
    guarded = made(store, allow="")

    await turn(guarded)

    [left] = await waiting(store)
    assert (left.error, receiver.connections) == ("BLOCKED_ADDRESS", 0)


async def test_without_a_key_nothing_is_taken_from_those_who_have_one(
    store: Store, receiver: Web, caplog: pytest.LogCaptureFixture
) -> None:
    await endpoint(store, receiver.url)
    await completed(store, webhooks=("e1",))

    wait = await made(store, key="").tick()

    assert (wait, [left.attempts for left in await waiting(store)]) == (UNSIGNED, [0])
    assert "PACKHORSE_SECRET_KEY" in caplog.text


# One slow receiver, many fast ones.


async def test_a_slow_receiver_holds_nobody_else_up(store: Store, courier: WebhookSender, receiver: Web) -> None:
    gate = asyncio.Event()
    async with web(held_up(gate, answering(200))) as slow:
        await endpoint(store, slow.url, "slow")
        await endpoint(store, receiver.url)
        for n in range(AT_ONCE + LINE + 60):
            await completed(store, user=f"u{n}", webhooks=("slow",))
        await completed(store, webhooks=("e1",))

        while not receiver.asked:
            await courier.tick()
            await asyncio.sleep(0.01)
        under_way = slow.connections
        put_off = [each for each in await list_deliveries(store, "slow", 1000) if each.next_at < store.now() + HOLD]
        gate.set()
        await courier.wait_idle()

    assert under_way <= AT_ONCE
    assert put_off
    assert len(slow.asked) == AT_ONCE + LINE


async def test_what_was_put_off_comes_later_and_nothing_is_held_against_it(
    store: Store, courier: WebhookSender, receiver: Web, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(webhooks, "LINE", 1)
    await endpoint(store, receiver.url)
    jobs = [await completed(store, user=f"u{n}", webhooks=("e1",)) for n in range(3 * AT_ONCE)]

    while await waiting(store):
        await turn(courier)
        clock.forward(2 * webhooks.SHORTEST)

    assert sorted(asked.json["data"]["job_id"] for asked in receiver.asked) == sorted(job.id for job in jobs)
    assert clock.now - jobs[0].created_at < MINUTE


async def test_who_has_waited_too_long_in_line_is_put_off(
    store: Store, courier: WebhookSender, receiver: Web, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else two workers would send it at once: it is not ours for ever."""
    monkeypatch.setattr(webhooks, "HOLD", 2 * webhooks.PATIENCE - 1)
    await endpoint(store, receiver.url)
    await completed(store, webhooks=("e1",))

    await turn(courier)

    [left] = await waiting(store)
    assert (receiver.asked, left.next_at) == ([], store.now() + webhooks.SHORTEST)


# When things are gone, or cannot be read.


async def test_what_is_purged_is_told_no_more(
    store: Store, blobs: Any, courier: WebhookSender, receiver: Web, clock: Clock
) -> None:
    receiver.answer = answering(500)
    await endpoint(store, receiver.url)
    job = await completed(store, webhooks=("e1",))
    await turn(courier)

    assert job.purge_at is not None
    clock.now = job.purge_at + 1
    await Janitor(store, blobs, Transactor(store), orphan_after=DAY, period=1).tick()
    await turn(courier)

    assert (await waiting(store), len(receiver.asked)) == ([], 1)


async def test_a_job_that_cannot_be_read_does_not_hold_up_the_others(
    store: Store, courier: WebhookSender, faults: Faults, receiver: Web
) -> None:
    await endpoint(store, receiver.url)
    jobs = [await completed(store, user=user, webhooks=("e1",)) for user in ("ann", "bob")]
    faults.refuse("get", lambda: CorruptRecord(what="state", job_id="x", reason="torn"))

    await turn(courier)

    [left] = await waiting(store)
    assert (left.error, len(receiver.asked)) == ("UNREADABLE", 1)
    assert {left.job_id, receiver.asked[0].json["data"]["job_id"]} == {job.id for job in jobs}


async def test_a_message_whose_end_could_not_be_written_down_is_sent_again_under_the_same_id(
    store: Store, courier: WebhookSender, faults: Faults, receiver: Web, clock: Clock
) -> None:
    await endpoint(store, receiver.url)
    job = await completed(store, webhooks=("e1",))
    faults.refuse("put delivery", StoreUnavailable)

    await turn(courier)
    await turn(courier)
    once = len(receiver.asked)
    clock.forward(HOLD)
    await turn(courier)

    assert once == 1
    assert [asked.headers["webhook-id"] for asked in receiver.asked] == [f"{job.id}.1.e1"] * 2
    assert await waiting(store) == []


async def test_what_is_under_way_is_ended_with_the_worker(
    store: Store, receiver: Web, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(webhooks, "LAST_WORDS", 0.05)
    receiver.answer = held_up(asyncio.Event(), answering(200))
    await endpoint(store, receiver.url)
    job = await completed(store, webhooks=("e1",))
    closing = made(store)
    await closing.tick()

    await closing.close()

    [left] = await waiting(store)
    assert (left.job_id, left.attempts, left.error) == (job.id, 1, "")
