"""Downloads within limits, from real servers: who gets in, what it costs, what is cut, and what is written down."""

from __future__ import annotations

import io
import json
import random
import signal
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx2
import pytest

from packhorse.client.files import filename
from packhorse.define.files import sanitize_name
from tests.contract import builders
from tests.http.downloading import BUFFERS, House, Reader, fetched, housed, pattern, summed, until_quiet
from tests.http.processes import until
from tests.http.test_results import NAMES
from tests.journey.places import PLACES

Open = Callable[..., House]

LARGE = 3 * BUFFERS
SMALL = pattern(10_000)
TB = 2**40
READERS = 40


@pytest.fixture(params=PLACES)
def house(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Open]:
    """Opens a house with these limits, on each store and both sorts of objects."""
    with ExitStack() as opened:
        yield lambda **limits: opened.enter_context(housed(tmp_path, **PLACES[request.param](tmp_path), **limits))


def at_once(house: House, job: str) -> list[Reader]:
    """Many who ask two servers at the same moment, and have been answered."""
    with ThreadPoolExecutor(READERS) as pool:
        return list(pool.map(lambda n: house.reader(house.servers[n % 2], job), range(READERS)))


def test_of_many_at_once_on_two_servers_exactly_the_limit_gets_in(house: Open) -> None:
    here = house(downloads_at_once=7, download_bytes_per_hour=TB)
    here.serve()
    here.serve()
    job = here.job({"a.bin": bytes(LARGE)})

    readers = at_once(here, job)

    assert Counter(reader.status for reader in readers) == {200: 7, 429: READERS - 7}
    assert here.used()["downloads"] == 7
    for reader in readers:
        reader.vanish()
    until_quiet(here)
    assert here.used()["bytes-hour"] <= 7 * BUFFERS
    until(lambda: Counter(here.words())["aborted"] == 7)
    assert here.words().count("started") == 7


def test_of_many_in_a_minute_exactly_the_limit_gets_in(house: Open) -> None:
    here = house(downloads_at_once=READERS, downloads_per_minute=9)
    here.serve()
    here.serve()
    job = here.job({"a.bin": SMALL})

    readers = at_once(here, job)

    assert Counter(reader.status for reader in readers) == {200: 9, 429: READERS - 9}
    until_quiet(here)
    assert here.used()["downloads-minute"] == 9, "when it began stays counted"


def test_a_quota_is_spent_to_the_last_byte_and_not_beyond(house: Open) -> None:
    here = house(downloads_at_once=READERS, download_bytes_per_hour=11 * len(SMALL) - 1, download_bytes_per_day=TB)
    servers = [here.serve(), here.serve()]
    job = here.job({"a.bin": SMALL})

    readers = at_once(here, job)

    assert Counter(reader.status for reader in readers) == {200: 10, 429: READERS - 10}
    until_quiet(here)
    assert here.used()["bytes-hour"] == here.used()["bytes-day"] == 10 * len(SMALL), "what was refused cost nothing"
    rest = fetched(servers[0], job, Range=f"bytes=0-{len(SMALL) - 2}")
    assert (rest.status_code, len(rest.content)) == (206, len(SMALL) - 1)
    assert fetched(servers[1], job, Range="bytes=0-0").status_code == 429


def test_only_bytes_that_are_sent_cost_any(house: Open) -> None:
    here = house(downloads_at_once=3, downloads_per_minute=100, download_bytes_per_hour=TB, download_bytes_per_day=TB)
    server = here.serve()
    job, several = here.job({"a.bin": SMALL}), here.job({"a.txt": b"one", "b.txt": b"two"})
    etag = f'"{summed(SMALL)}"'

    known = fetched(server, job, **{"If-None-Match": etag})
    head = httpx2.head(f"{server.api}/jobs/{job}/result")
    beyond = fetched(server, job, Range="bytes=10000-")
    missing = fetched(server, job, "artifacts/only/none.bin")
    assert [each.status_code for each in (known, head, beyond, missing)] == [304, 200, 416, 404]
    assert set(here.used().values()) == {0}

    part = fetched(server, job, Range="bytes=100-199")
    whole = fetched(server, job, "artifacts/only/a.bin")
    archive = fetched(server, several)
    until_quiet(here)

    sent = len(part.content) + len(whole.content) + len(archive.content)
    assert here.used()["bytes-hour"] == here.used()["bytes-day"] == sent
    assert here.used()["downloads-minute"] == 3


