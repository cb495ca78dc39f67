"""How often a page asks the store: every viewer repeats it on every event, so it has a limit."""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import AsyncIterator
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import pytest

from packhorse.auth import keys
from packhorse.store.base import Store
from tests.contract.builders import ONLY, completed, line, submit
from tests.http.conftest import anywhere, http, publish, store  # noqa: F401  fixtures
from tests.http.processes import Place, until
from tests.http.unserved import Http

LIMIT = 6
IS_COUNTED: ContextVar[bool] = ContextVar("is_counted", default=False)
"""Whether a request runs, and no method of the store: what a store asks of itself is one call all the same, and what
the server reads beside requests is no matter of a page."""

ROOT = "http://127.0.0.1"
METHODS = [
    name
    for part in Store.__mro__
    for name, method in vars(part).items()
    if inspect.iscoroutinefunction(method) and not name.startswith("_")
]
"""All that can be asked of a store."""


@pytest.fixture(params=["keyless", "logged in"])
def place(request: pytest.FixtureRequest, tmp_path: Path, anywhere: str) -> Place:  # noqa: F811
    place = Place(tmp_path, store=anywhere, keyless=request.param == "keyless", secret_key="s" * 40)
    publish(place)
    return place


@pytest.fixture
async def calls(
    http: Http,  # noqa: F811
    place: Place,
    store: Store,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> AsyncIterator[Counter[str]]:
    """Counts what the server asks its store, method by method. On a slow machine too, a key is not read again."""
    monkeypatch.setattr(keys, "FRESH", 3600.0)
    if not place.settings.keyless:
        _, text = await keys.create(store, "default", ["submit", "read", "operate"], by="cli")
        answer = await http.post(
            f"{ROOT}/login", data={"key": text}, headers={"Sec-Fetch-Site": "same-origin"}, follow_redirects=False
        )
        assert answer.status_code == 303
    opened = http.app.state.services.store
    counts: Counter[str] = Counter()

    def count(name: str, method: Any) -> Any:
        async def counted(*args: Any, **options: Any) -> Any:
            if not IS_COUNTED.get():
                return await method(*args, **options)
            counts[name] += 1
            token = IS_COUNTED.set(False)
            try:
                return await method(*args, **options)
            finally:
                IS_COUNTED.reset(token)

        return counted

    for name in METHODS:
        setattr(opened, name, count(name, getattr(opened, name)))
    answer_request = http.app.asgi_handler

    async def count_request(scope: Any, receive: Any, send: Any) -> None:
        IS_COUNTED.set(True)
        await answer_request(scope, receive, send)

    http.app.asgi_handler = count_request
    yield counts
    http.app.asgi_handler = answer_request


async def view(http: Http, calls: Counter[str], path: str) -> int:  # noqa: F811
    calls.clear()
    answer = await http.get(f"{ROOT}{path}", follow_redirects=False)
    assert answer.status_code == 200
    return calls.total()


def test_every_method_of_the_contract_is_counted() -> None:
    assert {"get", "find", "scan", "fetch", "list_tallies", "failure_groups", "snapshot", "check", "put"} <= {*METHODS}
    assert len(METHODS) > 40


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


async def test_what_all_viewers_share_is_not_read_for_each_of_them(
    http: Http,  # noqa: F811
    store: Store,  # noqa: F811
    calls: Counter[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    job = await submit(store)
    services = http.app.state.services
    for shared in (services.fleet, services.past_durations):
        monkeypatch.setattr(shared, "_seconds", 3600.0)
    assert await view(http, calls, f"/jobs/{job.id}") > 4

    monkeypatch.setattr(keys, "FRESH", 0.0)

    assert await view(http, calls, f"/jobs/{job.id}") <= 4, calls
    assert calls.keys() <= {"fetch", "snapshot", "ahead"}


async def test_a_job_that_has_ended(http: Http, store: Store, calls: Counter[str]) -> None:  # noqa: F811
    job = await completed(store)

    assert await view(http, calls, f"/jobs/{job.id}") <= LIMIT, calls


async def test_the_overview(http: Http, store: Store, calls: Counter[str]) -> None:  # noqa: F811
    """What all viewers share is read by the server every few seconds, not by the views."""
    await submit(store)
    until(lambda: http.app.state.services.findings._found)

    assert 0 < await view(http, calls, "/") <= LIMIT, calls
    assert 0 < await view(http, calls, "/?window=24h") <= LIMIT, calls
