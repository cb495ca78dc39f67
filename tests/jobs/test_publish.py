"""The janitor publishes: again if it was kept from it, and never what is gone."""

from __future__ import annotations

from hashlib import sha256

import pytest
from msgspec.structs import replace

from packhorse.background.janitor import PUBLISHED, RESTING, Janitor
from packhorse.blobs.base import Blobs
from packhorse.core import json, lifecycle
from packhorse.core.models import Artifact, Job, Result, Stored
from packhorse.core.plan import Status
from packhorse.errors import BlobUnavailable
from packhorse.jobs.transact import Transactor
from packhorse.store.base import Store
from packhorse.store.collections.workers import get_bookmark
from tests.contract.builders import claim_one, finish, held, plan, settled, stage, submit
from tests.contract.stores import Clock
from tests.worker.builders import EPOCH, id_at, put, retry
from tests.worker.faulty import Faults

PUBLISHING = plan(stage("only"), publish="here")


@pytest.fixture
def janitor(shaky: Store, shaky_blobs: Blobs, transact: Transactor) -> Janitor:
    return Janitor(shaky, shaky_blobs, transact, 600.0, 5.0)


async def completed(store: Store, blobs: Blobs, data: bytes, to: str = "here", name: str = "a.txt") -> Job:
    await submit(store, replace(PUBLISHING, publish=to, fingerprint=to))
    claim = await claim_one(store)
    key = await put(blobs, f"jobs/{claim.job.id}/output/only/{claim.token}/0", data)
    made = Artifact(f"only/{name}", Stored(key, "a.txt", len(data), sha256(data).hexdigest()))
    return await finish(store, claim, Result(b"1", (made,)))


async def published(blobs: Blobs) -> list[str]:
    return [*await blobs.keys("published"), *await blobs.keys("publishing")]


async def deleted(store: Store, janitor: Janitor, job: Job) -> None:
    await settled(store, job.id, lambda now: lifecycle.delete(now, now=store.now()))
    await janitor.tick()


def mark(path: str, n: int) -> str:
    """Of a job that is not in the store."""
    return f"publishing/default/{path}/{id_at(EPOCH, n)}.000001"


async def test_what_could_not_be_published_is_at_the_next_try(
    store: Store, blobs: Blobs, janitor: Janitor, blob_faults: Faults
) -> None:
    job = await completed(store, blobs, b"1")
    blob_faults.refuse("copy", lambda: BlobUnavailable(reason="away"))

    with pytest.raises(BlobUnavailable):
        await janitor.tick()
    between = await held(store, job.id)
    await janitor.tick()

    assert between.has_litter
    assert not (await held(store, job.id)).has_litter
    assert [key for key in await published(blobs) if key.endswith("a.txt")] == ["published/default/here/a.txt"]


async def test_a_job_that_is_deleted_while_it_is_published_leaves_nothing(
    store: Store, blobs: Blobs, janitor: Janitor, blob_faults: Faults
) -> None:
    job = await completed(store, blobs, b"1")
    other = Janitor(store, blobs, Transactor(store), 600.0, 5.0)

    async def gone() -> None:
        await settled(store, job.id, lambda now: lifecycle.delete(now, now=store.now()))
        await other.tick()

    blob_faults.before("put", gone)

    await janitor.tick()

    assert await store.get([job.id]) == [None]
    assert await published(blobs) == []


async def test_what_was_published_stays_when_a_retry_beats_the_purge(
    store: Store, blobs: Blobs, janitor: Janitor, clock: Clock, faults: Faults
) -> None:
    job = await completed(store, blobs, b"1")
    await janitor.tick()
    there = await published(blobs)
    assert job.purge_at is not None
    clock.now = job.purge_at
    faults.after("purgeable", lambda: retry(store, job.id, "*"))

    await janitor.tick()

    assert (await held(store, job.id)).status is Status.PENDING
    assert await published(blobs) == there
    assert "published/default/here/a.txt" in there


async def test_a_newer_job_that_comes_in_the_middle_wins(
    store: Store, blobs: Blobs, janitor: Janitor, blob_faults: Faults
) -> None:
    await completed(store, blobs, b"older")
    other = Janitor(store, blobs, Transactor(store), 600.0, 5.0)

    async def faster() -> None:
        await completed(store, blobs, b"newer")
        await other.tick()

    blob_faults.before("copy", faster)

    await janitor.tick()

    assert b"".join([piece async for piece in blobs.read("published/default/here/a.txt")]) == b"newer"