def test_who_vanishes_pays_for_what_was_sent(house: Open) -> None:
    here = house(downloads_at_once=5, download_bytes_per_hour=TB)
    server = here.serve()
    job = here.job({"a.bin": bytes(LARGE)})
    chance = random.Random(7)
    taken = [chance.randrange(LARGE - BUFFERS) for _ in range(4)]

    for count in taken:
        reader = here.reader(server, job)
        reader.take(count)
        reader.vanish()
        until_quiet(here)

    until(lambda: here.words() == ["started", "aborted"] * 4)
    paid = [entry.details["bytes"] for entry in here.told() if entry.event == "download.aborted"]
    assert here.used()["bytes-hour"] == sum(paid)
    assert all(count <= cost <= count + BUFFERS for count, cost in zip(taken, paid, strict=True)), (taken, paid)


def test_a_reader_that_dawdles_is_cut_when_its_time_is_over(house: Open) -> None:
    here = house(downloads_at_once=5, download_timeout=1.5, download_bytes_per_hour=TB)
    server = here.serve()
    job = here.job({"a.bin": bytes(LARGE)})
    reader = here.reader(server, job)

    until(lambda: reader.take(len(reader.taken) + 1) and "timed_out" in here.words())

    until_quiet(here)
    assert here.used()["bytes-hour"] <= BUFFERS
    assert reader.take(LARGE) < LARGE, "the connection ends, and something is missing"
    assert Counter(here.words()) == {"started": 1, "timed_out": 1}


def test_a_permit_ends_by_itself_when_its_server_is_killed(house: Open) -> None:
    here = house(downloads_at_once=2, download_timeout=8)
    first, second = here.serve(), here.serve()
    job, small = here.job({"a.bin": bytes(LARGE)}), here.job({"a.bin": SMALL})
    assert [here.reader(first, job).status for _ in range(2)] == [200, 200]
    assert fetched(second, small).status_code == 429

    first.signal(signal.SIGKILL)
    first.ended()

    until_quiet(here)
    assert fetched(second, small).status_code == 200


def test_a_stopped_server_gives_back_what_it_had_not_sent(house: Open) -> None:
    here = house(downloads_at_once=2, download_bytes_per_hour=TB)
    server = here.serve()
    here.reader(server, here.job({"a.bin": bytes(LARGE)}))

    server.stop()

    assert here.used()["downloads"] == 0
    assert here.used()["bytes-hour"] <= BUFFERS
    assert here.words() == ["started", "failed"]


def test_a_download_that_works_is_told_of_twice_and_a_refusal_once(house: Open) -> None:
    here = house(downloads_per_minute=2)
    server = here.serve()
    job = here.job({"a.bin": SMALL})

    answers = [fetched(server, job), fetched(server, job, "artifacts/only/a.bin"), fetched(server, job)]
    fetched(server, "nowhere")
    server.stop()

    assert [answer.status_code for answer in answers] == [200, 200, 429]
    assert here.words() == ["started", "completed", "started", "completed", "refused", "unavailable"]
    told = here.told()
    assert [entry.details["name"] for entry in told] == ["result"] * 2 + ["only/a.bin"] * 2 + ["result"] * 2
    assert told[1].details["bytes"] == len(SMALL)
    assert told[4].details == {"name": "result", "why": "rate", "policy": "downloads-minute"}
    assert told[5].details["why"] == "job-not-found"
    assert {(entry.tenant, entry.job_id) for entry in told[:5]} == {("default", job)}


# What is the same on every store.


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    limits = {"downloads_at_once": 10, "downloads_per_minute": 1000, "download_bytes_per_hour": TB}
    with housed(tmp_path_factory.mktemp("shop"), **limits) as house:
        house.serve()
        yield house


@pytest.fixture(scope="module")
def job(shop: House) -> str:
    return shop.job({"out.nef": SMALL}, source="my cat.onnx")


def get(shop: House, job: str, what: str = "result", **headers: str) -> httpx2.Response:
    return fetched(shop.servers[0], job, what, **headers)


