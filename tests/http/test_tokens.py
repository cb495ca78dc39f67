"""A token of one job: what it shows through the API and the pages, and what one link can use up."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from packhorse.auth import keys
from packhorse.blobs.base import Blobs
from packhorse.core.models import Job, Result
from packhorse.core.plan import DownloadLimits
from packhorse.errors import TooManyStreams
from packhorse.factory import open_both
from packhorse.http.stream import Streams
from packhorse.schemas.jobs import public_error, public_event
from packhorse.store.base import Store
from tests.contract import builders
from tests.contract.builders import finish, started
from tests.http.downloading import finished, made
from tests.http.keyed import BASE, asking, bearer, key
from tests.http.processes import Place
from tests.http.unserved import Http

SITE = BASE.removesuffix("/api/v1/")
ADD = {"pipeline": "add", "user_id": "ann", "parameters": {"a": 4711}, "metadata": {"note": "inner"}}


@pytest.fixture
def place(place: Place) -> Place:
    return place.but(keyless=False)


@pytest.fixture
async def http(place: Place) -> AsyncIterator[Http]:
    async with asking(place) as http:
        yield http


@pytest.fixture
async def blobs(place: Place) -> AsyncIterator[Blobs]:
    store, blobs = await open_both(place.settings)
    yield blobs
    await store.close()
    await blobs.close()


async def waiting(http: Http, service: dict[str, str]) -> tuple[str, dict[str, str]]:
    """A new job and the header of a token for it."""
    job_id = (await http.post("jobs", json=ADD, headers=service)).json()["job_id"]
    made = await http.post(f"jobs/{job_id}/tokens", headers=service)
    return job_id, bearer(made.json()["key"])


async def token_of(store: Store, job: Job, client: str = "service") -> dict[str, str]:
    _, text = await keys.create_token(store, job, by=client, client=client, lasting=600.0)
    return bearer(text)


SHOWN = ["", "/estimate", "/artifacts"]
HIDDEN = ["/log", "/history", "/metrics", "/explain", "/tokens"]


@pytest.mark.parametrize("path", [*SHOWN, *HIDDEN])
async def test_a_token_shows_progress_and_result_and_not_how_it_works(http: Http, store: Store, path: str) -> None:
    job_id, token = await waiting(http, await key(store))

    answer = await http.get(f"jobs/{job_id}{path}", headers=token)

    assert answer.status_code == (403 if path in HIDDEN else 200)
    assert not [secret for secret in ("4711", "inner") if secret in answer.text]


@pytest.mark.parametrize("path", ["", "/log.txt", "/log", "/share"])
async def test_a_token_opens_no_page_of_an_operator(http: Http, store: Store, path: str) -> None:
    job_id, token = await waiting(http, await key(store))

    answer = await http.get(f"{SITE}/jobs/{job_id}{path}", headers=token)

    assert answer.status_code in (403, 404, 405)
    assert "4711" not in answer.text


async def test_a_cancel_with_a_token_does_not_show_the_parameters(http: Http, store: Store) -> None:
    job_id, token = await waiting(http, await key(store))

    answer = await http.post(f"jobs/{job_id}/cancel", headers=token)

    assert (answer.status_code, answer.json()["status"]) == (202, "cancelled")
    assert (answer.json()["parameters"], answer.json()["metadata"]) == ({}, {})


@pytest.mark.parametrize("is_page", [False, True])
async def test_the_stream_of_a_token_has_no_parameters_and_no_log(http: Http, store: Store, is_page: bool) -> None:
    job_id, token = await waiting(http, await key(store))
    await http.post(f"jobs/{job_id}/cancel", headers=token)
    text = token["Authorization"].removeprefix("Bearer ")

    path = f"{SITE}/p/{text}/events" if is_page else f"jobs/{job_id}/events"
    answer = await http.get(path, headers={} if is_page else token)

    assert "event: snapshot" in answer.text
    assert "event: cancelled" in answer.text
    assert not [secret for secret in ("4711", "inner", "event: log") if secret in answer.text]


async def test_a_token_reads_the_files_of_the_result_and_no_others(http: Http, store: Store, blobs: Blobs) -> None:
    claim = await started(store)
    files = (await made(blobs, claim, {"a.txt": b"one", "inner.txt": b"two"})).files
    job = await finish(store, claim, Result(b'{"$file":0}', files[:1], extra=files[1:]))
    token, whole = await token_of(store, job), await key(store, "default", "read")

    async def status(name: str, headers: dict[str, str]) -> int:
        return (await http.get(f"jobs/{job.id}/artifacts/{name}", headers=headers)).status_code

    async def listed(headers: dict[str, str]) -> list[str]:
        answer = await http.get(f"jobs/{job.id}/artifacts", headers=headers)
        return [each["name"] for each in answer.json()["items"]]

    assert await listed(whole) == ["only/a.txt", "only/inner.txt"]
    assert await listed(token) == ["only/a.txt"]
    assert [await status(name, whole) for name in ("only/a.txt", "only/inner.txt")] == [200, 200]
    assert [await status(name, token) for name in ("only/a.txt", "only/inner.txt")] == [200, 404]
    text = token["Authorization"].removeprefix("Bearer ")
    assert (await http.get(f"{SITE}/p/{text}/artifacts/only/inner.txt")).status_code == 404
    assert (await http.get(f"jobs/{job.id}/result", headers=token)).content == b"one"


def test_of_an_error_a_token_shows_what_a_stage_has_meant_for_people() -> None:
    def shown(code: str) -> Any:
        return public_error({"code": code, "message": "m", "stage": "s", "detail": "line 3"})

    assert [shown(code)["message"] for code in ("TOO_SMALL", "INVALID", "EXCEPTION", "HTTP_500", "HTTP_404")] == [
        "m", "m", "", "", "",
    ]  # fmt: skip
    assert shown("TOO_SMALL")["detail"] is None
    assert public_error(None) is None
    failed = {"n": 1, "type": "stage_failed", "code": "EXCEPTION", "stage": "s"}
    assert public_event({**failed, "message": "m", "worker": "w"}) == failed
    assert public_event({"n": 1, "type": "completed", "run": 1}) == {"n": 1, "type": "completed", "run": 1}


async def test_one_link_does_not_use_up_the_downloads_of_its_key(place: Place, store: Store, blobs: Blobs) -> None:
    job = await finished(store, blobs, {"a.txt": b"one"}, None)
    service, text = await keys.create(store, "default", ("submit", "read"), by="cli")
    first, second = [await token_of(store, job, service.id) for _ in range(2)]
    async with asking(place.but(downloads_per="key", downloads_per_minute=4)) as http:

        async def fetch(headers: dict[str, str], times: int) -> list[int]:
            return [(await http.get(f"jobs/{job.id}/result", headers=headers)).status_code for _ in range(times)]

        assert await fetch(first, 4) == [200, 200, 429, 429]
        assert await fetch(second, 3) == [200, 200, 429]
        assert await fetch(bearer(text), 5) == [200, 200, 200, 200, 429]


async def test_what_a_link_did_not_download_is_given_back(place: Place, store: Store, blobs: Blobs) -> None:
    job = await finished(store, blobs, {"a.txt": b"one"}, None)
    token = await token_of(store, job)
    async with asking(place.but(downloads_per="key", downloads_at_once=2)) as http:
        answers = [await http.get(f"jobs/{job.id}/result", headers=token) for _ in range(4)]

    assert [each.status_code for each in answers] == [200] * 4
    assert 'token-downloads";r=0' in answers[0].headers["RateLimit"]


async def test_each_visitor_of_a_website_has_downloads_of_its_own(place: Place, store: Store, blobs: Blobs) -> None:
    jobs = [await finished(store, blobs, {"a.txt": b"one"}, None, user=f"visitor-{n}") for n in range(8)]
    service, text = await keys.create(store, "default", ("submit", "read"), by="cli")
    link = await token_of(store, jobs[0], service.id)
    async with asking(place.but(downloads_per_10s=4)) as http:

        async def fetch(job: Job, headers: dict[str, str]) -> int:
            return (await http.get(f"jobs/{job.id}/result", headers=headers)).status_code

        assert [await fetch(job, bearer(text)) for job in jobs] == [200] * 8
        assert [await fetch(jobs[0], link) for _ in range(3)] == [200, 200, 429]
        assert [await fetch(jobs[0], bearer(text)) for _ in range(2)] == [200, 429]
        refused = await http.get(f"jobs/{jobs[0].id}/result", headers=bearer(text))

    wait = refused.headers["Retry-After"]
    problem = refused.json()
    assert problem["detail"] == f"Too many downloads for user visitor-0 (limit 4 in 10 s). Retry in {wait} s."
    assert (problem["policy"], problem["retry_after"]) == ("downloads-10s", int(wait))


async def test_many_links_do_not_give_a_user_more_downloads(place: Place, store: Store, blobs: Blobs) -> None:
    jobs = [await finished(store, blobs, {"a.txt": b"one"}, None, user=user) for user in ("ann", "ann", "bob")]
    links = [(job, await token_of(store, job)) for job in jobs for _ in range(2)]
    async with asking(place.but(downloads_per_minute=3)) as http:

        async def refusal(job: Job, headers: dict[str, str]) -> str | None:
            answer = await http.get(f"jobs/{job.id}/result", headers=headers)
            return answer.json()["policy"] if answer.status_code == 429 else None

        of_ann = [await refusal(*link) for link in links[:4] for _ in range(3)]
        of_bob = await refusal(*links[4])

    assert of_ann == [None, None, "token-downloads-minute", None, *["downloads-minute"] * 8]
    assert of_bob is None


async def test_a_pipeline_declares_its_own_download_limits(place: Place, store: Store, blobs: Blobs) -> None:
    per_key = builders.plan(builders.stage("only"), downloads=DownloadLimits("key", per_10s=3, at_once=0))
    limited = [await finished(store, blobs, {"a.txt": b"one"}, None, plan=per_key, user=user) for user in ("a", "b")]
    other = await finished(store, blobs, {"a.txt": b"one"}, None, user="a")
    callers = [bearer((await keys.create(store, "default", ("read",), by="cli"))[1]) for _ in range(2)]
    async with asking(place.but(downloads_per_10s=5)) as http:

        async def fetch(job: Job, headers: dict[str, str]) -> int:
            return (await http.get(f"jobs/{job.id}/result", headers=headers)).status_code

        first, second = callers
        assert [await fetch(job, first) for job in limited * 2] == [200, 200, 200, 429]
        assert await fetch(limited[0], second) == 200, "another key has its own count"
        assert await fetch(other, first) == 200, "another pipeline has its own count"
        refused = (await http.get(f"jobs/{limited[0].id}/result", headers=first)).json()

    assert refused["policy"] == "convert-downloads-10s"
    assert refused["detail"].startswith("Too many downloads for this key (limit 3 in 10 s). Retry in ")


async def test_one_link_does_not_use_up_the_requests_of_its_key(place: Place, store: Store) -> None:
    async with asking(place.but(api_limit=20)) as http:
        service = await key(store)
        job_id, token = await waiting(http, service)

        with_token = [(await http.get(f"jobs/{job_id}", headers=token)).status_code for _ in range(12)]
        with_key = [(await http.get(f"jobs/{job_id}", headers=service)).status_code for _ in range(12)]

    assert with_token == [200] * 10 + [429] * 2
    assert with_key == [200] * 12


async def test_one_link_does_not_use_up_the_streams_of_its_key(http: Http, store: Store) -> None:
    service, _ = await keys.create(store, "acme", ("submit", "read"), by="cli")
    authenticator = http.app.state.services.authenticator
    job_ids = [(await http.post("jobs", json=ADD, headers=await key(store))).json()["job_id"] for _ in range(2)]
    callers = []
    for job in await store.get(job_ids):
        assert job is not None
        _, text = await keys.create_token(store, job, by=service.id, client=service.id, lasting=600.0)
        callers.append(await authenticator.holder({"client": ("127.0.0.1", 1), "headers": []}, text))
    streams = Streams(limit=4, token_limit=2)

    async def frames() -> AsyncIterator[bytes]:
        while True:
            yield b""

    opened: list[Any] = []
    for caller in (callers[0], callers[0]):
        streams.check(caller)
        opened.append(streams.count(caller, frames()))  # type: ignore[arg-type]
        await anext(opened[-1])

    with pytest.raises(TooManyStreams):
        streams.check(callers[0])
    streams.check(callers[1])
    for each in opened:
        await each.aclose()
    streams.check(callers[0])


async def test_a_job_has_so_many_tokens_and_ended_ones_make_room(
    http: Http, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("packhorse.jobs.keys.MOST_TOKENS", 3)
    service = await key(store)
    job_id = (await http.post("jobs", json=ADD, headers=service)).json()["job_id"]
    tokens = [await http.post(f"jobs/{job_id}/tokens", headers=service) for _ in range(4)]
    await http.delete(f"jobs/{job_id}/tokens/{tokens[0].json()['key_id']}", headers=service)

    again = await http.post(f"jobs/{job_id}/tokens", headers=service)

    assert [each.status_code for each in tokens] == [201, 201, 201, 429]
    assert "valid tokens of one job" in tokens[3].json()["detail"]
    assert again.status_code == 201
    listed = (await http.get(f"jobs/{job_id}/tokens", headers=service)).json()["items"]
    assert tokens[0].json()["key_id"] not in [each["key_id"] for each in listed]


async def test_a_key_makes_so_many_tokens_in_a_day(place: Place, store: Store) -> None:
    async with asking(place.but(tokens_limit=2)) as http:
        service = await key(store)
        job_id = (await http.post("jobs", json=ADD, headers=service)).json()["job_id"]

        tokens = [await http.post(f"jobs/{job_id}/tokens", headers=service) for _ in range(3)]

    assert [each.status_code for each in tokens] == [201, 201, 429]
    assert int(tokens[2].headers["Retry-After"]) > 0
