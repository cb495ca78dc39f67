"""The whole way of a message: a real server, real workers, a real receiver, on every store."""

from __future__ import annotations

import hashlib
import hmac
import signal
import time
from base64 import b64decode, b64encode
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from packhorse.core.webhooks import Delivery
from packhorse.define import File
from packhorse.store.collections.webhooks import list_deliveries, settle_delivery
from tests.journey.places import PLACES
from tests.journey.serving import served
from tests.journey.site import Site, until
from tests.servers.web import Asked, Web, answering, web

KEY = "journeys have a secret of their own, too"


@pytest.fixture
def allow() -> str:
    return "127.0.0.0/8"


@pytest.fixture(params=PLACES)
async def site(tmp_path: Path, request: pytest.FixtureRequest, allow: str) -> AsyncIterator[Site]:
    site = Site(tmp_path, secret_key=KEY, outbound_allow=allow, **PLACES[request.param](tmp_path))
    try:
        yield site
    finally:
        await site.close()


@pytest.fixture
async def receiver() -> AsyncIterator[Web]:
    async with web() as receiver:
        yield receiver


@pytest.fixture
async def http(site: Site) -> AsyncIterator[httpx2.AsyncClient]:
    async with served(site) as http:
        yield http


async def webhook(http: httpx2.AsyncClient, url: str) -> dict[str, Any]:
    answer = await http.post("webhooks", json={"url": url})
    assert answer.status_code == 201, answer.text
    found: dict[str, Any] = answer.json()
    return found


def is_signed(asked: Asked, secret: str) -> bool:
    """As the specification has it, written down once more."""
    id, at, signature = (asked.headers[f"webhook-{name}"] for name in ("id", "timestamp", "signature"))
    signed = id.encode() + b"." + at.encode() + b"." + asked.body
    digest = hmac.new(b64decode(secret.removeprefix("whsec_")), signed, hashlib.sha256).digest()
    return signature == f"v1,{b64encode(digest).decode()}" and abs(time.time() - int(at)) < 300


async def told(site: Site, receiver: Web, count: int, of: str = "job.") -> list[Asked]:
    """At least so many messages of that sort."""

    async def look() -> list[Asked] | None:
        found = [each for each in receiver.asked if each.json["type"].startswith(of)]
        return found if len(found) >= count else None

    return await until(look, 40, lambda: f"{len(receiver.asked)} of {count}\n{site.log_text()[-3000:]}")


async def left(site: Site, webhook_id: str, count: int, error: str = "") -> list[Delivery]:
    """So many messages wait, and have met with this error."""
    store = await site.store()

    async def look() -> list[Delivery] | None:
        found = await list_deliveries(store, webhook_id)
        return found if len(found) == count and all(each.error == error for each in found) else None

    return await until(look, 40, lambda: site.log_text()[-3000:])


def steady(job: dict[str, Any]) -> dict[str, Any]:
    """Without what moves when the job is tidied up."""
    return {name: value for name, value in job.items() if name not in ("version", "updated_at")}


def ids(asked: list[Asked]) -> list[str]:
    return [each.headers["webhook-id"] for each in asked]


async def test_every_end_is_told_once_by_two_workers_and_can_be_trusted(
    site: Site, http: httpx2.AsyncClient, receiver: Web
) -> None:
    hook = await webhook(http, f"{receiver.url}/hook")
    for _ in range(2):
        site.start_worker(lease=60)  # nobody is taken for dead because the machine has much to do
    handles = [await site.submit("says", user=f"u{n}", text="hello") for n in range(5)]
    handles += [await site.submit("hopeless", user="ann")]

    await told(site, receiver, 1, "failure.new")
    await told(site, receiver, len(handles))
    await left(site, hook["webhook_id"], 0)
    ends = await told(site, receiver, len(handles))

    assert all(is_signed(each, hook["secret"]) for each in receiver.asked)
    kinds = Counter(each.json["type"] for each in receiver.asked)
    assert kinds == {"job.completed": 5, "job.failed": 1, "failure.new": 1}
    assert Counter(ids(ends)) == Counter(f"{each.id}.1.{hook['webhook_id']}" for each in handles)
    for each in ends:
        data = each.json["data"]
        assert steady(data) == steady((await http.get(f"jobs/{data['job_id']}")).json())
    await site.assert_whole()


async def test_a_job_that_is_cancelled_by_the_server_is_told_by_the_next_worker(
    site: Site, http: httpx2.AsyncClient, receiver: Web
) -> None:
    hook = await webhook(http, receiver.url)
    handle = await site.submit("says", text="hello")
    cancelled = await http.post(f"jobs/{handle.id}/cancel")

    site.start_worker()
    asked = await told(site, receiver, 1)
    await left(site, hook["webhook_id"], 0)

    assert cancelled.json()["status"] == "cancelled"
    assert [each.json["type"] for each in asked] == ["job.cancelled"]
    assert is_signed(asked[0], hook["secret"])


