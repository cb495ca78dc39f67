"""The log on the page of a job: the page says which line it has seen last, and the stream goes on after it."""

from __future__ import annotations

import re

import pytest

from packhorse.store.base import Line, Store
from packhorse.store.sqlite.store import SqliteStore
from tests.contract.builders import line, submit
from tests.http.conftest import http, place, store  # noqa: F401  fixtures
from tests.http.unserved import Http

NUMBER = re.compile(r'<li data-n="(\d+)"')
LAST = re.compile(r'data-last="(\d+)"')


async def test_lines_written_while_the_page_reads_are_not_streamed_again(
    http: Http,  # noqa: F811
    store: Store,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    job = await submit(store)
    await store.log([line(job, "before")], keep=1000)
    read = SqliteStore.lines

    async def read_then_write(self: SqliteStore, *args: object, **options: object) -> list[Line]:
        found = await read(self, *args, **options)  # type: ignore[arg-type]
        await store.log([line(job, "meanwhile")], keep=1000)
        return found

    monkeypatch.setattr(SqliteStore, "lines", read_then_write)
    page = (await http.get(f"http://127.0.0.1/jobs/{job.id}")).text

    shown = [int(n) for n in NUMBER.findall(page)]
    assert len(shown) >= 2
    assert LAST.findall(page) == [str(max(shown))]
