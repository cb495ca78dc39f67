"""Two machines that share a store and a bucket, and nothing else: any of them carries on where another stopped."""

from __future__ import annotations

from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any

import httpx2
import pytest

from packhorse.store.collections import workers
from tests.journey.places import PLACES
from tests.journey.site import LEASE, Site, until
from tests.journey.test_outages import serving

TEXT = "one two three four"


@pytest.fixture(params=["postgresql", "redis"])
async def hosts(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[list[Site]]:
    """Each with a folder of its own for scratch and everything else; what runs in one cannot be seen from the other."""
    shared = {**PLACES["postgresql"](tmp_path), "store": PLACES[request.param](tmp_path)["store"]}
    sites = []
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        site = Site(tmp_path / name, **shared)
        site.env["JOURNEY_HOST"] = name
        sites.append(site)
    try:
        yield sites
    finally:
        for site in sites:
            await site.close()


async def submitted(client: httpx2.AsyncClient, pipeline: str, **options: Any) -> str:
    answer = await client.post("/api/v1/jobs", params={"pipeline": pipeline, "user_id": "ann"}, **options)
    assert answer.status_code == 202, answer.text
    found: str = answer.json()["job_id"]
    return found


async def test_what_one_server_takes_another_shows_and_hands_out(hosts: list[Site]) -> None:
    a, b = hosts
    for site in hosts:
        site.start_worker()
    async with serving(a) as here, serving(b) as there:
        files = {"text": ("in.txt", TEXT.encode())}
        job_id = await submitted(here, "words", files=files)

        async with there.stream("GET", f"/api/v1/jobs/{job_id}/events") as stream:
            told = [line.partition(":")[2].strip() async for line in stream.aiter_lines() if line.startswith("event:")]
        assert (told[0], told[-1]) == ("snapshot", "completed")
        assert (await there.get(f"/api/v1/jobs/{job_id}")).json()["status"] == "completed"
        results = [(await client.get(f"/api/v1/jobs/{job_id}/result")).content for client in (here, there)]
        assert results[0] == results[1] != b""
    await a.assert_whole()


async def test_work_of_a_machine_that_is_gone_goes_on_at_another_after_its_lease(hosts: list[Site]) -> None:
    a, b = hosts
    lost = a.start_worker()
    handle = await a.submit("polite", seconds=LEASE * 4)
    await a.started(handle)
    b.start_worker()

    lost.kill()
    lost.wait()

    again = await b.started_again(handle)
    assert again.attempt == 2
    assert (await b.ended(handle)).retry_count == 1


async def has_begun(site: Site) -> bool:
    return " serves " in site.log_text()


async def test_both_machines_take_part_and_nothing_is_done_twice(hosts: list[Site]) -> None:
    for site in hosts:
        site.start_worker()
        await until(
            partial(has_begun, site), 60, site.log_text
        )  # or the first may do everything before the second is up
    handles = [await hosts[n % 2].submit("polite", user=f"user {n}", seconds=0.3) for n in range(12)]

    for handle in handles:
        await hosts[0].ended(handle)

    begun = [[entry.job_id for entry in site.ledger() if entry.what == "begin"] for site in hosts]
    assert all(begun)
    assert sorted(begun[0] + begun[1]) == sorted(handle.id for handle in handles)
    events = [event for handle in handles for event in await hosts[0].events(handle.id)]
    started_by = {event.data["worker"] for event in events if event.type == "stage_started"}
    known = {card.id for card in await workers.list_all(await hosts[0].store())}
    assert (len(started_by), known) == (2, started_by), "two machines of one host name are two workers"


async def test_a_cancel_at_one_machine_stops_what_runs_on_the_other(hosts: list[Site]) -> None:
    a, b = hosts
    b.start_worker()
    handle = await a.submit("polite", seconds=60)
    await b.started(handle)
    async with serving(a) as client:
        assert (await client.post(f"/api/v1/jobs/{handle.id}/cancel")).status_code == 202

        async def look() -> bool | None:
            shown = (await client.get(f"/api/v1/jobs/{handle.id}")).json()
            return shown["status"] == "cancelled" or None

        await until(look, 40, b.log_text)
    assert [entry.what for entry in b.ledger()] == ["begin", "tidied"]
