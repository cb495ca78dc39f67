"""How often a page asks the store: every viewer repeats it on every event, so it has a limit."""

from __future__ import annotations

import inspect
from collections import Counter
from typing import Any

import pytest

from packhorse.store.base import Store
from packhorse.store.sqlite.store import SqliteStore
from tests.contract.builders import ONLY, completed, line, submit
from tests.http.conftest import http, place, store  # noqa: F401  fixtures
from tests.http.unserved import Http

LIMIT = 6
BESIDE = ("changed", "touched", "now", "close")
"""What the server does beside requests, or without asking anything."""


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch, http: Http) -> Counter[str]:  # noqa: F811
    """Counts what the server asks its store, method by method."""
    opened = http.app.state.services.store
    counts: Counter[str] = Counter()

    def count(name: str, method: Any) -> Any:
        async def counted(self: Store, *args: Any, **options: Any) -> Any:
            if self is opened:
                counts[name] += 1
            return await method(self, *args, **options)

        return counted

    for name, method in inspect.getmembers(SqliteStore, inspect.iscoroutinefunction):
        if not name.startswith("_") and name not in BESIDE:
            monkeypatch.setattr(SqliteStore, name, count(name, method))
    return counts


async def view(http: Http, calls: Counter[str], path: str) -> int:  # noqa: F811
    calls.clear()
    answer = await http.get(f"http://127.0.0.1{path}")
    assert answer.status_code == 200
    return calls.total()


async def test_the_list_of_jobs(http: Http, store: Store, calls: Counter[str]) -> None:  # noqa: F811
    for _ in range(3):
        await submit(store)

    assert await view(http, calls, "/jobs") <= LIMIT, calls
    assert await view(http, calls, "/jobs?status=pending&user_id=ann") <= LIMIT, calls


async def test_a_job_that_waits(http: Http, store: Store, calls: Counter[str]) -> None:  # noqa: F811
    job = await submit(store)
    await store.log([line(job, "hello")], keep=1000)

    assert await view(http, calls, f"/jobs/{job.id}") <= LIMIT, calls
    assert await view(http, calls, f"/jobs/{job.id}?stage={ONLY.stage}") <= LIMIT, calls


async def test_a_job_that_has_ended(http: Http, store: Store, calls: Counter[str]) -> None:  # noqa: F811
    job = await completed(store)

    assert await view(http, calls, f"/jobs/{job.id}") <= LIMIT, calls


async def test_the_overview_while_it_is_watched(http: Http, store: Store, calls: Counter[str]) -> None:  # noqa: F811
    """The first view also reads what the server then keeps for all viewers: the survey of the queues, the self-check
    and the count of all jobs."""
    await submit(store)
    await view(http, calls, "/")

    assert await view(http, calls, "/") <= LIMIT, calls