@pytest.mark.parametrize(
    ("asked", "start", "end"),
    [
        ("bytes=0-0", 0, 1),
        ("bytes=100-199", 100, 200),
        ("bytes=9000-", 9000, 10_000),
        ("bytes=9000-99999", 9000, 10_000),
        ("bytes=-500", 9500, 10_000),
        ("bytes=-99999", 0, 10_000),
        ("BYTES=5-5", 5, 6),
    ],
)
def test_one_range_is_honoured(shop: House, job: str, asked: str, start: int, end: int) -> None:
    answer = get(shop, job, Range=asked)

    assert answer.status_code == 206
    assert answer.content == SMALL[start:end]
    assert answer.headers["content-range"] == f"bytes {start}-{end - 1}/10000"
    assert answer.headers["content-length"] == str(end - start)


@pytest.mark.parametrize("asked", ["bytes=0-1,5-6", "bytes=5-4", "bytes=-", "bytes=a-b", "lines=1-2", "bytes 0-5", ""])
def test_what_is_not_one_range_is_the_whole(shop: House, job: str, asked: str) -> None:
    answer = get(shop, job, Range=asked)

    assert (answer.status_code, answer.content) == (200, SMALL)


@pytest.mark.parametrize("asked", ["bytes=10000-", "bytes=99999-100000", "bytes=-0"])
def test_a_range_of_nothing_is_416(shop: House, job: str, asked: str) -> None:
    answer = get(shop, job, Range=asked)

    assert answer.status_code == 416
    assert answer.headers["content-range"] == "bytes */10000"
    assert answer.json()["type"] == "urn:packhorse:range-not-satisfiable"


def test_a_range_goes_on_only_with_the_same_file(shop: House, job: str) -> None:
    etag = get(shop, job).headers["etag"]

    same = get(shop, job, Range="bytes=10-", **{"If-Range": etag})
    others = [get(shop, job, Range="bytes=10-", **{"If-Range": each}) for each in ('"old"', f"W/{etag}", "yesterday")]

    assert etag == f'"{summed(SMALL)}"'
    assert (same.status_code, same.content) == (206, SMALL[10:])
    assert {(each.status_code, each.content) for each in others} == {(200, SMALL)}


@pytest.mark.parametrize("known", ["{etag}", "W/{etag}", '"x", {etag}', "*"])
def test_what_is_known_already_is_not_sent(shop: House, job: str, known: str) -> None:
    etag = f'"{summed(SMALL)}"'

    answer = get(shop, job, **{"If-None-Match": known.format(etag=etag)})

    assert (answer.status_code, answer.content) == (304, b"")
    assert answer.headers["etag"] == etag
    assert get(shop, job, **{"If-None-Match": '"x"'}).status_code == 200


@pytest.mark.parametrize("what", ["result", "artifacts/only/out.nef"])
def test_a_head_says_what_a_get_would(shop: House, job: str, what: str) -> None:
    head = httpx2.head(f"{shop.servers[0].api}/jobs/{job}/{what}", headers={"Range": "bytes=0-1"})
    whole = get(shop, job, what)

    kept = set(whole.headers) - {"date", "server", "ratelimit", "ratelimit-policy", "x-trace-id", "traceresponse"}
    assert (head.status_code, head.content) == (200, b"")
    assert {name: head.headers[name] for name in kept} == {name: whole.headers[name] for name in kept}


def test_the_headers_say_what_is_allowed_and_what_is_left(shop: House, job: str) -> None:
    answer = get(shop, job, Range="bytes=0-0")

    assert answer.headers["ratelimit-policy"] == (
        '"downloads";q=10;qu="concurrent-requests", "downloads-minute";q=1000;qu="requests";w=60, '
        f'"bytes-hour";q={TB};qu="content-bytes";w=3600'
    )
    left = dict(each.split(";r=") for each in answer.headers["ratelimit"].split(", "))
    assert int(left['"bytes-hour"']) == TB - shop.used()["bytes-hour"]


