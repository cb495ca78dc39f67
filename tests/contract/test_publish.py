"""Files under a path of their author's choosing: on every store and in both sorts of objects, and the newest wins."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from hashlib import sha256
from pathlib import Path

import pytest
from msgspec.structs import replace

from packhorse.background.janitor import Janitor
from packhorse.blobs.base import Blobs, is_key
from packhorse.blobs.local import Folder
from packhorse.core import lifecycle, publish_path
from packhorse.core.models import Artifact, Firing, Job, Result, Stored, TaskId
from packhorse.core.plan import Defaults, Status, fill_plan
from packhorse.errors import NoDestination, WrongDeployment
from packhorse.jobs.artifacts import KEPT, MARKS, Publisher, published_files
from packhorse.jobs.deployment import DESTINATION_MARK, PublishDestination, claim
from packhorse.jobs.transact import Transactor
from packhorse.store.base import Store
from packhorse.store.collections.workers import put_bookmark
from packhorse.store.sqlite import SqliteStore
from tests.contract import blob_fixtures
from tests.contract.blob_fixtures import content, stream
from tests.contract.builders import SPEC, claim_one, fail, finish, held, needs, plan, settled, stage, submit
from tests.contract.schedules import claimed, created, fired

url, another, blobs = blob_fixtures.url, blob_fixtures.another, blob_fixtures.blobs

STORED = Stored("k", "n", 1, "")
DAY = {status: 86_400.0 for status in Status if status.is_terminal}
PUBLISHING = plan(stage("only"), publish="{schedule}/{date}", keep=DAY)


@pytest.fixture
def janitor(store: Store, blobs: Blobs) -> Janitor:
    return Janitor(store, blobs, Transactor(store), 600.0, 5.0)


async def output(blobs: Blobs, job: Job, token: str, **made: bytes) -> Result:
    """Files that an attempt has stored, by name and with a suffix."""
    found = []
    for name, data in made.items():
        key = f"jobs/{job.id}/output/only/{token}/{name}"
        await blobs.put(key, stream(data))
        full = name.replace("_", ".")
        found.append(Artifact(f"only/{full}", Stored(key, full, len(data), sha256(data).hexdigest())))
    return Result(b"1", tuple(found))


async def completed(store: Store, blobs: Blobs, path: str, **made: bytes) -> Job:
    job = await submit(store, replace(PUBLISHING, publish=path, fingerprint=path))
    claim = await claim_one(store)
    assert claim.job.id == job.id
    return await finish(store, claim, await output(blobs, job, claim.token, **made))


async def shown(blobs: Blobs, path: str = "") -> dict[str, bytes]:
    root = f"{publish_path.ROOT}/default{path and '/'}{path}"
    return {key.removeprefix(f"{root}/"): await content(blobs, key) for key in await blobs.keys(root)}


async def deleted(store: Store, job: Job) -> None:
    await settled(store, job.id, lambda now: lifecycle.delete(now, now=store.now()))


async def test_files_of_a_scheduled_job_are_found_by_schedule_and_day_of_the_tick(
    store: Store,
    blobs: Blobs,
    janitor: Janitor,
) -> None:
    schedule = await created(store, "apod-daily", cron="0 8 * * *", now=1_767_225_600.0)
    _, run = await claimed(store, schedule, 1_767_254_400.0)
    await fired(store, run, plan=PUBLISHING)
    claim = await claim_one(store)
    job = await finish(store, claim, await output(blobs, claim.job, claim.token, original_jpg=b"jpg", meta_json=b"{}"))

    await janitor.tick()

    assert await shown(blobs) == {
        "apod-daily/2026-01-01/original.jpg": b"jpg",
        "apod-daily/2026-01-01/meta.json": b"{}",
    }
    assert not (await held(store, job.id)).has_litter


async def test_the_newest_job_wins_whole_whoever_is_last(store: Store, blobs: Blobs, janitor: Janitor) -> None:
    first = await completed(store, blobs, "a", original_png=b"1", meta_json=b"1")
    second = await completed(store, blobs, "a", original_jpg=b"2", meta_json=b"2")
    results = {job.id: (await store.results([job.id]))[job.id] for job in (first, second)}

    await janitor.tick()
    after = await shown(blobs, "a")
    await Publisher(blobs).publish(first, results[first.id])  # one that was stopped in the middle, and goes on
    late = await shown(blobs, "a")

    assert after == late == {"original.jpg": b"2", "meta.json": b"2"}


async def test_any_number_may_publish_at_once(store: Store, blobs: Blobs, another: Callable[[], Blobs]) -> None:
    jobs = [await completed(store, blobs, "a", meta_json=f"{n}".encode() * (1 + n % 2)) for n in range(4)]
    results = await store.results([job.id for job in jobs])

    handles = [Publisher(another()) for _ in range(2)]
    await asyncio.gather(*(each.publish(job, results[job.id]) for each in handles for job in jobs))
    await handles[0].publish(jobs[0], results[jobs[0].id])

    assert await shown(blobs, "a") == {"meta.json": b"33"}
    assert len(await blobs.keys(MARKS)) <= KEPT + 1


async def test_what_was_published_goes_with_its_job(store: Store, blobs: Blobs, janitor: Janitor) -> None:
    first = await completed(store, blobs, "a", original_png=b"1", meta_json=b"1")
    await janitor.tick()
    second = await completed(store, blobs, "a", original_jpg=b"2", meta_json=b"2")
    await janitor.tick()

    await deleted(store, second)
    await janitor.tick()
    without = await shown(blobs, "a")
    await deleted(store, first)
    await janitor.tick()

    assert without == {"original.png": b"1", "meta.json": b"1"}
    assert await blobs.keys(publish_path.ROOT) == await blobs.keys(MARKS) == await blobs.keys("jobs") == []


async def test_a_superseded_job_goes_without_touching_the_folder(store: Store, blobs: Blobs, janitor: Janitor) -> None:
    jobs = [await completed(store, blobs, "a", meta_json=b"%d" % n) for n in range(4)]
    await janitor.tick()

    for job in jobs[:3]:
        await deleted(store, job)
    await janitor.tick()

    assert await shown(blobs, "a") == {"meta.json": b"3"}


async def test_a_job_without_files_leaves_what_is_there(store: Store, blobs: Blobs, janitor: Janitor) -> None:
    await completed(store, blobs, "a", original_jpg=b"1")
    await completed(store, blobs, "a")

    await janitor.tick()

    assert await shown(blobs, "a") == {"original.jpg": b"1"}


async def test_another_run_publishes_anew(store: Store, blobs: Blobs, janitor: Janitor) -> None:
    job = await completed(store, blobs, "a", original_jpg=b"1")
    await janitor.tick()
    await settled(store, job.id, lambda now: lifecycle.retry(now, stage="*", now=store.now()))
    claim = await claim_one(store)
    await finish(store, claim, await output(blobs, job, claim.token, original_jpg=b"2"))

    await janitor.tick()
    after = await shown(blobs, "a")
    await deleted(store, job)
    await janitor.tick()

    assert after == {"original.jpg": b"2"}
    assert await blobs.keys(publish_path.ROOT) == await blobs.keys(MARKS) == []


async def test_what_a_killed_janitor_has_published_of_a_job_that_is_no_more_is_found(
    store: Store,
    blobs: Blobs,
    janitor: Janitor,
) -> None:
    job = await completed(store, blobs, "a", original_jpg=b"1")
    results = (await store.results([job.id]))[job.id]
    await deleted(store, job)
    await janitor.tick()
    await blobs.put("jobs/x/y", stream(b"1"))
    published = {at: replace(each, files=_elsewhere(each)) for at, each in results.items()}
    await Publisher(blobs).publish(job, published)
    before = await shown(blobs, "a")
    await put_bookmark(store, "published", "")

    await janitor.tick()

    assert before == {"original.jpg": b"1"}
    assert await blobs.keys(publish_path.ROOT) == await blobs.keys(MARKS) == []


def _elsewhere(result: Result) -> tuple[Artifact, ...]:
    return tuple(replace(each, file=replace(each.file, key="jobs/x/y")) for each in result.files)


async def test_a_job_that_failed_publishes_nothing(store: Store, blobs: Blobs, janitor: Janitor) -> None:
    two = plan(stage("onnx"), stage("bie", needs("onnx")), publish="a", keep=DAY)
    job = await submit(store, two)
    claim = await claim_one(store)
    await finish(store, claim, await output(blobs, job, claim.token, original_jpg=b"1"))
    failed = await fail(store, await claim_one(store))
    assert failed.has_litter  # so the janitor looks at it

    await janitor.tick()

    assert await blobs.keys(publish_path.ROOT) == []


def test_of_two_files_of_a_name_the_later_stage_has_it_and_no_file_is_a_folder_of_another() -> None:
    two = plan(stage("onnx"), stage("bie", needs("onnx")))
    job = lifecycle.submit(two, SPEC, job_id="j", user="ann", now=0.0).after

    def made(*names: str) -> Result:
        return Result(b"1", tuple(Artifact(name, Stored(name, name, 1, "")) for name in names))

    found = published_files(
        "published/default/a",
        job,
        {TaskId("bie"): made("bie/x", "bie/sub/y"), TaskId("onnx"): made("onnx/x", "onnx/sub", "onnx/z")},
    )

    assert {name: file.key for name, file in found.items()} == {"x": "bie/x", "sub/y": "bie/sub/y", "z": "onnx/z"}


@pytest.mark.parametrize(
    "pattern", ["", "/a", "a/", "a//b", "../a", "{user}", "a b", ".a", "{schedule", "a/{date:x}", "x" * 201]
)
def test_a_path_that_is_none_is_refused(pattern: str) -> None:
    with pytest.raises(ValueError, match="publish= is a path"):
        publish_path.check_pattern(pattern)


@pytest.mark.parametrize(
    "pattern", ["a/" * 24 + "a", "{schedule}" * 5, "/".join(["{schedule}"] * 10)], ids=["parts", "part", "bytes"]
)
def test_a_path_in_which_nothing_could_be_is_refused(pattern: str) -> None:
    with pytest.raises(ValueError, match="publish= is too long"):
        publish_path.check_pattern(pattern)


@pytest.mark.parametrize(
    "pattern", ["a/" * 23 + "a", "{schedule}" * 4, "/".join(["{schedule}"] * 9)], ids=["parts", "part", "bytes"]
)
def test_any_file_can_be_published_in_a_path_that_is_taken(pattern: str) -> None:
    long = plan(stage("only"), publish=publish_path.check_pattern(pattern))
    job = lifecycle.submit(long, SPEC, job_id="j", user="ann", tenant="t" * publish_path.MAX_PATTERN, now=0.0).after
    to = publish_path.publish_folder(replace(job, firing=Firing("s" * 63, 0.0)))

    [name] = published_files(
        to or "", job, {TaskId("only"): Result(b"1", (Artifact("only/" + "d/" * 40 + "x", STORED),))}
    )

    assert is_key(f"{to}/{name}")


def test_no_two_tenants_share_a_folder() -> None:
    tenants = ["a", "a/b", "..", ".", "%2E", "A", "é", "a" * 300, "a" * 301]

    folders = [publish_path.tenant_folder(tenant) for tenant in tenants]

    assert len(set(folders)) == len(tenants)
    assert all("/" not in each and not each.startswith(".") and len(each) <= 200 for each in folders)


@pytest.fixture
async def destination(store: Store, tmp_path: Path) -> AsyncIterator[PublishDestination]:
    there = Folder(tmp_path / "ns-temp-bucket")
    yield PublishDestination(store, there, "here")
    await there.close()


def publishing(store: Store, blobs: Blobs, destination: PublishDestination | None) -> Janitor:
    return Janitor(store, blobs, Transactor(store), 600.0, 5.0, destination=destination)


def at_root(path: str) -> str:
    """As a deployment with a destination fills it in at submit."""
    return fill_plan(replace(PUBLISHING, publish=path), Defaults(has_destination=True)).publish


async def found_in(there: Blobs, folder: str = "apod-daily") -> dict[str, bytes]:
    return {key: await content(there, key) for key in await there.keys(folder)}


async def test_a_destination_has_the_files_at_its_root_and_loses_them_with_the_job(
    store: Store, blobs: Blobs, destination: PublishDestination
) -> None:
    janitor, path, there = publishing(store, blobs, destination), at_root("apod-daily/2025-09-04"), destination.blobs

    first = await completed(store, blobs, path, original_jpg=b"old", meta_json=b"{}")
    await janitor.tick()
    before = await found_in(there)
    second = await completed(store, blobs, path, original_jpg=b"new")
    await janitor.tick()
    after = await found_in(there)
    await deleted(store, second)
    await janitor.tick()
    again = await found_in(there)
    await deleted(store, first)
    await janitor.tick()

    assert before == {"apod-daily/2025-09-04/original.jpg": b"old", "apod-daily/2025-09-04/meta.json": b"{}"}
    assert after == {"apod-daily/2025-09-04/original.jpg": b"new"}
    assert again == before
    assert await found_in(there) == {}
    assert await shown(blobs) == {}


async def test_a_worker_without_the_destination_leaves_the_job_to_one_that_has_it(
    store: Store, blobs: Blobs, destination: PublishDestination
) -> None:
    without, having = publishing(store, blobs, None), publishing(store, blobs, destination)
    job = await completed(store, blobs, at_root("apod-daily/2025-09-04"), original_jpg=b"jpg")

    with pytest.raises(NoDestination, match="PACKHORSE_PUBLISH_TO is not set"):
        await without.tick()
    waiting = (await held(store, job.id)).has_litter
    await having.tick()
    published = await found_in(destination.blobs)
    await deleted(store, job)
    with pytest.raises(NoDestination):
        await without.tick()
    kept = await found_in(destination.blobs)
    await having.tick()

    assert (waiting, published) == (True, {"apod-daily/2025-09-04/original.jpg": b"jpg"})
    assert (kept, await found_in(destination.blobs)) == (published, {})
    assert await store.get([job.id]) == [None]


async def test_a_destination_of_another_deployment_is_not_touched(
    store: Store, blobs: Blobs, destination: PublishDestination, tmp_path: Path
) -> None:
    owner = await SqliteStore.open(tmp_path / "owner.db")
    await claim(owner, Folder(tmp_path / "theirs"), "sqlite:///owner.db")
    await PublishDestination(owner, destination.blobs, "sqlite:///owner.db").claim()
    await destination.blobs.put("apod-daily/2025-09-04/original.jpg", stream(b"theirs"))
    await claim(store, blobs, "here")
    job = await completed(store, blobs, at_root("apod-daily/2025-09-04"), original_jpg=b"ours")

    with pytest.raises(WrongDeployment, match=r"owner\.db"):
        await destination.claim()
    with pytest.raises(NoDestination, match=r"owner\.db"):
        await publishing(store, blobs, destination).tick()
    theirs = await found_in(destination.blobs)
    await destination.adopt()
    await publishing(store, blobs, destination).tick()

    assert theirs == {"apod-daily/2025-09-04/original.jpg": b"theirs"}
    assert await found_in(destination.blobs) == {"apod-daily/2025-09-04/original.jpg": b"ours"}
    assert not (await held(store, job.id)).has_litter
    await owner.close()


async def test_a_lifecycle_rule_may_delete_files_and_the_mark_of_a_destination(
    store: Store, blobs: Blobs, destination: PublishDestination
) -> None:
    await claim(store, blobs, "here")
    await destination.claim()
    janitor, path = publishing(store, blobs, destination), at_root("apod-daily/2025-09-04")
    first = await completed(store, blobs, path, original_jpg=b"old")
    await janitor.tick()

    await destination.blobs.delete([DESTINATION_MARK, "apod-daily/2025-09-04/original.jpg"])
    await completed(store, blobs, path, original_jpg=b"new")
    await deleted(store, first)
    await janitor.tick()

    assert await found_in(destination.blobs) == {"apod-daily/2025-09-04/original.jpg": b"new"}
    assert await destination.blobs.size(DESTINATION_MARK) is not None


@pytest.mark.parametrize("tenant", ["acme", "\u00e9t\u00e9", "50%", "x" * 300])
@pytest.mark.parametrize("is_elsewhere", [False, True], ids=["in-blobs", "in-destination"])
async def test_what_a_lost_job_of_any_tenant_published_is_withdrawn(
    store: Store, blobs: Blobs, destination: PublishDestination, tenant: str, is_elsewhere: bool
) -> None:
    path = at_root("apod/2025") if is_elsewhere else "apod/2025"
    spoken = replace(PUBLISHING, publish=path, fingerprint=path)
    await submit(store, spoken, tenant=tenant)
    taken = await claim_one(store)
    job = await finish(store, taken, await output(blobs, taken.job, taken.token, meta_json=b"{}"))
    publisher = Publisher(blobs, destination)
    await publisher.publish(job, (await store.results([job.id]))[job.id])
    folder = publish_path.publish_folder(job) or ""
    key, there = f"{folder}/meta.json".removeprefix("/"), destination.blobs if is_elsewhere else blobs
    before = await there.size(key)

    [mark] = await blobs.keys(MARKS)
    await publisher.withdraw_stray(mark)

    assert (before, await there.size(key)) == (2, None)
    assert await blobs.keys(MARKS) == []


def test_only_the_files_of_other_tenants_are_in_folders_of_their_own() -> None:
    def folder(tenant: str) -> str | None:
        made = lifecycle.submit(
            replace(PUBLISHING, publish="/{pipeline}"), SPEC, job_id="1", user="ann", now=1000.0, tenant=tenant
        )
        return publish_path.publish_folder(made.after)

    assert (folder("default"), folder("acme")) == ("/convert", "/%acme/convert")
