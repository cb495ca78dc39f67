"""Searching jobs over HTTP: what a text finds, and for whom."""

from __future__ import annotations

import pytest

from packhorse.core.models import Spec
from packhorse.jobs.search import find_jobs
from packhorse.settings import Settings
from packhorse.store.base import Filter, Store
from tests.contract.builders import submit
from tests.http.conftest import http, place, store  # noqa: F401  fixtures
from tests.http.unserved import Http


async def test_a_text_finds_jobs_of_the_list(http: Http, store: Store) -> None:  # noqa: F811
    wanted = await submit(store, spec=Spec(b"{}", metadata={"order": 7}), user="ann")
    await submit(store, spec=Spec(b"{}", metadata={"order": 8}), user="bob")

    for query in ({"q": "order=7"}, {"q": "ann"}, {"q": wanted.id[:20], "user_id": "ann"}):
        answer = await http.get("jobs", params=query)
        assert [each["job_id"] for each in answer.json()["items"]] == [wanted.id], query
    assert (await http.get("jobs", params={"q": "order=9"})).json() == {"items": [], "next": None}


async def test_a_text_that_is_too_long_is_refused(http: Http) -> None:  # noqa: F811
    answer = await http.get("jobs", params={"q": "x" * 201})

    assert answer.status_code == 422
    assert answer.json()["errors"][0]["field"] == "q"


async def test_a_submit_writes_what_it_is_found_by(http: Http, store: Store) -> None:  # noqa: F811
    answer = await http.post("jobs?pipeline=add", json={"parameters": {"a": 1}, "metadata": {"order": 7}})
    assert answer.status_code == 202

    found, _ = await find_jobs(store, [Filter("default")], "order=7", before=None, limit=9)

    assert [each.id for each in found] == [answer.json()["job_id"]]


@pytest.mark.parametrize(
    ("address", "search", "expected"),
    [
        ("sqlite:///x", "auto", True),
        ("postgresql://h/d", "auto", True),
        ("redis://h", "auto", False),
        ("valkeys+cluster://h", "auto", False),
        ("redis://h", "on", True),
        ("sqlite:///x", "off", False),
    ],
)
def test_redis_indexes_new_jobs_only_on_request(address: str, search: str, *, expected: bool) -> None:
    assert Settings(store=address, search=search).is_searchable is expected