def test_a_refusal_says_why_and_when_to_come_back(tmp_path: Path) -> None:
    with housed(tmp_path, downloads_at_once=9, download_bytes_per_hour=len(SMALL)) as house:
        server, job = house.serve(), house.job({"a.bin": SMALL})
        fetched(server, job)

        answer = fetched(server, job)

    problem = answer.json()
    assert answer.status_code == 429
    assert answer.headers["content-type"] == "application/problem+json"
    assert problem["type"] == "urn:packhorse:quota-exceeded"
    assert (problem["limit"], problem["window"], problem["policy"]) == (len(SMALL), 3600, "bytes-hour")
    assert int(answer.headers["retry-after"]) == problem["retry_after"] > 3000
    assert answer.headers["ratelimit"] == f'"downloads";r=9, "bytes-hour";r=0;t={problem["retry_after"]}'
    assert "headers" not in problem


def test_without_limits_nothing_is_said_and_nothing_refused(tmp_path: Path) -> None:
    with housed(tmp_path, download_timeout=0) as house:
        server, job = house.serve(), house.job({"a.bin": SMALL})

        answers = [fetched(server, job) for _ in range(30)]

    assert {answer.content for answer in answers} == {SMALL}
    assert not any("ratelimit" in answer.headers for answer in answers)


def test_an_archive_is_as_long_as_was_promised_and_has_no_parts(shop: House) -> None:
    job = shop.job({"a.txt": b"one", "größe 漢.bin": SMALL}, source="big words.txt")

    answer = get(shop, job, Range="bytes=5-9")

    assert answer.status_code == 200
    assert answer.headers["accept-ranges"] == "none"
    assert answer.headers["content-length"] == str(len(answer.content))
    assert filename(answer.headers["content-disposition"]) == "big words-convert.zip"
    with zipfile.ZipFile(io.BytesIO(answer.content)) as archive:
        assert {name: archive.read(name) for name in archive.namelist()} == {
            "only/a.txt": b"one",
            "only/größe 漢.bin": SMALL,
        }
    assert get(shop, job, **{"If-None-Match": answer.headers["etag"]}).status_code == 304


def test_a_value_is_a_download_too(shop: House) -> None:
    job = shop.job({}, value=b'{"words":3}')
    before = shop.used()["bytes-hour"]

    answer = get(shop, job)

    until_quiet(shop)
    assert answer.json() == {"words": 3}
    assert shop.used()["bytes-hour"] - before == len(answer.content)


@pytest.mark.parametrize("name", NAMES)
def test_a_result_is_named_after_the_file_the_job_began_with(shop: House, name: str) -> None:
    source = sanitize_name(name)
    job = shop.job({"out.nef": b"x"}, source=source)
    bare = builders.plan(builders.stage("only"), result_name="{source}{suffix}")
    renamed = shop.job({"out.nef": b"x"}, source=source, plan=bare)

    answer = get(shop, job)

    assert answer.status_code == 200
    found = filename(answer.headers["content-disposition"])
    assert found == sanitize_name(Path(source).stem + "-out.nef")
    assert filename(get(shop, renamed).headers["content-disposition"]) == sanitize_name(Path(source).stem + ".nef")
    assert set(answer.headers) >= {"content-disposition", "content-length"}
    assert "set-cookie" not in answer.headers


def test_a_job_that_is_not_finished_is_409_and_told_of(shop: House) -> None:
    job = shop.with_both(lambda store, _: builders.submit(store)).id

    answer = get(shop, job)

    assert (answer.status_code, answer.json()["type"]) == (409, "urn:packhorse:not-finished")
    told: Any = until(lambda: [entry for entry in shop.told() if entry.job_id == job])
    assert [(entry.event, entry.details["why"]) for entry in told] == [("download.unavailable", "not-finished")]


def test_what_the_audit_keeps_of_a_made_up_name_is_bounded(shop: House, job: str) -> None:
    canary = "canary-" + "x" * 3000

    answer = get(shop, job, f"artifacts/{canary}")

    assert answer.status_code == 404
    [entry] = until(lambda: [each for each in shop.told() if "canary" in str(each.details)])
    assert len(json.dumps(entry.details)) < 300


def test_an_object_that_is_gone_gives_everything_back(tmp_path: Path) -> None:
    with housed(tmp_path, downloads_at_once=3, download_bytes_per_hour=TB) as house:
        server, job = house.serve(), house.job({"a.bin": SMALL})
        for path in house.place.blobs.rglob(f"*{job}/output/only/*/0"):
            path.unlink()

        answer = fetched(server, job)

        assert answer.status_code == 404
        assert house.used() == {"downloads": 0, "bytes-hour": 0}
        assert until(house.words) == ["unavailable"]