async def test_what_is_there_already_is_not_copied_again(
    store: Store, blobs: Blobs, janitor: Janitor, blob_faults: Faults
) -> None:
    job = await completed(store, blobs, b"1")
    await Janitor(store, blobs, Transactor(store), 600.0, 5.0)._publish(job, (await store.results([job.id]))[job.id])

    await janitor.tick()

    assert "copy" not in blob_faults.names()
    assert len(await published(blobs)) == 2


async def test_a_mark_that_cannot_be_read_hides_nobody_and_goes_with_its_job(
    store: Store, blobs: Blobs, janitor: Janitor
) -> None:
    await put(blobs, mark("here", 1), b"{")
    await put(blobs, mark("there", 2), b'{"a.txt": 1}')
    await completed(store, blobs, b"1")

    wait = await janitor.tick()

    assert wait == 5.0
    assert len(await published(blobs)) == 2
    assert b"".join([piece async for piece in blobs.read("published/default/here/a.txt")]) == b"1"


async def test_the_newest_mark_that_can_be_read_is_shown(store: Store, blobs: Blobs, janitor: Janitor) -> None:
    job = await completed(store, blobs, b"1")
    await put(blobs, f"publishing/default/here/{job.id}.000002", b"\xff")

    await janitor.tick()

    assert b"".join([piece async for piece in blobs.read("published/default/here/a.txt")]) == b"1"


async def test_a_stray_that_cannot_be_withdrawn_keeps_nothing_else_from_being_done(
    store: Store, blobs: Blobs, janitor: Janitor, blob_faults: Faults, faults: Faults
) -> None:
    stuck, other = await put(blobs, mark("a", 1), b"{}"), await put(blobs, mark("b", 2), b"{}")
    blob_faults.refuse("delete", lambda: BlobUnavailable(reason="away"))

    with pytest.raises(BlobUnavailable):
        await janitor.tick()

    assert stuck in await published(blobs)
    assert other not in await published(blobs)
    assert (await get_bookmark(store, PUBLISHED) or "").startswith(RESTING)
    assert {"trim", "scan failure_action", "forget_failures"} <= {*faults.names()}
    assert "abandon" in blob_faults.names()


DEEP = "d/" * 30 + "a.txt"
LONG = "/".join(["n" * 199, "n" * 199, "n" * 190 + ".txt"])


@pytest.mark.parametrize(("to", "name"), [("here", DEEP), ("/".join(["{job}"] * 8), LONG)], ids=["parts", "bytes"])
async def test_a_file_whose_name_is_too_much_for_the_path_is_published_by_its_hash(
    store: Store, blobs: Blobs, janitor: Janitor, to: str, name: str
) -> None:
    job = await completed(store, blobs, b"1", to, name)

    await janitor.tick()
    shown = await blobs.keys("published")
    await deleted(store, janitor, job)

    assert [key.rpartition("/")[2] for key in shown] == [f"{sha256(name.encode()).hexdigest()[:32]}.txt"]
    assert await store.get([job.id]) == [None]
    assert await published(blobs) == []


async def test_a_job_whose_mark_names_what_no_object_can_be_called_goes_all_the_same(
    store: Store, blobs: Blobs, janitor: Janitor
) -> None:
    job = await completed(store, blobs, b"1", name=DEEP)
    [result] = (await store.results([job.id]))[job.id].values()
    said = json.encode({DEEP: result.artifacts[0].file, "a.txt": result.artifacts[0].file})
    await put(blobs, f"publishing/default/here/{job.id}.{job.run:06}", said)

    await janitor.tick()
    shown = await blobs.keys("published")
    await deleted(store, janitor, job)

    assert shown == ["published/default/here/a.txt"]
    assert await store.get([job.id]) == [None]
    assert await published(blobs) == []


@pytest.mark.parametrize(
    "to", ["a/" * 40 + "a", "{job}" * 10, "/".join(["{job}"] * 26)], ids=["parts", "part", "bytes"]
)
async def test_a_job_with_a_path_where_nothing_can_be_is_tidied_and_purged(
    store: Store, blobs: Blobs, janitor: Janitor, to: str
) -> None:
    job = await completed(store, blobs, b"1", to)

    await janitor.tick()
    between = await held(store, job.id)
    await deleted(store, janitor, job)

    assert not between.has_litter
    assert await store.get([job.id]) == [None]
