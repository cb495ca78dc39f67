"""The log on the page of a job: the page says which line it has seen last, and the stream goes on after it."""

from __future__ import annotations

import re

import pytest

from packhorse.store.base import Snapshot, Store
from packhorse.store.sqlite.store import SqliteStore
from tests.contract.builders import ONLY, line, submit
from tests.http.conftest import http, place, store  # noqa: F401  fixtures
from tests.http.unserved import Http

NUMBER = re.compile(r'<li data-n="(\d+)"')
LAST = re.compile(r'data-last="(\d+)"')


@pytest.mark.parametrize("stage", [None, ONLY.stage])
async def test_lines_written_while_the_page_reads_are_not_streamed_again(
    http: Http,  # noqa: F811
    store: Store,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
    stage: str | None,
) -> None:
    job = await submit(store)
    await store.log([line(job, "before")], keep=1000)
    read = SqliteStore.snapshot

    async def write_around(self: SqliteStore, *args: object, **options: object) -> Snapshot | None:
        await store.log([line(job, "meanwhile")], keep=1000)
        found = await read(self, *args, **options)  # type: ignore[arg-type]
        await store.log([line(job, "afterwards")], keep=1000)
        return found

    monkeypatch.setattr(SqliteStore, "snapshot", write_around)
    query = f"?stage={stage}" if stage else ""
    page = (await http.get(f"http://127.0.0.1/jobs/{job.id}{query}")).text

    shown = [int(n) for n in NUMBER.findall(page)]
    assert len(shown) >= 2
    assert LAST.findall(page) == [str(max(shown))]
