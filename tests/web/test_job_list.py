"""The list of jobs, as its HTML says it."""

from __future__ import annotations

import re

import pytest

from packhorse.core import json
from packhorse.core.models import Failure, Input, Spec, Stored
from packhorse.store.base import Store
from tests.contract.builders import cancelled, completed, fail, plan, stage, started, submit, submit_many
from tests.http.conftest import http, place, store  # noqa: F401  fixtures
from tests.http.unserved import Http
from tests.web.html import links, parts, rows

ROOT = "http://127.0.0.1"
TABS = r'<nav class="tabs".*?</nav>'
PHOTO = Spec(b'{"photo": {"$file": 0}}', (Input("photo", 0, Stored("key", "<b>my photo.jpg", 3, "0" * 64)),))


async def page(http: Http, path: str) -> str:  # noqa: F811
    answer = await http.get(f"{ROOT}{path}")
    assert answer.status_code == 200
    return str(answer.text)


async def test_each_tab_says_how_many_jobs_it_has_and_leads_to_them(http: Http, store: Store) -> None:  # noqa: F811
    await submit_many(store, 3, user="ann")
    await cancelled(store, user="ann")
    await submit(store, user="bob")

    shown = await page(http, "/jobs?user_id=ann&pipeline=convert")

    assert parts(shown, TABS) == ["All 4 Pending 3 Running 0 Completed 0 Failed 0 Cancelled 1"]
    pending = links(shown)["Pending 3"]
    assert pending == "/jobs?status=pending&pipeline=convert&user_id=ann"
    chosen = await page(http, pending)
    assert re.findall(r'aria-current="page">.*?</a>', re.findall(TABS, chosen, re.DOTALL)[0])
    assert parts(chosen, r'<p class="[^"]*" id="count">.*?</p>') == ["3 jobs match"]
    assert len(rows(chosen)) == 3


async def test_a_job_is_named_after_its_file_or_its_parameters(http: Http, store: Store) -> None:  # noqa: F811
    photo = await submit(store, spec=PHOTO)
    masked = plan(stage("only"), secrets=(("token",),))
    spec = Spec(json.encode({"size": 4, "site": "oslo", "token": {"$secret": 0}, "nothing": None}))
    other = await submit(store, masked, spec)

    [second, first] = rows(await page(http, "/jobs"))

    assert first[1] == f"<b>my photo.jpg {photo.id[-12:]}"
    assert second[1].startswith("size=4, site=oslo, token=")
    assert second[1].endswith(other.id[-12:])
    assert "$secret" not in second[1]


async def test_the_state_says_which_stage_failed_and_how(http: Http, store: Store) -> None:  # noqa: F811
    await fail(store, await started(store), Failure("NO_DISK", "The disk is full\nTraceback", "only", permanent=True))
    await started(store)
    await submit(store, delay=7200.0)
    await completed(store)

    found = [row[4] for row in rows(await page(http, "/jobs"))]

    assert found[0] == "completed"
    assert found[1].startswith("pending starts in ")
    assert re.fullmatch(r"running only .*0 %", found[2])
    assert found[3] == "failed only: The disk is full"


@pytest.mark.parametrize("path", ["/jobs", "/jobs?user_id=nobody"])
async def test_a_list_without_jobs_says_what_to_do(http: Http, path: str) -> None:  # noqa: F811
    shown = await page(http, path)

    [empty] = parts(shown, r'<div class="empty">.*?</div>')
    assert empty == (
        "No jobs yet. Run your first job" if path == "/jobs" else "No jobs match these filters. Show all jobs"
    )


async def test_nothing_selected_is_nothing_done(http: Http, store: Store) -> None:  # noqa: F811
    job = await submit(store)

    answer = await http.post(f"{ROOT}/jobs/confirm", data={"do": "delete"}, headers={"Sec-Fetch-Site": "same-origin"})

    assert answer.status_code == 422
    assert "No jobs selected" in answer.text
    assert await store.get([job.id]) == [job]


async def test_a_search_is_an_address_that_shows_what_it_finds(http: Http, store: Store) -> None:  # noqa: F811
    wanted = await submit(store, spec=Spec(b"{}", metadata={"order": 7}))
    await submit(store, spec=PHOTO)

    shown = await page(http, "/jobs?q=order%3D7")

    assert [row[0] for row in rows(shown)] == [""]
    assert wanted.id in shown
    assert 'value="order=7"' in shown
    assert parts(shown, TABS) == ["All Pending Running Completed Failed Cancelled"]
    assert links(shown)["Failed"] == "/jobs?q=order%3D7&status=failed"
    assert 'name="all"' not in shown
    [empty] = parts(await page(http, "/jobs?q=order%3D8"), r'<div class="empty">.*?</div>')
    assert empty.startswith("No jobs found for “order=8”.")
