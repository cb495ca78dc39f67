"""Results promoted by real servers: to a bucket, to a folder, and to a file service that has its bad days."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx2
import pytest
from msgspec.structs import replace

from packhorse import cli
from packhorse.background.janitor import Janitor
from packhorse.blobs import open_blobs
from packhorse.blobs.base import Blobs
from packhorse.core import lifecycle
from packhorse.core.changes import Change
from packhorse.define.files import artifact_key
from packhorse.jobs.transact import Transactor
from packhorse.store.base import Store
from tests.contract import builders
from tests.http.downloading import House, housed, made, pattern
from tests.http.processes import Server, until
from tests.journey.places import PLACES
from tests.servers import seaweed
from tests.servers.fileservice import SECRET, FileService

Json = dict[str, Any]

FILES = {"out.nef": pattern(300_000), "größe: 100%?.txt": b"small", "empty.bin": b""}


@pytest.fixture(scope="module")
def service() -> Iterator[FileService]:
    with FileService() as service:
        yield service


@pytest.fixture(autouse=True)
def fresh(service: FileService) -> None:
    service.reset()


@pytest.fixture(scope="module", params=PLACES)
def house(
    request: pytest.FixtureRequest, service: FileService, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[House]:
    """On each store and both sorts of objects, a server that promotes to a folder, a bucket and a file service."""
    folder = tmp_path_factory.mktemp("house")
    given = PLACES[request.param](folder)
    keys = {"s3_access_key": seaweed.KEYS.access, "s3_secret_key": seaweed.KEYS.secret}
    to = f"folder=file://{folder / 'kept'},bucket={bucket('kept')},service={service.url}/kept/here"
    with housed(folder, **given | keys | service.settings() | {"promote_to": to}) as house:
        house.serve()
        yield house


@pytest.fixture(scope="module")
def calling(service: FileService, tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    """A server that promotes to the file service only."""
    with housed(tmp_path_factory.mktemp("calling"), **service.settings()) as house:
        house.serve()
        yield house


def bucket(prefix: str) -> str:
    """A part of the bucket that all of these tests share."""
    parts = urlsplit(BUCKET())
    return parts._replace(path=f"{parts.path}/{prefix}").geturl()


BUCKET = cache(lambda: seaweed.running().place())


def promote(server: Server, job_id: str, **body: str) -> httpx2.Response:
    return httpx2.post(f"{server.api}/jobs/{job_id}/promote", json=body, timeout=60)


def shown(server: Server, job_id: str) -> Json:
    found: Json = httpx2.get(f"{server.api}/jobs/{job_id}").json()
    return found


def in_folder(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def in_bucket(job: str) -> dict[str, bytes]:
    async def read() -> dict[str, bytes]:
        blobs = open_blobs(bucket(f"kept/jobs/{job}"), seaweed.KEYS.access, seaweed.KEYS.secret)
        keys = await blobs.keys("output")
        found = {key: b"".join([piece async for piece in blobs.read(key)]) for key in keys}
        await blobs.close()
        return found

    return asyncio.run(read())


def expected() -> dict[str, bytes]:
    return {f"output/{artifact_key(name)}": content for name, content in FILES.items()}


def test_a_result_is_copied_to_a_folder_and_the_job_says_so(house: House) -> None:
    server, job, kept = house.servers[0], house.job(FILES), house.place.folder / "kept"
    before = shown(server, job)

    answer = promote(server, job)

    assert answer.status_code == 200, answer.text
    assert in_folder(kept / "jobs" / job) == expected()
    assert (before["promoted"], before["promoted_object_keys"]) == (False, [])
    assert answer.json()["promoted"] is True
    assert answer.json()["promoted_object_keys"] == [f"file://{kept}/jobs/{job}/{key}" for key in expected()]
    assert shown(server, job) == answer.json()


def test_a_result_is_copied_to_another_part_of_a_bucket(house: House) -> None:
    server, job = house.servers[0], house.job(FILES)

    answers = [promote(server, job, destination="bucket") for _ in range(2)]

    assert [answer.status_code for answer in answers] == [200, 200]
    assert in_bucket(job) == expected()
    assert answers[1].json() == answers[0].json()
    address = bucket(f"kept/jobs/{job}").partition("?")[0]
    assert answers[0].json()["promoted_object_keys"] == [f"{address}/{key}" for key in expected()]


def test_a_result_is_put_to_a_file_service(house: House, service: FileService) -> None:
    server, job = house.servers[0], house.job(FILES)

    answers = [promote(server, job, destination="service") for _ in range(2)]

    assert [answer.status_code for answer in answers] == [200, 200]
    assert service.files == {f"/kept/here/jobs/{job}/{key}": content for key, content in expected().items()}
    assert sorted(service.puts) == sorted(service.files), "each was sent once"
    assert answers[1].json() == answers[0].json()


def test_what_is_missing_is_copied_again_and_nothing_else(house: House) -> None:
    server, job = house.servers[0], house.job(FILES)
    promote(server, job)
    kept = house.place.folder / "kept" / "jobs" / job / "output"
    (kept / "out.nef").unlink()
    before = (kept / "empty.bin").stat().st_ino, (kept / "empty.bin").stat().st_mtime_ns

    answer = promote(server, job)

    assert answer.status_code == 200
    assert in_folder(kept.parent) == expected()
    assert ((kept / "empty.bin").stat().st_ino, (kept / "empty.bin").stat().st_mtime_ns) == before


def test_a_purge_leaves_what_was_promoted(house: House) -> None:
    server, job = house.servers[0], house.job(FILES)
    promote(server, job)

    async def purge(store: Store, blobs: Blobs) -> list[str]:
        [found] = await store.get([job])
        assert found is not None
        late = Change(found, replace(found, purge_at=store.now() - 1, version=found.version + 1))
        assert await store.commit([late]) == [None]
        await Janitor(store, blobs, Transactor(store), orphan_after=0, period=0).tick()
        return await blobs.keys(f"jobs/{job}")

    left = house.with_both(purge)

    assert (left, shown(server, job)["status"]) == ([], 404)
    assert in_folder(house.place.folder / "kept" / "jobs" / job) == expected()


def test_a_new_run_is_not_promoted_and_replaces_what_was(house: House) -> None:
    server, job = house.servers[0], house.job({"a.txt": b"first"})
    promote(server, job)

    async def again(store: Store, blobs: Blobs) -> None:
        await builders.settled(store, job, lambda found: lifecycle.retry(found, stage="*", now=store.now()))
        claim = await builders.claim_one(store)
        await builders.finish(store, claim, await made(blobs, claim, {"a.txt": b"other"}))

    house.with_both(again)
    fresh = shown(server, job)
    answer = promote(server, job)

    assert (fresh["run"], fresh["promoted"], fresh["promoted_object_keys"]) == (2, False, [])
    assert answer.status_code == 200
    assert in_folder(house.place.folder / "kept" / "jobs" / job) == {"output/a.txt": b"other"}, (
        "as long as before, and not the same"
    )


def test_a_server_killed_in_the_middle_has_recorded_nothing_and_another_goes_on(
    house: House, service: FileService
) -> None:
    doomed, other = house.serve(), house.servers[0]
    job = house.job({f"{n}.bin": pattern(1000 + n) for n in range(6)})
    service.faults.extend([None, None, *["silence"] * 100])
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(promote, doomed, job, destination="service")
        until(lambda: len(service.files) == 2 and len(set(service.puts)) == 6)
        doomed.signal(signal.SIGKILL)
        doomed.ended()
        assert isinstance(asked.exception(20), httpx2.TransportError)
    had = set(service.files)
    service.reset(keep=True)

    between = shown(other, job)
    answer = promote(other, job, destination="service")

    assert between["promoted"] is False
    assert answer.json()["promoted"] is True
    assert len(service.files) == 6
    assert not had & set(service.puts), "what had been copied was not copied twice"


# What the file service may do to us; on one store.


@pytest.mark.parametrize("fault", [500, 503, 429, "drop", "silence"])
def test_a_bad_moment_is_waited_out(calling: House, service: FileService, fault: int | str) -> None:
    job = calling.job({"a.bin": pattern(500_000)})
    service.faults.extend([fault, fault])

    answer = promote(calling.servers[0], job)

    assert answer.status_code == 200, answer.text
    assert list(service.files.values()) == [pattern(500_000)]
    assert len(service.puts) == 3


@pytest.mark.parametrize("fault", [500, "drop"])
def test_an_outage_is_502_and_nothing_is_recorded(calling: House, service: FileService, fault: int | str) -> None:
    job = calling.job({"a.bin": b"x" * 100_000})
    service.faults.extend([fault] * 50)

    answer = promote(calling.servers[0], job)

    assert (answer.status_code, answer.json()["type"]) == (502, "urn:packhorse:promote-failed")
    assert int(answer.headers["retry-after"]) > 0
    assert service.url not in answer.text
    assert shown(calling.servers[0], job)["promoted"] is False
    service.faults.clear()
    assert promote(calling.servers[0], job).json()["promoted"] is True


@pytest.mark.parametrize("fault", [403, 404, 413, 422])
def test_a_refusal_is_not_asked_for_twice(calling: House, service: FileService, fault: int) -> None:
    job = calling.job({"a.bin": b"x"})
    service.faults.append(fault)

    assert promote(calling.servers[0], job).status_code == 502
    assert len(service.puts) == 1


@pytest.mark.parametrize("while_sending", [True, False])
def test_a_token_that_is_refused_is_renewed_once(calling: House, service: FileService, while_sending: bool) -> None:
    first, second = calling.job({"a.bin": b"1"}), calling.job({"a.bin": b"2"})
    promote(calling.servers[0], first)
    if while_sending:
        service.faults.append(401)
    else:
        service.revoke()

    answer = promote(calling.servers[0], second)

    assert answer.status_code == 200
    assert len(service.tokens) == 2
    assert set(service.scopes) == {"files.write"}


def test_a_service_that_refuses_every_token_is_502(calling: House, service: FileService) -> None:
    job = calling.job({"a.bin": b"x"})
    service.faults.extend([401] * 50)

    assert promote(calling.servers[0], job).status_code == 502
    assert len(service.puts) == 2


def test_a_token_is_not_used_beyond_its_life(calling: House, service: FileService) -> None:
    service.expires_in = 0

    for n in range(3):
        assert promote(calling.servers[0], calling.job({"a.bin": b"%d" % n})).status_code == 200

    assert len(service.tokens) > 3, "one that has ended already is never sent twice"


@pytest.mark.parametrize("fault", [500, "drop", "silence"])
def test_a_token_service_may_have_bad_moments_too(calling: House, service: FileService, fault: int | str) -> None:
    service.token_faults.append(fault)

    assert promote(calling.servers[0], calling.job({"a.bin": b"x"})).status_code == 200


def test_neither_secret_nor_token_is_ever_shown_or_logged(calling: House, service: FileService) -> None:
    job = calling.job({"a.bin": b"x"})
    service.token_faults.append(400)
    answers = [promote(calling.servers[0], job)]
    service.faults.extend([500, 401])
    answers.append(promote(calling.servers[0], job))

    assert [answer.status_code for answer in answers] == [502, 200]
    until(lambda: any(entry.job_id == job for entry in calling.told()))
    seen = calling.servers[0].log.read_text() + str(calling.told()) + "".join(answer.text for answer in answers)
    assert "did not accept a copy" in seen
    for secret in (SECRET, *service.tokens):
        assert secret not in seen


def test_without_sums_a_file_that_was_not_recorded_is_sent_again(calling: House, service: FileService) -> None:
    service.tells_sums = False
    job = calling.job({"a.bin": b"right"})
    [path] = [f"/kept/here/jobs/{job}/output/a.bin"]
    service.files[path] = b"wrong"

    promote(calling.servers[0], job)
    promote(calling.servers[0], job)

    assert service.files[path] == b"right"
    assert service.puts == [path]


def test_a_file_that_changed_since_is_not_promoted(tmp_path: Path) -> None:
    with housed(tmp_path, promote_to=f"file://{tmp_path / 'kept'}") as house:
        server, job = house.serve(), house.job({"a.bin": pattern(600_000)})
        for path in house.place.blobs.rglob(f"*{job}/output/only/*/0"):
            path.chmod(0o600)
            path.write_bytes(b"y" * 600_000)

        answer = promote(server, job)

        assert answer.status_code == 502
        assert "is not what it was stored as" in server.log.read_text()
    assert in_folder(tmp_path / "kept") == {}


def test_only_what_is_finished_and_has_files_can_be_promoted(calling: House) -> None:
    waiting = calling.with_both(lambda store, _: builders.submit(store)).id
    server = calling.servers[0]

    answers = [promote(server, waiting), promote(server, calling.job({})), promote(server, "nowhere")]

    assert [answer.status_code for answer in answers] == [409, 409, 404]


def test_destinations_have_names(tmp_path: Path) -> None:
    places = f"archive=file://{tmp_path / 'one'},desk=file://{tmp_path / 'two'}"
    with housed(tmp_path, promote_to=places) as house:
        server, job = house.serve(), house.job({"a.txt": b"x"})

        answers = [promote(server, job), promote(server, job, destination="desk")]
        wrong = promote(server, job, destination="cellar")

    assert [answer.status_code for answer in answers] == [200, 200]
    assert answers[1].json()["promoted_object_keys"] == [
        f"file://{tmp_path / place}/jobs/{job}/output/a.txt" for place in ("one", "two")
    ]
    assert (wrong.status_code, wrong.json()["errors"][0]["field"]) == (422, "destination")


def test_without_a_destination_nothing_can_be_promoted(tmp_path: Path) -> None:
    with housed(tmp_path) as house:
        answer = promote(house.serve(), house.job({"a.txt": b"x"}))

    assert (answer.status_code, answer.json()["errors"][0]["field"]) == (422, "destination")


def test_the_command_line_says_where_the_files_are(
    calling: House, service: FileService, capfd: pytest.CaptureFixture[str]
) -> None:
    job, url = calling.job({"a.txt": b"x"}), calling.servers[0].url

    code = cli.run(["promote", job, "--url", url])

    assert code == 0
    assert capfd.readouterr().out.split() == [f"{service.url}/kept/here/jobs/{job}/output/a.txt"]
    assert cli.run(["promote", job, "--to", "cellar", "--url", url]) == 3
    assert "cellar" in capfd.readouterr().err
