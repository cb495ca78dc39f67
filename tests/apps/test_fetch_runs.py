"""The fetch app as people use it: schedules from a file, edited while it runs, on every store, and through a kill."""

from __future__ import annotations

import asyncio
import json
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest

from packhorse.blobs import open_blobs
from packhorse.errors import BlobNotFound, EditedMeanwhile, InvalidInput
from packhorse_fetch import sample
from tests.apps.places import PLACES, Stand, stand
from tests.http.processes import until
from tests.servers.web import Answer, Asked, Web, answering, web_aside

APP = "packhorse_fetch:app"
KEY = "hush-hush-5317"
DOTS = "••••"
FOR_LONG = 120.0
EVERY_SECOND = "* * * * * *"

JOBS = """
[[job]]
job_id = "horses-daily"
cron = "0 8 * * *"
fetch_url = "{url}/horses"
fields = {{ names = "horses[*].name" }}
params = {{ api_key = {{ env = "HORSES_KEY" }} }}
"""


class Site:
    """What the server answers, by path; a version that is known is not sent again."""

    def __init__(self, web: Web) -> None:
        self.web = web
        self.url = web.url
        self.pages: dict[str, Answer] = {}
        web.answer = self._answer

    def put(self, path: str, data: bytes, etag: str = '"1"') -> None:
        full = answering(200, data, content_type="application/json", etag=etag)
        known = answering(304, etag=etag)

        async def answer(asked: Asked, writer: asyncio.StreamWriter) -> None:
            await (known if asked.headers.get("if-none-match") == etag else full)(asked, writer)

        self.pages[path] = answer

    def asked(self, path: str) -> list[Asked]:
        return [asked for asked in self.web.asked if asked.path.partition("?")[0] == path]

    async def _answer(self, asked: Asked, writer: asyncio.StreamWriter) -> None:
        await self.pages.get(asked.path.partition("?")[0], answering(404))(asked, writer)


@contextmanager
def fetching(folder: Path, place: str) -> Iterator[tuple[Stand, Site]]:
    with web_aside() as web, pytest.MonkeyPatch.context() as env:
        (folder / "jobs.toml").write_text(JOBS.format(url=web.url))
        env.setenv("FETCH_JOBS", str(folder / "jobs.toml"))
        env.setenv("FETCH_ALLOW", "127.0.0.1/32")
        env.setenv("HORSES_KEY", KEY)
        with stand(folder, APP, PLACES[place], sweep="250ms", secret_key="k" * 40) as found:
            found.ready("fetch")
            until(lambda: list(found.client.schedules()), FOR_LONG)
            yield found, Site(web)


@pytest.fixture(scope="module", params=PLACES)
def on(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Stand, Site]]:
    with fetching(tmp_path_factory.mktemp("fetch"), request.param) as found:
        yield found


def ran(at: Stand, schedule: str) -> dict[str, Any]:
    """The job of a run now, when it has ended."""
    at.client.run_schedule(schedule)
    run = until(lambda: next(iter(over(at, schedule, 1)), None), FOR_LONG)
    job: dict[str, Any] = at.client.wait(run["job_id"], FOR_LONG)
    return job


def over(at: Stand, schedule: str, limit: int) -> list[dict[str, Any]]:
    """The newest runs, if they have a job that has ended."""
    runs: list[dict[str, Any]] = at.client.schedule_runs(schedule, limit=limit)["items"]
    return [run for run in runs if run["status"] in ("completed", "failed")]


def published(at: Stand, folder: str) -> dict[str, bytes]:
    """What lies there in the object store, by name; nothing while a file is being replaced."""
    given = at.server.place.settings

    async def read() -> dict[str, bytes]:
        blobs = open_blobs(given.blobs, given.s3_access_key, given.s3_secret_key)
        try:
            return {
                key.rpartition("/")[2]: b"".join([piece async for piece in blobs.read(key)])
                for key in await blobs.keys(folder)
            }
        except BlobNotFound:
            return {}
        finally:
            await blobs.close()

    return asyncio.run(read())


