"""Finding jobs by their terms, on every store: written with the job, of a tenant or a user, and gone with the job."""

from __future__ import annotations

from typing import Any

import pytest

from packhorse.core.models import Input, Job, Spec, Stored
from packhorse.core.plan import Status
from packhorse.core.search import TERMS, index_of
from packhorse.jobs.search import find_jobs
from packhorse.store.base import Filter, Store
from tests.contract.builders import ONE, cancelled, completed, ids, marked, plan, stage, submit

SITED = plan(stage("only"), pipeline="sited", search=("site", "size"))


def spec(*names: str, parameters: bytes = b"{}", **metadata: Any) -> Spec:
    files = tuple(Input("file", i, Stored(f"key{i}", name, 1, "0" * 64)) for i, name in enumerate(names))
    return Spec(parameters, files, metadata)


async def search(store: Store, text: str, limit: int = 50, before: str | None = None, **wanted: Any) -> list[str]:
    jobs, _ = await find_jobs(store, [Filter("default", **wanted)], text, before=before, limit=limit)
    return [job.id for job in jobs]


async def test_a_job_is_found_by_file_metadata_and_declared_parameters(store: Store) -> None:
    named = spec("Interview Anna.MP3", parameters=b'{"site": "Oslo", "size": 4, "other": "x"}', order=7, vip=True)
    job = await submit(store, SITED, named)
    await submit(store, SITED, spec("other.mp3", parameters=b'{"site": "rome"}', order=70))

    assert await search(store, "size=4") == [job.id]
    for text in ("interview", "Interview  anna.mp3", "order=7", "ORDER = 7", "order: 7", "site=oslo", "vip=true"):
        assert await search(store, text) == [job.id], text
    for text in ("anna", "order=8", "size=5", "other=x", "site=os", "order=", "%", "x=\x00y", " "):
        assert await search(store, text) == [], text


async def test_a_job_is_found_by_user_and_by_the_beginning_of_its_id(store: Store) -> None:
    job = await submit(store, user="Ann@example.com", job_id="01a2b3c4-0000-7000-8000-00000000000a")
    twin = await submit(store, user="bob", job_id="01a2b3c4-0000-7000-8000-00000000000b")
    await submit(store, user="bob", job_id="01a2b3c5-0000-7000-8000-00000000000b")

    assert await search(store, "Ann@example.com") == [job.id]
    assert await search(store, job.id) == [job.id]
    assert await search(store, "01a2b3c4") == [twin.id, job.id]
    assert await search(store, "01A2B3C4-0000-7000") == [twin.id, job.id]
    assert await search(store, "01a2b3c4", limit=1) == [twin.id]
    assert await search(store, "01a2b3c4", before=twin.id) == [job.id]
    assert await search(store, "01a2b3c") == []


async def test_pages_go_on_newest_first_whatever_found_a_job(store: Store) -> None:
    """A user who is called as files begin: each job once, in the order of age."""
    by_file = [await submit(store, spec=spec(f"ann-{n}.wav"), user="bob") for n in range(3)]
    by_user = [await submit(store, user="ann") for _ in range(3)]
    both = await submit(store, spec=spec("ann"), user="ann")
    expected = sorted(ids([*by_file, *by_user, both]), reverse=True)

    found: list[str] = []
    cursor = None
    for _ in range(10):
        jobs, cursor = await find_jobs(store, [Filter("default")], "ann", before=cursor, limit=2)
        found += ids(jobs)
        if cursor is None:
            break

    assert found == expected


async def test_other_filters_and_owners_apply(store: Store) -> None:
    mine = await submit(store, spec=spec(order=7), user="ann")
    await submit(store, spec=spec(order=7), user="bob")
    await submit(store, spec=spec(order=7), user="ann", tenant="other")
    stopped = await submit(store, spec=spec(order=7), user="ann/x")

    assert await search(store, "order=7", user="ann") == [mine.id]
    assert await search(store, "order=7", user="ann/x") == [stopped.id]
    assert await search(store, "order=7", status=Status.COMPLETED) == []
    assert await search(store, "bob", user="ann") == []
    assert len(await search(store, "order=7")) == 3


async def test_a_page_that_other_filters_leave_empty_is_followed_by_more(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("packhorse.jobs.search.LOOKS", 4)
    wanted = await submit(store, SITED, spec(order=7))
    for _ in range(9):
        await submit(store, ONE, spec(order=7))
    filters = [Filter("default", pipeline="sited")]

    first, cursor = await find_jobs(store, filters, "order=7", before=None, limit=2)
    assert (first, cursor is None) == ([], False)
    found: list[Job] = []
    while cursor is not None:
        page, cursor = await find_jobs(store, filters, "order=7", before=cursor, limit=2)
        found += page

    assert ids(found) == [wanted.id]


async def test_terms_are_few_and_short_and_erased_with_their_job(store: Store) -> None:
    metadata: dict[str, Any] = {f"name{n}": n for n in range(50)} | {"list": [1], "none": None, "long": "x" * 5000}
    job = await completed(store, ONE, spec=spec("y" * 5000, **metadata))

    [record] = await store.fetch(TERMS, [job.id])
    assert record is not None
    listed = await store.scan(TERMS, index_of("default"), limit=100)
    assert len(listed) == 12
    assert await search(store, "y" * 100) == [job.id]
    await store.erase((await marked(store, job)).id)

    assert await store.fetch(TERMS, [job.id]) == [None]
    assert await store.scan(TERMS, index_of("default"), limit=100) == []


async def test_a_job_with_nothing_to_find_it_by_has_no_terms(store: Store) -> None:
    job = await cancelled(store)
    unsaid = await submit(store, SITED, spec(parameters=b'{"site": ""}'))

    assert await store.fetch(TERMS, [job.id, unsaid.id]) == [None, None]
