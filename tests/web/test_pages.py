"""The overview and the pages for operators, as their HTML says it."""

from __future__ import annotations

import re

import pytest
from msgspec.structs import replace

from packhorse.background.webhooks import Reply, attempt_of
from packhorse.core.models import Failure
from packhorse.settings import Settings
from packhorse.store.base import Finding, Store
from packhorse.store.collections.audit import Entry, append
from packhorse.store.collections.webhooks import (
    Endpoint,
    add_endpoint,
    list_deliveries,
    record_attempt,
    settle_delivery,
    take_deliveries,
)
from packhorse.store.counters import MINUTE, Tally
from tests.contract import builders
from tests.contract.builders import completed, fail, started, submit
from tests.http.conftest import http, place, store  # noqa: F401  fixtures
from tests.http.unserved import Http
from tests.web.html import links, parts, rows, text

ROOT = "http://127.0.0.1"
SAME_SITE = {"Sec-Fetch-Site": "same-origin"}
BROKEN = Failure("NO_DISK", "The disk is full", "only", permanent=True, detail="Traceback: line 7")
HEADINGS = r"<h2[^>]*>.*?</h2>"


async def page(http: Http, path: str) -> str:  # noqa: F811
    answer = await http.get(f"{ROOT}{path}")
    assert answer.status_code == 200, answer.text
    return str(answer.text)


async def test_the_overview_shows_jobs_first_then_failures_then_activity(http: Http, store: Store) -> None:  # noqa: F811
    await fail(store, await started(store, user="eve"), BROKEN)
    await completed(store, user="bob")
    running = (await started(store, user="ann")).job
    http.app.state.services.worst_groups.forget()

    shown = await page(http, "/")

    headings = [each.split()[0] for each in parts(shown.partition("</main>")[0], HEADINGS)]
    assert headings == ["Running", "Queues", "Recent", "Failures", "Activity"]
    jobs, others = parts(shown, r'<ul class="joblist">.*?</ul>')
    assert "ann" in jobs
    assert running.id in shown
    [queues] = parts(shown, r'<ul class="joblist loads">.*?</ul>')
    assert queues.count("no worker") == 3
    assert "bob" in others
    assert "eve · The disk is full" in others
    [failure] = [row for row in rows(shown) if row[0].startswith("NO_DISK")]
    assert failure[1:3] == ["1", "1"]
    assert "#traceback" in links(shown)["Traceback"]


async def test_a_failure_is_retried_in_place(http: Http, store: Store) -> None:  # noqa: F811
    await fail(store, await started(store), BROKEN)
    http.app.state.services.worst_groups.forget()
    [action] = re.findall(r'action="(/failures/groups/[^"]+/first)"', await page(http, "/"))

    answer = await http.post(f"{ROOT}{action}", data={"back": "/"}, headers=SAME_SITE, follow_redirects=False)

    assert (answer.status_code, answer.headers["location"]) == (303, "/")
    assert "will be retried" in text(await page(http, "/"))


async def test_without_jobs_the_overview_offers_the_pipelines(http: Http) -> None:  # noqa: F811
    shown = await page(http, "/")

    assert parts(shown, HEADINGS)[0] == "Run your first job"
    assert 'href="/jobs/new?pipeline=convert" aria-label="Run convert"' in shown


@pytest.mark.parametrize(("path", "status"), [("/?window=5m", 200), ("/?window=1s", 422), ("/?queue=nowhere", 404)])
async def test_activity_is_of_a_range_and_a_queue(http: Http, path: str, status: int) -> None:  # noqa: F811
    answer = await http.get(f"{ROOT}{path}")

    assert answer.status_code == status
    if status == 200:
        assert len(re.findall(r"<tr><th scope=\"row\"><time", answer.text)) in (5, 6)


async def test_a_group_shows_its_traceback_and_similar_failures(http: Http, store: Store) -> None:  # noqa: F811
    await fail(store, await started(store), BROKEN)
    await fail(store, await started(store), Failure("NO_NET", "Unreachable", "only", permanent=True))
    [first, second] = [
        link for link in links(await page(http, "/failures")).items() if link[1].startswith("/failures/groups/")
    ]
    mine, other = (first, second) if first[0] == "NO_DISK" else (second, first)

    shown = await page(http, mine[1])

    assert "Traceback: line 7" in shown
    [similar] = parts(shown, r'<section aria-labelledby="similar">.*?</section>')
    assert "NO_NET" in similar
    assert other[1] in shown


