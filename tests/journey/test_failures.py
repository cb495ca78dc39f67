"""The whole way of a failure: real workers, and kills between what is ordered and what is done, on every store."""

from __future__ import annotations

import secrets
from collections import Counter
from pathlib import Path
from typing import Any

import httpx2
import pytest
from msgspec.structs import replace

from packhorse.core.models import FailedRun, FailureStatus
from packhorse.runtime import Handle
from packhorse.schemas.failures import Order, order_from_action, order_to_action
from packhorse.store.base import FailureFilter
from packhorse.store.collections.failures import add_action, get_order
from tests.contract.failures import assert_counted
from tests.journey.places import PLACES
from tests.journey.serving import served
from tests.journey.site import Site, until
from tests.journey.test_crashpoints import died
from tests.journey.test_webhooks import KEY, is_signed, told, webhook
from tests.servers.web import web

ALL = FailureFilter("default")
BUDGET = 7
"""Of `fragile` in stages.py."""


async def failed(site: Site, count: int, **wanted: Any) -> list[FailedRun]:
    """The failures, once there are so many."""
    store = await site.store()

    async def look() -> list[FailedRun] | None:
        found = await store.failures(FailureFilter("default", **wanted), limit=1000)
        return found if len(found) >= count else None

    return await until(look, 60, lambda: f"there are not {count} failures\n{site.log_text()[-3000:]}")


async def submitted(site: Site, name: str, count: int, **parameters: Any) -> list[Handle[Any]]:
    return [await site.submit(name, user=f"u{n}", **parameters) for n in range(count)]


async def ordered(site: Site, **facts: Any) -> str:
    """About those there are now, as every order that is given through the API."""
    store = await site.store()
    wanted = replace(ALL, until=store.now())
    action = order_to_action(
        Order("retry", store.now(), "ann", wanted=wanted, **facts), "default", secrets.token_hex(4)
    )
    await add_action(store, action)
    return action.id


async def carried_out(site: Site, order_id: str) -> Order:
    store = await site.store()

    async def look() -> Order | None:
        action = await get_order(store, order_id)
        order = None if action is None else order_from_action(action)
        return order if order is not None and order.ended_at is not None else None

    return await until(look, 60, lambda: f"it is not carried out\n{site.log_text()[-3000:]}")


def mend(site: Site) -> None:
    Path(f"{site.ledger_path}.mended").touch()


def runs(site: Site, stage: str) -> Counter[str]:
    return Counter(entry.job_id for entry in site.ledger() if entry.stage == stage)


async def test_the_budget_is_honoured_under_three_workers(site: Site) -> None:
    for _ in range(3):
        site.start_worker()
    await submitted(site, "fragile", 20)
    await failed(site, 20 + BUDGET, code="FRAGILE")

    # Others are revived meanwhile, so that those who revive have had every chance to go too far.
    other = await site.submit("fragile", way="another", user="bob")
    await failed(site, 6, job_id=other.id)

    found = Counter(each.job_id for each in await failed(site, 0, code="FRAGILE") if each.job_id != other.id)
    assert sum(found.values()) == 20 + BUDGET
    assert sum(runs(site, "fragile").values()) == 20 + BUDGET + 6
    await assert_counted(await site.store())


async def test_a_worker_killed_between_an_order_and_its_note_of_it_loses_and_doubles_nothing(site: Site) -> None:
    worker = site.start_worker()
    handles = await submitted(site, "broken", 12)
    await failed(site, 12)
    worker.kill()
    worker.wait()
    mend(site)
    order_id = await ordered(site)
    await died(site.start_worker(crash="order.retried:1"), site)

    site.start_worker()
    done = await carried_out(site, order_id)

    assert (done.done, done.left) == (12, {})
    for handle in handles:
        assert (await site.ended(handle)).run == 2
    assert set(runs(site, "broken").values()) <= {2, 3}  # an attempt that was cut off with its worker is made again
    found = await failed(site, 12)
    assert {each.status for each in found} == {FailureStatus.RESOLVED}
    await assert_counted(await site.store())


@pytest.mark.parametrize("point", ["revival.spent", "revival.made"])
async def test_a_worker_killed_while_it_revives_revives_once_and_within_the_budget(site: Site, point: str) -> None:
    await submitted(site, "fragile", 3)
    await died(site.start_worker(crash=f"{point}:1"), site)

    site.start_worker()
    await failed(site, 3 + BUDGET - (point == "revival.spent"))
    other = await site.submit("fragile", way="another", user="bob")
    await failed(site, 6, job_id=other.id)

    mine = [each for each in await failed(site, 0) if each.job_id != other.id]
    assert len(mine) == 3 + BUDGET - (point == "revival.spent")
    assert len({(each.job_id, each.run) for each in mine}) == len(mine)
    await assert_counted(await site.store())


@pytest.fixture(params=PLACES)
async def signing(tmp_path: Path, request: pytest.FixtureRequest) -> Any:
    place = PLACES[request.param](tmp_path)
    site = Site(tmp_path, secret_key=KEY, outbound_allow="127.0.0.0/8", **place)
    try:
        yield site
    finally:
        await site.close()


async def test_a_new_kind_of_failure_is_told_once_though_a_worker_dies_and_is_retried_by_its_group(
    signing: Site,
) -> None:
    site = signing
    async with web() as receiver, served(site) as http:
        hook = await webhook(http, f"{receiver.url}/hook")
        [first, *_] = handles = await submitted(site, "broken", 3)
        # Without a secret it sends nothing itself: what it had under way would be sent again a minute later only.
        await died(site.start_worker(crash="alert.posted:1", secret_key=""), site)
        site.start_worker()
        await told(site, receiver, 3)
        await told(site, receiver, 1, "failure.new")
        for handle in handles:
            await site.ended(handle)

        alerts = [each for each in receiver.asked if each.json["type"] == "failure.new"]
        assert len({each.headers["webhook-id"] for each in alerts}) == 1
        assert all(is_signed(each, hook["secret"]) for each in alerts)
        [group] = alerts[0].json["data"]["groups"]
        assert (group["pipeline"], group["error_code"]) == ("broken", "BROKEN")
        mend(site)
        await retried(site, http, group["fingerprint"], len(handles))
        assert (await site.ended(first)).run == 2


async def retried(site: Site, http: httpx2.AsyncClient, fingerprint: str, count: int) -> None:
    trial = (await http.post("failures/retry", json={"fingerprint": fingerprint, "dry_run": True})).json()
    assert (trial["count"], trial["order"]) == (count, None)
    answer = (await http.post("failures/retry", json={"fingerprint": fingerprint, "pace": 100})).json()
    done = await carried_out(site, answer["order"]["order_id"])
    assert (done.done, done.left) == (count, {})

    async def look() -> bool | None:
        group = (await http.get(f"failures/groups/{fingerprint}")).json()
        return True if group["resolved"] == count else None

    await until(look, 60, lambda: f"they are not resolved\n{site.log_text()[-3000:]}")