async def test_a_worker_killed_between_the_answer_and_the_outbox_has_it_sent_again_under_the_same_id(
    site: Site, http: httpx2.AsyncClient, receiver: Web
) -> None:
    hook = await webhook(http, receiver.url)
    worker = site.start_worker(crash="webhook.sent:1")
    handle = await site.submit("says", text="hello")

    async def look() -> int | None:
        return worker.poll()

    assert await until(look, 40, site.log_text) == -signal.SIGKILL
    store = await site.store()
    [held] = await left(site, hook["webhook_id"], 1)
    site.start_worker()
    await settle_delivery(store, held, next_at=store.now())  # what the end of its time does, without the wait
    asked = await told(site, receiver, 2)
    await left(site, hook["webhook_id"], 0)

    assert ids(asked) == [f"{handle.id}.1.{hook['webhook_id']}"] * 2
    assert steady(asked[0].json["data"]) == steady(asked[1].json["data"])
    await site.assert_whole()


async def test_a_run_more_is_a_message_more(site: Site, http: httpx2.AsyncClient, receiver: Web) -> None:
    hook = await webhook(http, receiver.url)
    site.start_worker()
    handle = await site.submit("hopeless")
    await told(site, receiver, 1)

    again = await http.post(f"jobs/{handle.id}/retry")
    await told(site, receiver, 2)
    await left(site, hook["webhook_id"], 0)
    asked = await told(site, receiver, 2)

    assert again.status_code == 202
    assert ids(asked) == [f"{handle.id}.{run}.{hook['webhook_id']}" for run in (1, 2)]
    assert [each.json["data"]["run"] for each in asked] == [1, 2]


async def test_what_is_not_taken_waits_and_goes_with_its_job(
    site: Site, http: httpx2.AsyncClient, receiver: Web
) -> None:
    receiver.answer = answering(500)
    hook = await webhook(http, receiver.url)
    site.start_worker(sweep=60)
    text = site.folder / "in.txt"
    text.write_text("soon gone")
    handle = await site.submit("brief", text=File(text))
    [waiting] = await left(site, hook["webhook_id"], 1, "HTTP_500")

    listed = (await http.get(f"webhooks/{hook['webhook_id']}/deliveries")).json()["items"]
    site.start_worker()  # one that sweeps

    assert [(each["job_id"], each["attempts"], each["error"]) for each in listed] == [(handle.id, 1, "HTTP_500")]
    assert waiting.next_at > waiting.at + 4.9
    await left(site, hook["webhook_id"], 0)
    assert await (await site.store()).existing_ids([handle.id]) == set()


async def test_who_says_that_it_is_gone_is_told_nothing_more(
    site: Site, http: httpx2.AsyncClient, receiver: Web
) -> None:
    receiver.answer = answering(410)
    await webhook(http, receiver.url)
    site.start_worker()
    await site.submit("says", text="hello")
    await told(site, receiver, 1)

    async def look() -> dict[str, Any] | None:
        [found] = (await http.get("webhooks")).json()["items"]
        return found if found["ended_at"] else None

    async def admitted() -> bool | None:
        """A job of now, for those who admit remember for a moment who listens."""
        job = await site.job(await site.submit("says", text="hello"))
        return None if job.webhooks else True

    ended = await until(look, 40, site.log_text)
    await until(admitted, 40, site.log_text)
    await left(site, ended["webhook_id"], 0)

    assert "410" in ended["reason"]
    assert len(receiver.asked) == 1


@pytest.mark.parametrize("allow", [""], ids=["nothing allowed"])
async def test_a_name_that_leads_inside_is_refused_when_a_message_is_sent(
    site: Site, http: httpx2.AsyncClient, receiver: Web
) -> None:
    refused = await http.post("webhooks", json={"url": f"https://127.0.0.1:{receiver.port}/"})
    hook = await webhook(http, f"https://localhost:{receiver.port}/")
    site.start_worker()
    await site.submit("says", text="hello")

    [waiting] = await left(site, hook["webhook_id"], 1, "BLOCKED_ADDRESS")
    trial = (await http.post(f"webhooks/{hook['webhook_id']}/test")).json()

    assert refused.json()["type"] == "urn:packhorse:blocked-address"
    assert (waiting.attempts, receiver.connections) == (1, 0)
    assert trial == {"delivered": False, "status": None, "error": "BLOCKED_ADDRESS"}