async def test_the_audit_leaves_out_each_use_of_a_key(http: Http, store: Store) -> None:  # noqa: F811
    uses = [Entry(n, "key.accepted", "default", f"k{n}") for n in range(250)]
    await append(store, [Entry(0.0, "key.created", "default", "k"), *uses], keep=1000)

    shown, all = await page(http, "/audit"), await page(http, "/audit?routine=true")

    assert "key.created" in text(shown)
    assert "key.accepted" not in text(shown)
    assert "key.accepted" in text(all)


async def test_health_names_its_problems_first(http: Http, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    async def found(*_: object) -> list[Finding]:
        return [Finding("a fine thing", True, "ok", "means little"), Finding("clock", False, "9 s off", "set it")]

    monkeypatch.setattr("packhorse.jobs.health.find_all", found)

    shown = await page(http, "/health")

    assert parts(shown, r'<div class="banner.*?</div>')[0].startswith("1 problem needs attention: clock")
    assert [row[0] for row in rows(shown)] == ["clock", "a fine thing"]


async def test_limits_say_what_is_in_force(http: Http) -> None:  # noqa: F811
    found = {row[3]: row[1] for row in rows(await page(http, "/limits"))}

    assert found["PACKHORSE_API_LIMIT"] == f"{Settings().api_limit:,}"
    assert found["PACKHORSE_FILE_LIMIT"] == "2.0 GiB"
    assert found["PACKHORSE_TENANT_JOBS"] == "unlimited"


async def test_after_the_first_job_the_overview_suggests_what_is_next(http: Http, store: Store) -> None:  # noqa: F811
    job = await completed(store, user="ann")

    first = await page(http, "/")
    for _ in range(3):
        await completed(store, user="ann")
    later = await page(http, "/")

    assert "Next steps" in first
    assert f"/jobs/{job.id}#copy-title" in first
    assert "/schedules/new" in first
    assert "Next steps" not in later


async def test_the_overview_says_how_many_estimates_were_kept(http: Http, store: Store) -> None:  # noqa: F811
    step = int(store.now()) // MINUTE * MINUTE
    counts = {"estimate:kept": 19, "estimate:missed": 1}
    await store.tally({Tally(MINUTE, step, "convert", "", name): count for name, count in counts.items()})
    http.app.state.services.activity.forget()

    shown = await page(http, "/")

    assert "<strong>95 %</strong> of 20 jobs" in shown


async def test_a_webhook_shows_what_was_sent_and_answered_and_sends_it_again(http: Http, store: Store) -> None:  # noqa: F811
    await add_endpoint(store, Endpoint("e1", "default", "https://hooks.example.org/", store.now()))
    job = await builders.completed(store, webhooks=("e1",))
    [sent] = await take_deliveries(store, 10, 60.0)
    await settle_delivery(store, sent, next_at=None)
    reply = Reply(500, "HTTP_500", answer="<b>disk full</b>")
    told = replace(attempt_of(sent.id, "e1", reply, store.now(), store.now() + 0.2, b"{}"), job_id=job.id, run=1)
    await record_attempt(store, told)
    path = f"/webhooks/e1/messages/{job.id}/1"

    listed, one = await page(http, "/webhooks/e1"), await page(http, path)
    again = await http.post(f"{ROOT}{path}/redeliver", headers=SAME_SITE, follow_redirects=False)
    early = await http.post(f"{ROOT}/webhooks/e1/messages/{job.id}/2/redeliver", headers=SAME_SITE)

    assert "&lt;b&gt;disk full&lt;/b&gt;" in listed
    assert path in listed
    assert "job.completed" in one
    assert "HTTP_500" in one
    assert (again.status_code, early.status_code) == (303, 422)
    assert [each.id for each in await list_deliveries(store, "e1")] == [sent.id]
    assert (await http.get(f"{ROOT}/webhooks/e1/messages/{job.id}/2")).status_code == 404


async def test_webhooks_show_what_waits_and_are_removed(http: Http, store: Store) -> None:  # noqa: F811
    empty = await page(http, "/webhooks")
    await add_endpoint(store, Endpoint("e1", "default", "https://hooks.example.org/<a>", store.now()))

    assert "No webhooks yet" in empty
    assert rows(await page(http, "/webhooks"))[0][:2] == ["https://hooks.example.org/<a>", "active"]
    assert "Nothing was sent yet" in await page(http, "/webhooks/e1")
    await submit(store, webhooks=("e1",))
    answer = await http.post(f"{ROOT}/webhooks/e1/remove", headers=SAME_SITE, follow_redirects=False)
    assert answer.status_code == 303
    assert rows(await page(http, "/webhooks"))[0][1].startswith("ended")
    wrong = await http.post(f"{ROOT}/webhooks", data={"url": "http://10.0.0.1/x"}, headers=SAME_SITE)
    assert wrong.status_code == 422
    assert 'id="url-mistake"' in wrong.text