def test_a_schedule_of_the_file_is_fetched_published_remembered_and_edited(on: tuple[Stand, Site]) -> None:
    at, site = on
    site.put("/horses", json.dumps(sample.HORSES).encode())
    site.put("/ponies", b'{"horses": [{"name": "Misty"}]}', etag='"p"')

    seeded = at.client.schedule("horses-daily")
    first = ran(at, "horses-daily")
    folder = first["published_folder"]
    files = until(lambda: len(found := published(at, folder)) == 2 and found, FOR_LONG)
    again = ran(at, "horses-daily")
    edited = {**seeded["parameters"], "fetch_url": f"{site.url}/ponies"}
    at.client.put_schedule(
        "horses-daily", cron="0 9 * * *", pipeline="fetch", parameters=edited, user="local", version=seeded["version"]
    )
    after = ran(at, "horses-daily")

    assert (seeded["cron"], seeded["active"], seeded["drift"]) == ("0 8 * * *", True, [])
    assert {each["field"] for each in at.client.schedule("horses-daily")["drift"]} == {"cron", "parameters.fetch_url"}
    assert seeded["parameters"]["params"] == {"api_key": DOTS}
    assert first["result"]["fields"] == {"names": ["Bayard", "Sleipnir"]}
    assert first["schedule_id"] == "horses-daily"
    assert folder == f"published/default/horses-daily/{first['tick'][:10]}"
    assert files["original.json"] == json.dumps(sample.HORSES).encode()
    assert json.loads(files["meta.json"])["source"]["sha256"] == first["result"]["source"]["sha256"]
    assert [asked.path for asked in site.asked("/horses")] == [f"/horses?api_key={KEY}"] * 2
    assert again["result"]["source"]["is_unchanged"] is True
    assert again["result"]["message"].startswith("Not changed since")
    assert again["result"]["fields"] == first["result"]["fields"]
    assert (again["published_folder"], again["status"]) == (None, "completed")
    assert after["result"]["fields"] == {"names": ["Misty"]}
    assert [asked.path for asked in site.asked("/ponies")] == [f"/ponies?api_key={KEY}"]
    assert "if-none-match" not in site.asked("/ponies")[0].headers
    until(
        lambda: json.loads(published(at, folder).get("meta.json", b"{}")).get("fields") == {"names": ["Misty"]},
        FOR_LONG,
    )


def test_a_run_says_all_that_is_known_of_a_firing(on: tuple[Stand, Site]) -> None:
    at, site = on
    site.put("/told", b"{}")
    at.client.put_schedule(
        "told", cron="0 8 * * *", pipeline="fetch", parameters={"fetch_url": f"{site.url}/told"}, user="ann"
    )

    job = ran(at, "told")
    ran(at, "told")

    newer, run = at.client.schedule_runs("told")["items"]
    assert newer["tick"] > run["tick"]
    assert (run["schedule_id"], run["trace_id"], run["job_id"]) == ("told", job["trace_id"], job["job_id"])
    assert (run["status"], run["started_at"]) == ("completed", job["started_at"])
    assert run["message"] == "Fetched json: stored original.json, meta.json (application/json, 2 bytes)."
    assert isinstance(run["duration_ms"], int)
    assert run["output_url"].endswith(f"/jobs/{job['job_id']}/artifacts/download/original.json")
    with urlopen(at.server.url + run["output_url"]) as answer:
        assert answer.read() == b"{}"
    assert newer["message"].startswith("Not changed since")
    assert newer["output_url"] == run["output_url"]  # the file is that of the run which fetched it
    assert job["alias"]["status"] == "success"


JOB_CONFIG = """{
  "job_id": "apod-daily",
  "active": true,
  "cron": "0 8 * * *",
  "fetch_url": "https://api.nasa.gov/...",
  "params": {
    "api_key": "..."
  },
  "post_process": true,
  "updated_at": "2025-09-04T00:00:00Z"
}"""
"""As the source document of this app has it."""


def test_the_sources_job_config_is_taken_and_shown_in_its_own_words(on: tuple[Stand, Site]) -> None:
    at, site = on
    site.put("/apod", b"{}")
    given = json.loads(JOB_CONFIG)

    made = at.client.put_job_config(given)
    read = at.client.job_config("apod-daily")
    edited = at.client.put_job_config({**read, "fetch_url": f"{site.url}/apod"})
    with pytest.raises(EditedMeanwhile):
        at.client.put_job_config({**read, "cron": "0 9 * * *"})
    job = ran(at, "apod-daily")

    assert made == read == {**given, "params": {"api_key": DOTS}, "updated_at": made["updated_at"]}
    assert list(read) == list(given)
    assert edited == {**read, "fetch_url": f"{site.url}/apod", "updated_at": edited["updated_at"]}
    assert [asked.path for asked in site.asked("/apod")] == ["/apod?api_key=..."]
    assert edited in at.client.job_configs()["items"]
    [status] = at.client.job_status("apod-daily")["items"]
    assert status == {
        "trace_id": job["trace_id"],
        "job_id": "apod-daily",
        "started_at": job["started_at"],
        "status": "success",
        "message": "Fetched json: stored original.json, meta.json (application/json, 2 bytes).",
        "duration_ms": status["duration_ms"],
        "output_url": f"/api/v1/jobs/{job['job_id']}/artifacts/download/original.json",
    }


def test_a_document_that_is_wrong_is_refused_with_the_field(on: tuple[Stand, Site]) -> None:
    at, _ = on
    given = {**json.loads(JOB_CONFIG), "job_id": "wrong"}

    for field, value in {"cron": 7, "fetch_url": "ftp://x", "no_such": 1}.items():
        with pytest.raises(InvalidInput) as refused:
            at.client.put_job_config({**given, field: value, "pipeline": "fetch"})
        assert [each["field"] for each in refused.value.errors] == [field]


