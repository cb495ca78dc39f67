"""Admission writes down who is to be told, whichever door the job comes in by."""

from __future__ import annotations

import pytest

from packhorse.blobs.base import Blobs
from packhorse.errors import StoreUnavailable
from packhorse.store.base import Store
from packhorse.store.collections import webhooks
from packhorse.store.collections.webhooks import Endpoint, WebhookTargets, add_endpoint, end_endpoint
from tests.worker.builders import objects, submit_file
from tests.worker.faulty import Faults


class Steady:
    """A steady clock that the test moves."""

    now = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def steady(monkeypatch: pytest.MonkeyPatch) -> Steady:
    steady = Steady()
    monkeypatch.setattr(webhooks, "time", steady)
    return steady


async def add(store: Store, id: str, tenant: str = "default") -> None:
    await add_endpoint(store, Endpoint(id, tenant, "https://example.org/", store.now()))


async def test_a_job_knows_the_webhooks_of_its_tenant_that_are_active_when_it_is_admitted(
    store: Store, blobs: Blobs
) -> None:
    await add(store, "e1")
    await add(store, "e2")
    await add(store, "e3", tenant="other")
    await add(store, "e4")
    await end_endpoint(store, "e4", store.now(), "gone")

    job = await submit_file(store, blobs)

    [kept] = await store.get([job.id])
    assert kept is not None
    assert kept.webhooks == ("e1", "e2")


async def test_who_admits_many_jobs_asks_once_a_second(
    shaky: Store, blobs: Blobs, faults: Faults, steady: Steady
) -> None:
    for n in range(5):
        await submit_file(shaky, blobs, name=f"{n}.txt")
    asked = faults.names().count("scan endpoint")
    await add(shaky, "e1")
    steady.now += webhooks.FRESH
    job = await submit_file(shaky, blobs)

    assert (asked, faults.names().count("scan endpoint"), job.webhooks) == (1, 2, ("e1",))


async def test_a_job_whose_webhooks_cannot_be_asked_for_is_not_admitted_and_leaves_nothing(
    shaky: Store, blobs: Blobs, faults: Faults
) -> None:
    faults.refuse("scan endpoint", StoreUnavailable)

    with pytest.raises(StoreUnavailable):
        await submit_file(shaky, blobs)

    assert await objects(blobs) == []


async def test_two_stores_do_not_share_what_they_know(store: Store, shaky: Store) -> None:
    assert webhooks.webhook_targets(store) is webhooks.webhook_targets(store)
    assert webhooks.webhook_targets(store) is not webhooks.webhook_targets(shaky)


async def test_what_is_asked_for_anew_is_new(store: Store, steady: Steady) -> None:
    found = WebhookTargets(store)
    await found.all()
    await add(store, "e1")

    assert [each.id for each in await found.all()] == []
    assert [each.id for each in await found.refresh()] == ["e1"]
