"""The data design of the fetching service, word for word: job_config, job_status, failures, the trigger, the bucket."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from datetime import datetime
from typing import Any

import httpx2
import pytest
from PIL import Image

from tests.apps.places import PLACES, Stand, stand
from tests.apps.test_fetch_runs import APP, FOR_LONG, JOB_CONFIG, Site, over
from tests.http.processes import until
from tests.servers.web import answering, web_aside

FAILURE = """{
  "trace_id": "def-456",
  "job_id": "neo-daily",
  "error_code": "HTTP_500",
  "message": "Upstream API timeout",
  "attempts": 3,
  "timestamp": "2025-09-04T08:10:22Z"
}"""
PUSHED: dict[str, Any] = {
    "message": {"attributes": {"job_id": "apod-daily"}, "data": "e30=", "messageId": "2070443601311540"},
    "subscription": "projects/ns/subscriptions/fetch-trigger",
}
"""A push message as Pub/Sub documents it."""


@pytest.fixture(scope="module")
def ns(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Stand, Site]]:
    folder = tmp_path_factory.mktemp("ns")
    given = {"sweep": "250ms", "secret_key": "k" * 40, "outbound_allow": "127.0.0.0/8"}
    given["publish_to"] = f"file://{folder}/ns-temp-bucket"
    with web_aside() as web, pytest.MonkeyPatch.context() as env:
        env.setenv("FETCH_ALLOW", "127.0.0.1/32")
        with stand(folder, APP, PLACES["sqlite"], **given) as found:
            found.ready("fetch")
            yield found, Site(web)


def configure(at: Stand, job_id: str, fetch_url: str) -> str:
    """Put the document with an address that answers; return where a push subscription sends its messages."""
    document = {**json.loads(JOB_CONFIG), "job_id": job_id, "fetch_url": fetch_url}
    answer = httpx2.put(f"{at.server.url}/api/v1/job_config/{job_id}", json=document)
    assert answer.status_code == 201, answer.text
    token = httpx2.post(f"{at.server.url}/api/v1/schedules/{job_id}/token").json()
    return at.server.url + str(token["path"])


def test_a_message_runs_the_job_and_its_status_has_the_trace_of_the_message(ns: tuple[Stand, Site]) -> None:
    at, site = ns
    site.pages["/apod"] = answering(200, picture(), content_type="image/jpeg")
    endpoint = configure(at, "apod-daily", f"{site.url}/apod")

    answers = [httpx2.post(endpoint, json=PUSHED) for _ in range(2)]
    until(lambda: over(at, "apod-daily", 1), FOR_LONG)

    assert [answer.status_code for answer in answers] == [202, 202]
    [status] = httpx2.get(f"{at.server.url}/api/v1/job_config/apod-daily/status").json()["items"]
    assert status.keys() == {"trace_id", "job_id", "started_at", "status", "message", "duration_ms", "output_url"}
    assert status["trace_id"] == answers[0].json()["trace_id"]
    assert (status["job_id"], status["status"]) == ("apod-daily", "success")
    assert datetime.fromisoformat(status["started_at"]).tzinfo is not None
    assert len(site.asked("/apod")) == 1


def picture() -> bytes:
    with io.BytesIO() as file:
        Image.new("RGB", (16, 16), "navy").save(file, "jpeg")
        return file.getvalue()


def test_files_are_in_the_bucket_by_job_and_day(ns: tuple[Stand, Site]) -> None:
    at, site = ns
    site.pages["/mars"] = answering(200, picture(), content_type="image/jpeg")
    endpoint = configure(at, "mars-daily", f"{site.url}/mars")
    bucket = at.server.place.folder / "ns-temp-bucket"

    day = httpx2.post(endpoint, json=PUSHED).json()["tick"][:10]
    until(lambda: (bucket / "mars-daily" / day / "meta.json").exists(), FOR_LONG)
    until(lambda: (bucket / "mars-daily" / day / "original.jpg").exists(), FOR_LONG)

    assert (bucket / "mars-daily" / day / "original.jpg").read_bytes() == picture()
    assert not list(at.server.place.folder.glob("**/published/**/original.jpg"))


def test_a_failure_is_pushed_to_a_webhook_as_to_a_dead_letter_topic(ns: tuple[Stand, Site]) -> None:
    at, site = ns
    site.pages |= {"/neo": answering(500), "/dead-letters": answering(204)}
    at.client.add_webhook(f"{site.url}/dead-letters")
    endpoint = configure(at, "neo-daily", f"{site.url}/neo")

    trace_id = httpx2.post(endpoint, json=PUSHED).json()["trace_id"]
    letters = until(
        lambda: [each.json for each in site.asked("/dead-letters") if each.json["type"] == "failure.recorded"], FOR_LONG
    )

    [failure] = letters[0]["data"]["failures"]
    [kept] = httpx2.get(f"{at.server.url}/api/v1/failures", params={"schedule_id": "neo-daily"}).json()["items"]
    for each in (failure, kept):
        assert each.keys() >= json.loads(FAILURE).keys()
        assert (each["error_code"], each["trace_id"], each["schedule_id"]) == ("HTTP_500", trace_id, "neo-daily")
        assert (each["attempts"] >= 3, each["message"] != "") == (True, True)
        assert datetime.fromisoformat(each["timestamp"]).tzinfo is not None
