"""Whom a download is charged to; charges of a request that ended while it was admitted; lost refunds."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from typing import Any

import pytest
from msgspec import structs

from packhorse.auth.access import LOCAL, Caller
from packhorse.auth.audit_log import Auditor
from packhorse.core.plan import DownloadLimits
from packhorse.errors import QuotaExceeded, StoreUnavailable, TooManyDownloads
from packhorse.factory import open_store
from packhorse.http.download import Content, Download, Downloads
from packhorse.settings import Settings
from packhorse.store.base import Charge, Spent, Store
from packhorse.store.collections import audit as audit_records
from tests.contract import builders
from tests.contract.builders import ONE, submission
from tests.http.test_stream import Line, Source

SCOPE: Any = {"type": "http", "path": "/x"}
SETTINGS = Settings(downloads_at_once=1, downloads_per_10s=0, downloads_per_minute=0)


JOB = submission(now=0.0).after


class Held:
    """A store whose answers are held back, or do not come at all."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.spent = asyncio.Event()
        self.go_on = asyncio.Event()
        self.is_away = False

    def now(self) -> float:
        return self._store.now()

    async def spend(self, charges: Sequence[Charge]) -> Spent:
        found = await self._store.spend(charges)
        self.spent.set()
        await self.go_on.wait()
        return found

    async def refund(self, charges: Sequence[Charge], at: float) -> None:
        if self.is_away:
            raise StoreUnavailable
        await self._store.refund(charges, at)


@pytest.fixture
async def store(anywhere: str) -> AsyncIterator[Store]:
    store = await open_store(anywhere)
    yield store
    await store.close()


def downloads(store: Any) -> Downloads:
    return Downloads(SETTINGS, store, Auditor(store, keep=1))


async def used(store: Store) -> list[int]:
    limits = downloads(store).limits_of(LOCAL, ONE, "ann")
    spent = await store.spend([each.charge(whose, 0) for each, whose in limits])
    return [each.most - left for (each, _), left in zip(limits, spent.left, strict=True)]


def charged(caller: Caller, user: str, *, per: str = "user", declared: DownloadLimits | None = None) -> list[str]:
    """The counters of the limit on concurrent downloads."""
    counting = Downloads(replace(SETTINGS, downloads_per=per), None, None)  # type: ignore[arg-type]
    limits = counting.limits_of(caller, builders.plan(builders.stage("only"), downloads=declared), user)
    return [each.charge(whose, 1).name for each, whose in limits if each.unit == "concurrent-requests"]


def test_users_of_different_tenants_never_share_a_counter() -> None:
    owners = [("a", "b/c"), ("a/b", "c"), ("a%2Fb", "c"), ("a", "b%2Fc")]

    counters = {charged(structs.replace(LOCAL, tenant=tenant), user)[0] for tenant, user in owners}

    assert len(counters) == len(owners)


@pytest.mark.parametrize("anywhere", ["sqlite"], indirect=True)  # the contract has the counters of every store
async def test_a_token_can_download_one_file_larger_than_its_share(store: Store) -> None:
    settings = replace(SETTINGS, downloads_at_once=0, download_bytes_per_hour=100, download_bytes_per_day=0)
    counting = Downloads(settings, store, Auditor(store, keep=1))
    caller = structs.replace(LOCAL, token="t")

    await counting.admit(caller, JOB, 80)

    for token, size in (("t", 10), ("another", 101)):
        with pytest.raises(QuotaExceeded):
            await counting.admit(structs.replace(LOCAL, token=token), JOB, size)


@pytest.mark.parametrize(
    ("declared", "per", "counter"),
    [
        (None, "user", "ratelimit:downloads:default/ann"),
        (None, "key", "ratelimit:downloads:service"),
        (DownloadLimits(at_once=2), "user", "ratelimit:convert-downloads:default/ann"),
        (DownloadLimits(at_once=2), "key", "ratelimit:convert-downloads:service"),
        (DownloadLimits("user", at_once=2), "key", "ratelimit:convert-downloads:default/ann"),
        (DownloadLimits("key", at_once=2), "user", "ratelimit:convert-downloads:service"),
    ],
)
def test_whom_a_download_is_counted_for_is_declared_or_set(
    declared: DownloadLimits | None, per: str, counter: str
) -> None:
    assert charged(structs.replace(LOCAL, client="service"), "ann", per=per, declared=declared) == [counter]


async def test_who_is_cancelled_while_being_admitted_gives_everything_back(store: Store) -> None:
    held = Held(store)
    asking = asyncio.create_task(downloads(held).admit(LOCAL, JOB, 1000))
    await held.spent.wait()
    assert await used(store) == [1, 1000, 1000]

    asking.cancel()
    held.go_on.set()

    with pytest.raises(asyncio.CancelledError):
        await asking
    assert await used(store) == [0, 0, 0]


async def test_a_refusal_costs_nothing(store: Store) -> None:
    first = await downloads(store).admit(LOCAL, JOB, 1000)

    with pytest.raises(TooManyDownloads) as refused:
        await downloads(store).admit(LOCAL, JOB, 500)

    assert await used(store) == [1, 1000, 1000]
    assert refused.value.facts["headers"]["Retry-After"] == "1"
    await downloads(store).settle(LOCAL, first, 300)
    assert await used(store) == [0, 700, 700]


async def test_a_store_that_is_away_when_it_is_over_spoils_nothing(
    store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    held = Held(store)
    held.go_on.set()
    admitted = await downloads(held).admit(LOCAL, JOB, 10)
    held.is_away = True

    await downloads(held).settle(LOCAL, admitted, 5)

    assert "only when its window ends" in caplog.text
    assert await used(store) == [1, 10, 10]


@pytest.mark.parametrize(("pieces", "ending"), [((b"abc", b"de", None), "completed"), ((b"abc", None), "aborted")])
async def test_who_leaves_with_every_byte_has_it_all(store: Store, pieces: tuple[Any, ...], ending: str) -> None:
    audit, line = Auditor(store, keep=10), Line()
    content = Content("result", 5, "00" * 32, "text/plain", lambda _: Source(*pieces).pieces())
    sending = asyncio.create_task(
        Download(Downloads(SETTINGS, store, audit), LOCAL, JOB, content, None)(SCOPE, line.receive, line.send)
    )

    async with asyncio.timeout(60):
        while len(line.bytes) < sum(len(piece or b"") for piece in pieces):
            await line.flowed.wait()
            line.flowed.clear()
        line.gone.set()
        await sending
    await audit.close()

    assert [entry.event for entry in await audit_records.tail(store)] == [f"download.{ending}", "download.started"]
    assert await used(store) == [0, len(line.bytes), len(line.bytes)]