def test_the_key_is_nowhere_to_be_seen(on: tuple[Stand, Site]) -> None:
    at, site = on
    site.put("/secret", b"{}")
    parameters = {"fetch_url": f"{site.url}/secret", "params": {"api_key": KEY}, "headers": {"X-Token": f"{KEY}-too"}}
    at.client.put_schedule("secret", cron="0 8 * * *", pipeline="fetch", parameters=parameters, user="ann")
    gone = {**parameters, "fetch_url": f"{site.url}/nothing"}
    at.client.put_schedule("gone", cron="0 8 * * *", pipeline="fetch", parameters=gone, user="ann")

    good, bad = ran(at, "secret"), ran(at, "gone")

    assert site.asked("/secret")[0].headers["x-token"] == f"{KEY}-too"
    assert (good["status"], bad["error"]["code"]) == ("completed", "HTTP_404")
    told: list[Any] = [
        good,
        bad,
        at.client.schedule("secret"),
        at.client.schedule_versions("secret"),
        at.client.failures(),
    ]
    told += [list(at.client.events(job["job_id"])) for job in (good, bad)]
    folder = good["published_folder"]
    until(lambda: published(at, folder), FOR_LONG)
    logs = "".join(path.read_text() for path in at.server.place.folder.glob("*.log"))
    assert KEY not in json.dumps(told) + logs + repr(published(at, folder))


def test_an_edit_counts_from_the_next_tick_on_and_nothing_is_restarted(on: tuple[Stand, Site]) -> None:
    at, site = on
    site.put("/before", b'{"is": "before"}')
    site.put("/after", b'{"is": "after"}')

    def put(path: str, version: int | None = None) -> None:
        asked = {"fetch_url": f"{site.url}{path}"}
        at.client.put_schedule(
            "ticking",
            cron=EVERY_SECOND,
            pipeline="fetch",
            parameters=asked,
            user="ann",
            overlap="queue",
            version=version,
        )

    put("/before")
    until(lambda: over(at, "ticking", 10), FOR_LONG)
    put("/after", version=1)
    until(lambda: [run for run in over(at, "ticking", 50) if run["version"] == 2], FOR_LONG)
    at.client.pause_schedule("ticking", version=2)

    runs = over(at, "ticking", 100)
    asked = [(run["version"], at.client.get(run["job_id"])["parameters"]["fetch_url"]) for run in runs]
    assert {*asked} == {(1, f"{site.url}/before"), (2, f"{site.url}/after")}
    assert [version for version, _ in asked] == sorted((version for version, _ in asked), reverse=True)
    assert len({run["tick"] for run in runs}) == len(runs)


def test_a_failure_is_told_and_a_retry_mends_it(on: tuple[Stand, Site]) -> None:
    at, site = on
    at.client.put_schedule(
        "broken", cron="0 8 * * *", pipeline="fetch", parameters={"fetch_url": f"{site.url}/broken"}, user="ann"
    )
    site.pages["/broken"] = answering(500)

    job = ran(at, "broken")
    [failure] = at.client.failures(schedule="broken")["items"]
    site.put("/broken", b"{}")
    at.client.retry_failures(ids=[failure["failure_id"]])
    until(lambda: at.client.get(job["job_id"])["status"] == "completed", FOR_LONG)

    assert (failure["error_code"], failure["attempts"], failure["trace_id"]) == ("HTTP_500", 4, job["trace_id"])
    assert (failure["job_id"], failure["schedule_id"], failure["stage"]) == (job["job_id"], "broken", "download")
    assert "it answered 500" in failure["message"]
    assert failure["timestamp"] is not None
    assert (failure["revived_at_most"], failure["revives_at"] is not None) == (3, True)
    assert at.client.failure(failure["failure_id"])["status"] in ("retried", "resolved")


def test_a_download_survives_the_death_of_its_worker(on: tuple[Stand, Site]) -> None:
    at, site = on
    began, data = threading.Event(), json.dumps({"count": 1, "filler": "x" * 300_000}).encode()

    async def half(_: Asked, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n")
        writer.write(b"content-length: %d\r\n\r\n" % len(data) + data[: len(data) // 2])
        await writer.drain()
        began.set()
        await asyncio.Event().wait()

    site.pages["/long"] = half
    job = at.client.submit("fetch", {"fetch_url": f"{site.url}/long", "fields": {"n": "count"}}, user="ann")
    assert began.wait(FOR_LONG)
    at.workers[-1].signal(signal.SIGKILL)
    at.workers[-1].ended()
    site.put("/long", data)
    at.work()

    ended = at.client.wait(job["job_id"], FOR_LONG)

    assert (ended["status"], ended["stages"]["download"]["attempt"]) == ("completed", 2), ended["error"]
    assert (ended["result"]["fields"], ended["result"]["source"]["size"]) == ({"n": 1}, len(data))
    folder = ended["published_folder"]
    assert folder == f"published/default/{job['job_id']}/{ended['created_at'][:10]}"
    until(lambda: published(at, folder).get("original.json") == data, FOR_LONG)
