"""A canary is given to a stage that tells it to everybody. Nobody else may ever have heard of it, on any store."""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import asyncpg
import httpx2
import pytest
from redis.asyncio import Redis

from packhorse import Secret
from packhorse.core.plan import Status
from packhorse.core.redaction import MASK
from tests.journey.places import PLACES
from tests.journey.serving import served
from tests.journey.site import Site, until

KEY = "journeys have a secret of their own as well"
CANARY = 'canary/0123+456 789"é'
FLOCK: dict[str, Any] = {
    "api_key": Secret(CANARY),
    "headers": {"Authorization": Secret("canary-in-a-header\ncanary-on-another-line\n")},
}
BYTEA = re.compile(r"\\\\x((?:[0-9a-f]{2})+)")
"""How bytes stand in the text of a row."""


def looked_for() -> set[str]:
    """The word that is in all secrets, and every piece of the first, which may have been cut or written in base64."""
    encoded = [b64encode(f"{before}{CANARY}".encode()).decode()[4:-4] for before in ("", "u", "us")]
    urlsafe = [text.replace("+", "-").replace("/", "_") for text in encoded]
    pieces = {CANARY[i : i + 6] for i in range(len(CANARY) - 5)}
    return {"canary"} | pieces | {text[i : i + 8] for text in encoded + urlsafe for i in range(len(text) - 7)}


SOUGHT = sorted(piece.lower().encode() for piece in looked_for())


@pytest.fixture(params=PLACES)
async def site(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[Site]:
    site = Site(tmp_path, secret_key=KEY, **PLACES[request.param](tmp_path))
    try:
        yield site
    finally:
        await site.close()


async def test_a_secret_is_read_by_its_stage_and_by_nobody_else(site: Site) -> None:
    site.start_worker()
    async with served(site) as http:
        good, bad = await site.submit("leaky", **FLOCK), await site.submit("leaky", fails=True, **FLOCK)
        done, failed = await site.ended(good), await site.ended(bad)

        assert done.status is Status.COMPLETED, done.error
        assert (failed.status, failed.retry_count) == (Status.FAILED, 1)
        told = {job_id: await everything_told(http, job_id) for job_id in (done.id, failed.id)}

    assert f"{len(CANARY)} {MASK}" in told[done.id]
    assert f"raised ['{MASK}', '{MASK}']" in told[failed.id]
    assert f"printed together {MASK}" in told[done.id]
    assert f"beside/{MASK}.txt" in told[done.id]
    assert f"leak/{MASK}.txt" in told[done.id]
    assert f"Authorization: Basic {MASK}" in told[done.id]
    assert f"printed by a process {MASK}" in site.log_text()
    kept = await everything_kept(site)
    assert leaks("\n".join(told.values())) == []
    assert leaks(site.log_text()) == []
    assert leaks(kept) == []


async def test_the_secret_of_a_schedule_is_read_by_the_stage_it_fires_and_by_nobody_else(site: Site) -> None:
    site.start_worker()
    async with served(site) as http:
        parameters = {"api_key": CANARY, "headers": {"Authorization": "canary-in-a-header"}}
        body = {"cron": "0 0 1 1 *", "pipeline": "leaky", "user_id": "ann", "parameters": parameters}
        await until_published(http)
        made = await http.put("schedules/leak", json=body)
        body["parameters"] = {**parameters, "api_key": f"{CANARY} again"}
        edited = await http.put("schedules/leak", json=body, headers={"If-Match": '"1"'})
        await http.post("schedules/leak/run")
        run = await until(lambda: ended_run(http), 60, site.log_text)
        told = await everything_told(http, run["job_id"])
        ways = ("", "/versions", "/versions/1", "/diff?old=1&new=2", "/runs")
        told += "".join([(await http.get(f"schedules/leak{way}")).text for way in ways])

    assert (made.status_code, edited.status_code, run["status"]) == (201, 200, "completed")
    assert f"{len(CANARY) + len(' again')} {MASK}" in told
    assert leaks(made.text + edited.text + told) == []
    assert leaks(site.log_text()) == []
    assert leaks(await everything_kept(site)) == []


async def until_published(http: httpx2.AsyncClient) -> None:
    async def look() -> bool | None:
        return True if (await http.get("pipelines")).json()["items"] else None

    await until(look, 60, lambda: "nothing was published")


async def ended_run(http: httpx2.AsyncClient) -> dict[str, Any] | None:
    runs: list[dict[str, Any]] = (await http.get("schedules/leak/runs")).json()["items"]
    return runs[0] if runs and runs[0]["ended_at"] else None


async def test_a_worker_without_the_key_says_that_it_cannot_read_the_secret(site: Site) -> None:
    site.start_worker(secret_key="x" * 40)
    job = await site.ended(await site.submit("leaky", **FLOCK))

    assert job.error is not None
    assert job.error.code == "SECRET_UNREADABLE"
    assert "another key" in job.error.message


def leaks(said: str | bytes) -> list[bytes]:
    data = (said.encode() if isinstance(said, str) else said).lower()
    return [data[max(0, at - 40) : at + 40] for piece in SOUGHT if (at := data.find(piece)) >= 0]


async def everything_told(http: httpx2.AsyncClient, job_id: str) -> str:
    ways = ("", "/events", "/log", "/log?stage=leak", "/metrics", "/artifacts", "/result", "/explain")
    answers = [await http.get(f"jobs/{job_id}{way}") for way in ways]
    pages = ("jobs", "pipelines", "audit", "failures", "failures/groups", "../../metrics", "../../openapi.json")
    listed = [await http.get(path) for path in pages]
    return "\n".join(answer.text for answer in (*answers, *listed))


async def everything_kept(site: Site) -> bytes:
    """All bytes of the store and of the files, however they are meant."""
    files = [path.read_bytes() for path in site.folder.rglob("*") if path.is_file()]
    store = site.settings.store
    if store.startswith("postgresql"):
        files.append(await rows(store))
    elif store.startswith("redis"):
        files.append(await keys(store))
    return b"\n".join(files)


async def rows(url: str) -> bytes:
    address, _, schema = url.partition("?schema=")
    db = await asyncpg.connect(address)
    try:
        tables = await db.fetch("SELECT tablename AS name FROM pg_tables WHERE schemaname = $1", schema)
        asked = [f"SELECT t::text AS it FROM {schema}.{each['name']} t" for each in tables]
        found = [row["it"] for each in asked for row in await db.fetch(each)]
    finally:
        await db.close()
    assert any("leaky" in row for row in found)
    return b"\n".join(each for row in found for each in (row.encode(), *map(bytes.fromhex, BYTEA.findall(row))))


async def keys(url: str) -> bytes:
    parts = urlsplit(url)
    db = Redis(host=parts.hostname or "", port=parts.port or 0)
    try:
        await db.config_set("rdbcompression", "no")  # else a dump hides what is repeated in it
        found = {key: await db.dump(key) or b"" async for key in db.scan_iter(count=1000)}
        assert any(b"leaky" in key + dump for key, dump in found.items())
        return b"\n".join(key + dump for key, dump in found.items())
    finally:
        await db.aclose()
