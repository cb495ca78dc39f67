"""Bringing a job in: a refusal leaves nothing behind, and nothing is removed on a guess."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from packhorse.background.janitor import Janitor
from packhorse.blobs.base import Blobs
from packhorse.core.models import Job
from packhorse.core.plan import Plan, Status
from packhorse.define.submit import Options
from packhorse.errors import (
    BlobUnavailable,
    InvalidInput,
    KeyReused,
    SlotTaken,
    StoreUnavailable,
    TooLarge,
    UnknownOutcome,
)
from packhorse.jobs.submit import NewJob
from packhorse.jobs.transact import Transactor
from packhorse.settings import Settings
from packhorse.store.base import Store
from tests.contract.blob_fixtures import content
from tests.contract.builders import ONE, SLOTTED, cancel, claim_one, dump, held, ids, submit, words
from tests.contract.stores import Clock
from tests.worker.builders import EPOCH, chunks, jobs, objects, submit_file
from tests.worker.faulty import Faults

PARAMETERS = b'{"text":{"$file":0}}'
ANN = Options(user="ann")


def new_job(store: Store, blobs: Blobs, **limits: Any) -> NewJob:
    return NewJob(store, blobs, Settings(**limits))


async def enter(entering: NewJob, *files: AsyncIterator[bytes]) -> Job:
    async with entering:
        for n, file in enumerate(files):
            await entering.upload(f"text{n}", "a.txt", file)
        return await entering.admit(ONE, PARAMETERS, ANN)


# Let in


async def test_an_admitted_job_has_its_file_and_can_be_claimed(store: Store, blobs: Blobs) -> None:
    async with new_job(store, blobs) as entering:
        reference = await entering.upload("text", "a.txt", chunks(b"con", b"tent"))
        job = await entering.admit(ONE, PARAMETERS, ANN, tenant="acme", origin="page")

    spec = (await store.specs([job.id]))[job.id]
    [given] = spec.inputs
    assert reference == {"$file": 0}
    assert (job.id, job.user, job.tenant, job.status) == (entering.job_id, "ann", "acme", Status.PENDING)
    assert (spec.parameters, spec.origin) == (PARAMETERS, "page")
    assert (given.parameter, given.file.name, given.file.size) == ("text", "a.txt", 7)
    assert await content(blobs, given.file.key) == b"content"
    assert await objects(blobs) == [given.file.key]
    assert (await claim_one(store)).spec == spec


async def test_files_of_one_parameter_keep_their_order_and_do_not_meet(store: Store, blobs: Blobs) -> None:
    async with new_job(store, blobs) as entering:
        references = [await entering.upload("pages", "same.txt", chunks(text)) for text in (b"one", b"two")]
        other = await entering.upload("cover", "same.txt", chunks(b"three"))
        job = await entering.admit(ONE, b"{}", ANN)

    inputs = (await store.specs([job.id]))[job.id].inputs
    assert [*references, other] == [{"$file": 0}, {"$file": 1}, {"$file": 2}]
    assert [(each.parameter, each.index) for each in inputs] == [("pages", 0), ("pages", 1), ("cover", 0)]
    assert [await content(blobs, each.file.key) for each in inputs] == [b"one", b"two", b"three"]


async def test_a_file_of_this_machine_is_taken_as_it_is(store: Store, blobs: Blobs, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"content")

    async with new_job(store, blobs) as entering:
        await entering.take("text", tmp_path / "a.txt", "b.txt")
        job = await entering.admit(ONE, PARAMETERS, ANN)

    [given] = (await store.specs([job.id]))[job.id].inputs
    assert given.file.name == "b.txt"
    assert await content(blobs, given.file.key) == b"content"


async def test_an_empty_file_is_a_file(store: Store, blobs: Blobs) -> None:
    job = await submit_file(store, blobs, b"")

    [given] = (await store.specs([job.id]))[job.id].inputs
    assert given.file.size == 0
    assert await content(blobs, given.file.key) == b""


@pytest.mark.parametrize(
    ("name", "kept"),
    [
        ("../../etc/passwd", "passwd"),
        ("C:\\temp\\a.txt", "a.txt"),
        ("a\x00b\n.txt", "ab.txt"),
        ("..", "file"),
        ("", "file"),
        ("invoice\u202efdp.exe", "invoicefdp.exe"),
    ],
)
async def test_a_name_is_made_harmless_and_does_not_choose_where_the_file_lies(
    store: Store, blobs: Blobs, name: str, kept: str
) -> None:
    job = await submit_file(store, blobs, name=name)

    [given] = (await store.specs([job.id]))[job.id].inputs
    assert given.file.name == kept
    assert given.file.key.startswith(f"jobs/{job.id}/input/text.0")
    assert given.file.key.isascii()
    assert await objects(blobs) == [given.file.key]


# Refused


async def test_a_taken_slot_leaves_no_object_and_no_job(store: Store, blobs: Blobs) -> None:
    first = await submit(store, SLOTTED)

    with pytest.raises(SlotTaken) as refused:
        await submit_file(store, blobs, plan=SLOTTED)

    assert refused.value.facts == {"active_job_id": first.id}
    assert await objects(blobs) == []
    assert ids(await jobs(store)) == [first.id]


async def test_a_file_over_the_limit_leaves_no_object_and_no_job(store: Store, blobs: Blobs) -> None:
    with pytest.raises(TooLarge):
        await enter(new_job(store, blobs, file_limit=4), chunks(b"1234"), chunks(b"123", b"45"))

    assert await objects(blobs) == []
    assert await jobs(store) == []


async def test_a_file_of_this_machine_over_the_limit_leaves_no_object(
    store: Store, blobs: Blobs, tmp_path: Path
) -> None:
    (tmp_path / "long").write_bytes(b"12345")

    async def enters() -> None:
        async with new_job(store, blobs, file_limit=4) as entering:
            await entering.upload("small", "b.txt", chunks(b"1234"))
            await entering.take("text", tmp_path / "long", "a.txt")

    with pytest.raises(TooLarge):
        await enters()

    assert await objects(blobs) == []


async def test_parameters_over_the_limit_leave_no_object_and_no_job(store: Store, blobs: Blobs) -> None:
    limit = len(PARAMETERS) - 1

    with pytest.raises(TooLarge) as refused:
        await enter(new_job(store, blobs, parameters_limit=limit), chunks(b"content"))

    assert refused.value.facts == {"field": "parameters", "limit": limit}
    assert await objects(blobs) == []
    assert await jobs(store) == []


async def test_input_found_invalid_after_the_upload_leaves_no_object(store: Store, blobs: Blobs) -> None:
    async def enters() -> None:
        async with new_job(store, blobs) as entering:
            await entering.upload("text", "a.txt", chunks(b"content"))
            raise InvalidInput("not in the schema", field="speed")

    with pytest.raises(InvalidInput):
        await enters()

    assert await objects(blobs) == []


async def test_a_sender_that_breaks_off_leaves_no_object(store: Store, blobs: Blobs) -> None:
    async def broken() -> AsyncIterator[bytes]:
        yield b"con"
        raise ConnectionResetError

    with pytest.raises(ConnectionResetError):
        await enter(new_job(store, blobs), chunks(b"whole"), broken())

    assert await objects(blobs) == []


async def test_an_object_store_that_is_away_is_told_and_the_store_is_not_touched(
    store: Store, shaky: Store, shaky_blobs: Blobs, faults: Faults, blob_faults: Faults
) -> None:
    before = await dump(store)
    blob_faults.refuse("put", lambda: BlobUnavailable(reason="away"))
    blob_faults.refuse("delete_all", lambda: BlobUnavailable(reason="away"))

    with pytest.raises(BlobUnavailable):
        await submit_file(shaky, shaky_blobs)

    assert faults.calls == []
    assert await dump(store) == before


async def test_a_store_that_is_away_leaves_no_object(shaky: Store, blobs: Blobs, faults: Faults) -> None:
    faults.refuse("commit", StoreUnavailable)

    with pytest.raises(StoreUnavailable):
        await submit_file(shaky, blobs)

    assert await objects(blobs) == []


# The same again


@pytest.mark.parametrize("plan", [ONE, SLOTTED])
async def test_a_repeated_key_gives_the_first_job_and_removes_what_the_second_brought(
    store: Store, blobs: Blobs, plan: Plan
) -> None:
    first = await submit_file(store, blobs, plan=plan, key="k")
    kept = await objects(blobs)

    second = await submit_file(store, blobs, plan=plan, key="k")

    assert second == first
    assert await objects(blobs) == kept
    assert ids(await jobs(store)) == [first.id]
    assert await words(store, first.id) == ["submitted"]


async def test_a_repeated_key_gives_the_first_job_even_when_that_has_ended(store: Store, blobs: Blobs) -> None:
    first = await submit_file(store, blobs, key="k")
    ended = await cancel(store, first.id)

    assert await submit_file(store, blobs, key="k") == ended


async def test_two_submits_with_one_key_at_once_are_one_job(store: Store, blobs: Blobs) -> None:
    made = await asyncio.gather(*(submit_file(store, blobs, key="k") for _ in range(8)))

    [job] = await jobs(store)
    [given] = (await store.specs([job.id]))[job.id].inputs
    assert {each.id for each in made} == {job.id}
    assert await objects(blobs) == [given.file.key]


@pytest.mark.parametrize(
    "other",
    [{"content": b"other"}, {"name": "b.txt"}, {"priority": 1}, {"delay": 5.0}, {"metadata": {"a": 1}}],
)
async def test_a_key_used_for_something_else_is_refused_and_leaves_no_object(
    store: Store, blobs: Blobs, other: dict[str, Any]
) -> None:
    first = await submit_file(store, blobs, key="k")
    kept = await objects(blobs)

    with pytest.raises(KeyReused):
        await submit_file(store, blobs, **{"key": "k", **other})

    assert await objects(blobs) == kept
    assert ids(await jobs(store)) == [first.id]


async def test_a_key_of_another_tenant_is_another_key(store: Store, blobs: Blobs) -> None:
    made = []
    for tenant in ("one", "two"):
        async with new_job(store, blobs) as entering:
            made.append(await entering.admit(ONE, b"{}", Options(user="ann", key="k"), tenant=tenant))

    assert made[0].id != made[1].id


# Not knowing


async def test_a_lost_answer_of_a_job_that_is_there_gives_the_job_and_keeps_its_objects(
    store: Store, shaky: Store, blobs: Blobs, faults: Faults
) -> None:
    faults.lose_answer("commit", UnknownOutcome)

    job = await submit_file(shaky, blobs)

    [given] = (await store.specs([job.id]))[job.id].inputs
    assert await held(store, job.id) == job
    assert await content(blobs, given.file.key) == b"content"


async def test_a_lost_answer_that_each_change_is_told_gives_the_job_too(
    store: Store, shaky: Store, blobs: Blobs, faults: Faults
) -> None:
    faults.alter("commit", lambda _answers: [UnknownOutcome()])

    job = await submit_file(shaky, blobs)

    assert await held(store, job.id) == job
    assert len(await objects(blobs)) == 1


async def test_a_lost_answer_of_a_job_that_is_not_there_is_raised_and_its_objects_left_to_the_sweep(
    store: Store, shaky: Store, blobs: Blobs, faults: Faults, clock: Clock
) -> None:
    faults.refuse("commit", UnknownOutcome)

    with pytest.raises(UnknownOutcome):
        await submit_file(shaky, blobs)

    assert await jobs(store) == []
    assert len(await objects(blobs)) == 1
    clock.now = 2 * EPOCH
    await Janitor(store, blobs, Transactor(store), orphan_after=60.0, period=1.0).tick()
    assert await objects(blobs) == []


async def test_a_lost_answer_that_cannot_be_looked_up_leaves_the_objects_of_a_live_job(
    store: Store, shaky: Store, blobs: Blobs, faults: Faults
) -> None:
    faults.lose_answer("commit", UnknownOutcome)
    faults.refuse("get", StoreUnavailable)

    with pytest.raises(UnknownOutcome):
        await submit_file(shaky, blobs)

    [job] = await jobs(store)
    [given] = (await store.specs([job.id]))[job.id].inputs
    assert await content(blobs, given.file.key) == b"content"


async def test_a_caller_that_goes_away_while_the_job_is_committed_does_not_take_its_objects_along(
    store: Store, shaky: Store, blobs: Blobs, faults: Faults
) -> None:
    made = asyncio.Event()

    async def lingers() -> None:
        made.set()
        await asyncio.Event().wait()

    faults.after("commit", lingers)
    asked = asyncio.create_task(submit_file(shaky, blobs))
    await made.wait()

    asked.cancel()
    await asyncio.wait([asked])

    assert asked.cancelled()
    [job] = await jobs(store)
    [given] = (await store.specs([job.id]))[job.id].inputs
    assert await content(blobs, given.file.key) == b"content"


async def test_a_caller_that_goes_away_before_that_leaves_no_object(store: Store, blobs: Blobs) -> None:
    uploaded = asyncio.Event()

    async def enters() -> None:
        async with new_job(store, blobs) as entering:
            await entering.upload("text", "a.txt", chunks(b"content"))
            uploaded.set()
            await asyncio.Event().wait()

    asked = asyncio.create_task(enters())
    await uploaded.wait()

    asked.cancel()
    await asyncio.wait([asked])

    assert await objects(blobs) == []


async def test_a_first_job_that_cannot_be_looked_up_is_no_reason_to_keep_what_the_second_brought(
    store: Store, shaky: Store, blobs: Blobs, faults: Faults
) -> None:
    await submit_file(store, blobs, key="k")
    kept = await objects(blobs)
    faults.refuse("get", StoreUnavailable)

    with pytest.raises(UnknownOutcome):
        await submit_file(shaky, blobs, key="k")

    assert await objects(blobs) == kept


# What no store could keep


@pytest.mark.parametrize(
    ("parameters", "tenant", "field"),
    [
        (b'{"text":"a\\u0000b"}', "default", "text"),
        (b'{"turns":[{"speaker":"\\u0000"}]}', "default", "turns[0].speaker"),
        (b"{}", "a\0", "tenant_id"),
    ],
)
async def test_a_nul_is_refused_by_its_place_and_leaves_nothing_behind(
    store: Store, blobs: Blobs, parameters: bytes, tenant: str, field: str
) -> None:
    async def entered() -> None:
        async with new_job(store, blobs) as entering:
            await entering.upload("file", "a.txt", chunks(b"content"))
            await entering.admit(ONE, parameters, Options(), tenant=tenant)

    with pytest.raises(InvalidInput, match="NUL") as refused:
        await entered()

    assert [mistake["field"] for mistake in refused.value.errors] == [field]
    assert await jobs(store) == []
    assert await objects(blobs) == []


async def test_what_only_looks_like_a_nul_is_admitted(store: Store, blobs: Blobs) -> None:
    async with new_job(store, blobs) as entering:
        job = await entering.admit(ONE, rb'{"text":"\\u0000"}', Options())

    assert [found.id for found in await jobs(store)] == [job.id]
