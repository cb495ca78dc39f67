"""Jobs listed, looked at, cancelled, retried and deleted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from litestar.testing import AsyncTestClient
from msgspec.structs import replace

from packhorse.background.janitor import Janitor
from packhorse.blobs import open_blobs
from packhorse.core import lifecycle
from packhorse.core.conditions import contains
from packhorse.core.models import Failure, Spec, TaskId
from packhorse.core.plan import Tolerance
from packhorse.jobs.explain import STAGES
from packhorse.jobs.transact import Transactor
from packhorse.store.base import Line, Report, Sample, Store
from packhorse.store.collections import workers
from packhorse.store.collections.workers import WorkerCard
from packhorse.store.counters import QUARTER, Tally, duration_bucket
from packhorse.store.sqlite import SqliteStore
from tests.contract import builders
from tests.contract.builders import card
from tests.http.conftest import publish
from tests.http.processes import Place
from tests.store.sqlite.inside import write

Http = AsyncTestClient[Any]
Json = dict[str, Any]

UNKNOWN = "01890a5d-ac96-774b-bcce-b302099a8057"


@pytest.fixture
def place(tmp_path: Path, anywhere: str) -> Place:
    place = Place(tmp_path, store=anywhere)
    publish(place)
    return place


async def submitted(http: Http, pipeline: str = "add", user: str = "ann", **parameters: Any) -> str:
    body = {"pipeline": pipeline, "user_id": user, "parameters": parameters or {"a": 1}}
    answer = await http.post("jobs", json=body)
    job_id: str = answer.json()["job_id"]
    return job_id


async def failed(store: Store, job_id: str, stage: str = "add") -> None:
    transact, at = Transactor(store), TaskId(stage)
    error = Failure("BROKEN", "It broke.", permanent=True, detail="line 1")
    await transact(job_id, lambda job: lifecycle.start(job, at, token="t", worker="w", lease=60, now=store.now()))
    await transact(job_id, lambda job: lifecycle.fail(job, at, token="t", error=error, luck=0, now=store.now()))


async def ids(http: Http, query: str = "") -> list[str]:
    return [job["job_id"] for job in (await http.get(f"jobs{query}")).json()["items"]]


async def test_jobs_are_listed_newest_first(http: Http) -> None:
    made = [await submitted(http) for _ in range(3)]

    page = (await http.get("jobs")).json()

    assert [job["job_id"] for job in page["items"]] == made[::-1]
    assert page["next"] is None


async def test_a_pipeline_that_neither_workers_nor_jobs_know_is_an_error(http: Http, store: Store) -> None:
    await submitted(http)
    await builders.submit(store, builders.plan(builders.stage("only"), pipeline="retired"))

    for method, path, body in (
        ("GET", "jobs?pipeline=typo", None),
        ("GET", "jobs/count?pipeline=typo", None),
        ("POST", "jobs/cancel", {"pipeline": "typo"}),
        ("POST", "jobs/cancel", {"pipeline": "typo", "dry_run": True}),
    ):
        answer = await http.request(method, path, json=body)
        assert answer.status_code == 422, (path, answer.text)
        assert answer.json()["detail"].startswith("There is no pipeline named 'typo'. Pipelines: add"), path
        assert answer.json()["hint"] == "List the pipelines with: packhorse pipelines"
    for path in ("jobs?pipeline=retired", "jobs?pipeline=retired&status=failed", "jobs?pipeline=add&status=failed"):
        assert (await http.get(path)).status_code == 200, path
    assert (await http.get("jobs/count?pipeline=retired")).json()["count"] == 1


async def test_pages_follow_each_other_without_gap_or_double(http: Http) -> None:
    made = [await submitted(http) for _ in range(7)]
    found, cursor, sizes = [], "", []

    while cursor is not None:
        page = (await http.get(f"jobs?limit=3{f'&cursor={cursor}' if cursor else ''}")).json()
        found += [job["job_id"] for job in page["items"]]
        sizes.append(len(page["items"]))
        cursor = page["next"]

    assert found == made[::-1]
    assert sizes == [3, 3, 1]


async def test_a_full_last_page_has_no_next(http: Http) -> None:
    for _ in range(2):
        await submitted(http)

    assert (await http.get("jobs?limit=2")).json()["next"] is None


async def test_filters_are_anded(http: Http, store: Store) -> None:
    one = await submitted(http, user="ann")
    two = await submitted(http, user="bob")
    three = await submitted(http, "hold", user="ann", seconds=1)
    await failed(store, two)

    assert await ids(http, "?user_id=ann") == [three, one]
    assert await ids(http, "?status=failed") == [two]
    assert await ids(http, "?pipeline=add") == [two, one]
    assert await ids(http, "?pipeline=add&user_id=ann&status=pending") == [one]
    assert await ids(http, "?user_id=nobody") == []


async def test_times_are_filters(http: Http) -> None:
    one = await submitted(http)
    two = await submitted(http)
    at = (await http.get(f"jobs/{two}")).json()["created_at"]

    assert await ids(http, f"?created_from={at}") == [two]
    assert await ids(http, f"?created_until={at}") == [one]
    assert await ids(http, "?created_from=2100-01-01T00:00:00") == []
    assert await ids(http, "?created_until=2100-01-01T00:00:00%2B02:00") == [two, one]


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ("status=done", "status"),
        ("limit=0", "limit"),
        ("limit=201", "limit"),
        ("limit=x", "limit"),
        ("cursor=zzz", "cursor"),
        ("limit=null", "limit"),
        ("created_until=20260101", "created_until"),
        ("created_until=1.5e9", "created_until"),
        ("created_from=NULL", "created_from"),
        ("cursor=' OR 1=1 --", "cursor"),
        ("created_from=yesterday", "created_from"),
        ("colour=red", "colour"),
        ("status=failed&status=completed", "status"),
    ],
)
async def test_a_filter_that_is_wrong_is_named(http: Http, query: str, field: str) -> None:
    answer = await http.get(f"jobs?{query}")

    assert answer.status_code == 422
    assert [error["field"] for error in answer.json()["errors"]] == [field]


async def test_a_status_there_is_not_is_answered_with_those_there_are(http: Http) -> None:
    [mistake] = (await http.get("jobs?status=weird")).json()["errors"]

    assert mistake["message"] == "It must be one of pending, running, completed, failed, cancelled"


@pytest.mark.parametrize("job_id", [UNKNOWN, "x", "..%2f..", "%00", "a" * 3000])
@pytest.mark.parametrize(
    "path",
    ["", "/events", "/log", "/explain", "/estimate", "/history", "/metrics", "/artifacts", "/artifacts/a/b", "/result"],
)
async def test_a_job_that_is_not_there_is_404_everywhere(http: Http, job_id: str, path: str) -> None:
    answer = await http.get(f"jobs/{job_id}{path}")

    assert answer.status_code == 404
    assert answer.headers["content-type"] == "application/problem+json"


@pytest.mark.parametrize("verb", ["cancel", "retry"])
async def test_what_is_not_there_cannot_be_asked_for_anything(http: Http, verb: str) -> None:
    answer = await http.post(f"jobs/{UNKNOWN}/{verb}")

    assert answer.status_code == 404
    assert answer.json()["job_id"] == UNKNOWN


async def test_a_job_that_is_being_purged_is_gone(http: Http, store: Store) -> None:
    job_id = await submitted(http)
    await failed(store, job_id)
    transact = Transactor(store)
    await transact(job_id, lambda job: lifecycle.purge(job, now=store.now() + 1e9))

    assert (await http.get(f"jobs/{job_id}")).status_code == 404
    assert (await http.post(f"jobs/{job_id}/retry")).status_code == 404
    assert await ids(http) == []


async def test_a_waiting_job_is_cancelled_at_once_and_once(http: Http, store: Store) -> None:
    job_id = await submitted(http)

    first = await http.post(f"jobs/{job_id}/cancel")
    second = await http.post(f"jobs/{job_id}/cancel")

    assert (first.status_code, second.status_code) == (202, 202)
    assert first.json()["status"] == "cancelled"
    assert second.json() == first.json()
    assert [event.type for event in await store.events(job_id)] == ["submitted", "cancelled"]


async def test_a_failed_job_cannot_be_cancelled(http: Http, store: Store) -> None:
    job_id = await submitted(http)
    await failed(store, job_id)

    answer = await http.post(f"jobs/{job_id}/cancel")

    assert answer.status_code == 409
    assert answer.json()["type"] == "urn:packhorse:not-allowed"
    assert (answer.json()["status"], answer.json()["job_status"]) == (409, "failed")


async def test_a_failed_job_shows_why(http: Http, store: Store) -> None:
    job_id = await submitted(http)
    await failed(store, job_id)

    job = (await http.get(f"jobs/{job_id}")).json()

    assert job["error"] == {"code": "BROKEN", "message": "It broke.", "stage": "add", "detail": "line 1"}
    assert job["completed_at"] is not None
    assert job["expires_at"] > job["completed_at"]


async def test_a_retry_starts_a_new_run(http: Http, store: Store) -> None:
    job_id = await submitted(http)
    await failed(store, job_id)

    answer = await http.post(f"jobs/{job_id}/retry")

    assert answer.status_code == 202
    assert (answer.json()["status"], answer.json()["run"], answer.json()["error"]) == ("pending", 2, None)
    assert (await http.post(f"jobs/{job_id}/retry")).json()["run"] == 2


async def test_a_retry_from_a_stage_there_is_not_is_422(http: Http, store: Store) -> None:
    job_id = await submitted(http)
    await failed(store, job_id)

    answer = await http.post(f"jobs/{job_id}/retry?stage=nope")

    assert answer.status_code == 422
    assert answer.json()["errors"][0]["field"] == "stage"
    assert (await http.post(f"jobs/{job_id}/retry?stage=add")).status_code == 202


async def test_a_retry_is_409_while_another_job_holds_the_slot(http: Http) -> None:
    files = {"model": ("m.onnx", b"weights")}
    first = (await http.post("jobs?pipeline=convert&user_id=ann", files=files)).json()["job_id"]
    await http.post(f"jobs/{first}/cancel")
    second = (await http.post("jobs?pipeline=convert&user_id=ann", files=files)).json()["job_id"]

    answer = await http.post(f"jobs/{first}/retry")

    assert answer.status_code == 409
    assert answer.json()["active_job_id"] == second


async def test_the_result_of_an_unfinished_job_is_409(http: Http, store: Store) -> None:
    job_id = await submitted(http)

    for status in ("pending", "failed"):
        answer = await http.get(f"jobs/{job_id}/result")

        assert answer.status_code == 409
        assert answer.json()["type"] == "urn:packhorse:not-finished"
        assert answer.json()["job_status"] == status
        if status == "pending":
            await failed(store, job_id)


async def logged(store: Store, job_id: str, count: int) -> None:
    line = Line(job_id, TaskId("add"), 1, 0.0, "")
    await store.log([replace(line, text=f"line <{i}>") for i in range(count)], keep=10**6)


async def test_a_log_is_read_in_pages(http: Http, store: Store) -> None:
    job_id = await submitted(http)
    await logged(store, job_id, 5)

    first = (await http.get(f"jobs/{job_id}/log?limit=3")).json()
    rest = (await http.get(f"jobs/{job_id}/log?after={first['next']}")).json()

    assert [line["text"] for line in first["items"] + rest["items"]] == [f"line <{i}>" for i in range(5)]
    assert first["items"][0].keys() == {"n", "stage", "element", "attempt", "at", "text"}
    assert (first["next"], rest["next"]) == (3, None)
    assert len((await http.get(f"jobs/{job_id}/log?stage=add")).json()["items"]) == 5


async def test_a_log_is_plain_text_for_who_asks_for_it(http: Http, store: Store) -> None:
    job_id = await submitted(http)
    await logged(store, job_id, 2)

    text = await http.get(f"jobs/{job_id}/log", headers={"Accept": "text/plain"})
    json = await http.get(f"jobs/{job_id}/log", headers={"Accept": "*/*"})

    assert text.text == "line <0>\nline <1>\n"
    assert text.headers["content-type"] == "text/plain; charset=utf-8"
    assert text.headers["x-content-type-options"] == "nosniff"
    assert json.headers["content-type"] == "application/json"


# Why it waits


def alive(store: Store, **facts: Any) -> WorkerCard:
    """The card of a worker that has just been heard of, on a machine that nobody here can see."""
    return card("w", seen_at=store.now(), **facts)


async def codes(http: Http, job_id: str) -> list[str]:
    answer = (await http.get(f"jobs/{job_id}/explain")).json()
    return [reason["code"] for reason in answer["reasons"]]


async def test_a_job_says_what_it_waits_for(http: Http, store: Store) -> None:
    job_id = await submitted(http)
    [job] = await store.get([job_id])
    assert job is not None

    alone = (await http.get(f"jobs/{job_id}/explain")).json()
    await workers.enroll(store, alive(store, queues={"default": 2}, kinds=("other/stage#1",)))
    without_code = await codes(http, job_id)
    await workers.enroll(store, alive(store, queues={"default": 2}, kinds=(job.plan.stages[0].kind,)))

    message = "no live worker serves queue `default`"
    assert alone == {"reasons": [{"code": "NO_WORKER", "message": message}]}
    assert without_code == ["NO_CODE"]
    assert await codes(http, job_id) == ["QUEUED"]


# What it has used


async def test_what_a_job_has_used_is_told_by_task(http: Http, store: Store) -> None:
    job_id = await submitted(http)
    measured = [(1.0, 0.5, 100), (2.0, 1.5, 50)]
    await store.sample([Sample(job_id, TaskId("add"), *each) for each in measured], keep=100)

    page = (await http.get(f"jobs/{job_id}/metrics")).json()

    [series] = page["items"]
    assert (series["stage"], series["element"]) == ("add", 0)
    assert (series["peak_cpu"], series["peak_memory_bytes"]) == (1.5, 100)
    assert series["samples"][0] == {"at": "1970-01-01T00:00:01.000000Z", "cpu": 0.5, "memory_bytes": 100}
    assert len(series["samples"]) == 2


# What cannot be read


@pytest.mark.parametrize("anywhere", ["sqlite"], indirect=True)  # which can be spoiled
@pytest.mark.parametrize(
    "spoiling", ["UPDATE jobs SET state = 'x' WHERE id = ?", "UPDATE specs SET body = 'x' WHERE job_id = ?"]
)
async def test_a_job_that_cannot_be_read_hides_no_other_and_is_told_as_such(
    http: Http, store: Store, spoiling: str
) -> None:
    bad = await submitted(http)
    good = await submitted(http)
    assert isinstance(store, SqliteStore)
    await write(store, spoiling, bad)

    answer = await http.get(f"jobs/{bad}")

    assert await ids(http) == [good]
    assert answer.status_code == 500
    assert answer.json()["type"] == "urn:packhorse:corrupt-record"
    assert bad in answer.json()["detail"]
    assert "retry-after" not in answer.headers


# What may be said in a body


async def test_failed_elements_are_shown_and_run_again(http: Http, store: Store) -> None:
    pages = builders.stage("page", builders.each("split"), tolerate=Tolerance(1), retries=0)
    job = await builders.split(store, 2, builders.plan(builders.stage("split"), pages))
    for one in await builders.claim(store):
        await (builders.fail if one.task.element else builders.finish)(store, one)

    found = (await http.get(f"jobs/{job.id}")).json()
    both = await http.post(f"jobs/{job.id}/retry?stage=page", json={"failed_elements": True})
    again = await http.post(f"jobs/{job.id}/retry", json={"failed_elements": True})

    error = {"code": "INVALID", "message": "It can never work.", "stage": "page", "detail": None, "element": 1}
    assert (found["status"], found["progress"], found["result"]) == ("completed", 100.0, ["done", None])
    assert found["partial"] == {"failed": 1, "of": 2, "errors": [error]}
    assert found["stages"]["page"]["elements"]["failed"] == 1
    assert (both.status_code, both.json()["field"]) == (422, "failed_elements")
    assert (again.status_code, again.json()["run"], again.json()["partial"]) == (202, 2, None)
    statuses = {name: stage["status"] for name, stage in again.json()["stages"].items()}
    assert statuses == {"split": "completed", "page": "running"}


async def test_skipped_stages_say_why_and_count_as_done(http: Http, store: Store) -> None:
    last = builders.stage("only", builders.needs("bie"), optional=("bie",), when=contains("tags", "a"))
    aside = builders.stage("bie", when=contains("tags", "b"))
    job = await builders.submit(store, builders.plan(aside, last), Spec(b'{"tags":["a"]}'))

    before = (await http.get(f"jobs/{job.id}")).json()
    await builders.finish(store, await builders.claim_one(store))
    after = (await http.get(f"jobs/{job.id}")).json()

    skipped = before["stages"]["bie"]
    assert (skipped["status"], skipped["progress"], skipped["attempt"]) == ("skipped", 100.0, 0)
    assert skipped["reason"] == 'it runs only if tags contains "b"'
    assert (before["stage"], before["progress"]) == ("only", 50.0)
    assert (after["status"], after["progress"], after["result"]) == ("completed", 100.0, "done")


async def test_failed_elements_of_a_job_without_any_are_409(http: Http, store: Store) -> None:
    job = await builders.completed(store)

    answer = await http.post(f"jobs/{job.id}/retry", json={"failed_elements": True})

    assert (answer.status_code, answer.json()["detail"]) == (
        409,
        "No elements of this job have failed and been left out.",
    )


JSON = {"Content-Type": "application/json"}


@pytest.mark.parametrize(
    ("query", "body"), [("", b'{"stage": "nef"}'), ("?stage=nef", b'{"stage": "nef"}'), ("?stage=nef", b"{}")]
)
async def test_the_stage_of_a_retry_may_be_in_the_body(http: Http, store: Store, query: str, body: bytes) -> None:
    answer = await http.post("jobs?pipeline=convert&user_id=ann", files={"model": ("m", b"w")})
    job_id = answer.json()["job_id"]
    await failed(store, job_id, "onnx")

    answer = await http.post(f"jobs/{job_id}/retry{query}", content=body, headers=JSON)

    retrying = (await store.events(job_id))[-1]
    assert answer.status_code == 202, answer.text
    assert (retrying.type, retrying.data["stage"]) == ("retrying", "nef")


@pytest.mark.parametrize(
    ("verb", "query", "body", "status", "message"),
    [
        ("retry", "?stage=add", b'{"stage": "*"}', 422, "The query names one stage, and the body another."),
        ("retry", "", b'{"stage": "nope"}', 422, "There is no stage 'nope'. Stages of this job: add."),
        ("retry", "", b'{"stagge": "add"}', 422, "stagge: Unknown parameter. Parameters: stage"),
        ("retry", "", b'{"stage": 3}', 422, "Expected `str | null`, got `int`"),
        ("retry", "", b"[]", 422, "The body must be a JSON object."),
        ("retry", "", b"{", 400, "The request cannot be read"),
        ("retry", "", b'{"stage": "' + b"x" * 100_000 + b'"}', 413, "body is too large"),
        ("cancel", "", b'{"stage": "add"}', 422, "stage: Unknown parameter. Parameters: none"),
        ("cancel", "", b"x", 400, "The request cannot be read"),
    ],
)
async def test_a_body_that_would_not_be_looked_at_is_refused(
    http: Http, store: Store, verb: str, query: str, body: bytes, status: int, message: str
) -> None:
    job_id = await submitted(http)
    if verb == "retry":
        await failed(store, job_id)
    before = (await http.get(f"jobs/{job_id}")).json()

    answer = await http.post(f"jobs/{job_id}/{verb}{query}", content=body, headers=JSON)

    assert (answer.status_code, message in answer.json()["detail"]) == (status, True), answer.text
    assert (await http.get(f"jobs/{job_id}")).json() == before


@pytest.mark.parametrize("verb", ["retry", "cancel"])
async def test_a_body_that_is_no_json_is_415_and_an_empty_one_is_none(http: Http, verb: str) -> None:
    job_id = await submitted(http)

    form = await http.post(f"jobs/{job_id}/{verb}", data={"stage": "add"})
    empty = await http.post(f"jobs/{job_id}/{verb}", content=b"{}", headers=JSON)

    assert (form.status_code, empty.status_code) == (415, 202)


async def test_the_log_of_a_stage_there_is_not_is_answered_with_those_there_are(http: Http) -> None:
    job_id = await submitted(http)

    answer = await http.get(f"jobs/{job_id}/log?stage=nope")

    assert answer.status_code == 422
    assert answer.json()["detail"] == "There is no stage 'nope'. Stages of this job: add."


# Seen before


async def test_a_job_that_looks_the_same_is_not_sent_again(http: Http) -> None:
    job_id = await submitted(http)
    first = await http.get(f"jobs/{job_id}")
    tag = first.headers["etag"]

    again = [await http.get(f"jobs/{job_id}", headers={"If-None-Match": each}) for each in (tag, f'"x", W/{tag}', "*")]
    other = await http.get(f"jobs/{job_id}", headers={"If-None-Match": '"x"'})

    assert tag.startswith('"')
    assert [(each.status_code, each.content, each.headers["etag"]) for each in again] == [(304, b"", tag)] * 3
    assert (other.status_code, other.json()) == (200, first.json())


async def test_whatever_is_shown_moves_the_tag(http: Http, store: Store) -> None:
    job_id, at = await submitted(http), TaskId("add")
    tags = [(await http.get(f"jobs/{job_id}")).headers["etag"]]

    await Transactor(store)(
        job_id, lambda job: lifecycle.start(job, at, token="t", worker="w", lease=60, now=store.now())
    )
    tags.append((await http.get(f"jobs/{job_id}", headers={"If-None-Match": tags[-1]})).headers["etag"])
    await store.report([Report(job_id, at, "t", 1, store.now(), 1, 2, "halfway")])
    answer = await http.get(f"jobs/{job_id}", headers={"If-None-Match": tags[-1]})

    assert answer.status_code == 200
    assert len({*tags, answer.headers["etag"]}) == 3


# Deleted


async def test_a_deleted_job_is_gone_at_once_and_its_files_with_the_next_sweep(
    http: Http, store: Store, place: Place
) -> None:
    made = await http.post("jobs?pipeline=convert&user_id=ann", files={"model": ("m.onnx", b"weights")})
    job_id = made.json()["job_id"]
    await http.post(f"jobs/{job_id}/cancel")
    there = place.objects()

    answer = await http.delete(f"jobs/{job_id}")

    assert (answer.status_code, answer.content) == (204, b"")
    assert [(await http.get(f"jobs/{job_id}{more}")).status_code for more in ("", "/events", "/artifacts")] == [404] * 3
    assert (await http.post(f"jobs/{job_id}/retry")).status_code == 404
    assert await ids(http) == []
    assert place.objects() == there != set()
    blobs = open_blobs(place.settings.blobs)
    await Janitor(store, blobs, Transactor(store), orphan_after=3600.0, period=1.0).tick()
    await blobs.close()
    assert place.objects() == set()
    assert await store.existing_ids([job_id]) == set()


async def test_a_job_is_deleted_once(http: Http) -> None:
    job_id = await submitted(http)
    await http.post(f"jobs/{job_id}/cancel")

    answers = [await http.delete(f"jobs/{each}") for each in (job_id, job_id, UNKNOWN)]

    assert [answer.status_code for answer in answers] == [204, 404, 404]


async def test_an_active_job_is_cancelled_before_it_is_deleted(http: Http) -> None:
    job_id = await submitted(http)

    answer = await http.delete(f"jobs/{job_id}")

    assert answer.status_code == 409
    assert "Cancel it first" in answer.json()["detail"]
    assert (await http.get(f"jobs/{job_id}")).json()["status"] == "pending"


async def test_the_key_of_a_deleted_job_is_free_when_it_is_gone(http: Http, store: Store) -> None:
    asked: Json = {"json": {"pipeline": "add", "parameters": {"a": 1}}, "headers": {"Idempotency-Key": "k"}}
    job_id = (await http.post("jobs", **asked)).json()["job_id"]
    await http.post(f"jobs/{job_id}/cancel")
    await http.delete(f"jobs/{job_id}")

    meanwhile = await http.post("jobs", **asked)
    await store.erase(job_id)
    afterwards = await http.post("jobs", **asked)

    assert (meanwhile.status_code, meanwhile.headers["retry-after"]) == (409, "2")
    assert afterwards.status_code == 202
    assert afterwards.json()["job_id"] != job_id


async def test_the_end_of_a_log_is_asked_for(http: Http, store: Store) -> None:
    job_id = await submitted(http)
    lines = [Line(job_id, TaskId("add"), 1, 5.0, f"line {n}") for n in range(5)]
    await store.log(lines, keep=10_000)

    page = (await http.get(f"jobs/{job_id}/log?newest=true&limit=2")).json()

    assert [each["text"] for each in page["items"]] == ["line 3", "line 4"]
    assert page["next"] is None


async def test_what_has_happened_comes_in_pages(http: Http, store: Store) -> None:
    job_id = await submitted(http)
    await failed(store, job_id)

    first = (await http.get(f"jobs/{job_id}/history?limit=2")).json()
    second = (await http.get(f"jobs/{job_id}/history?after={first['next']}")).json()

    found = [(each["n"], each["type"]) for page in (first, second) for each in page["items"]]
    assert found == [(1, "submitted"), (2, "started"), (3, "stage_started"), (4, "stage_failed"), (5, "failed")]
    assert second["next"] is None


async def test_an_estimate_is_told_from_the_runs_before(http: Http, store: Store) -> None:
    unknown = (await http.get(f"jobs/{await submitted(http, pipeline='speak', voice='amy')}/estimate")).json()
    await store.tally(
        {Tally(QUARTER, int(store.now()) // QUARTER * QUARTER, "add", STAGES, f"add:{duration_bucket(30.0)}"): 4}
    )

    known = (await http.get(f"jobs/{await submitted(http)}/estimate")).json()

    assert (unknown["seconds"], unknown["ends_at"], unknown["runs"]) == (None, None, 0)
    assert 20 < known["seconds"] == known["stages"]["add"]["usual_seconds"] < 40
    assert known["runs"] == 4
    assert known["ends_at"] is not None


async def test_who_waits_for_its_turn_is_told_how_many_go_before(http: Http, store: Store) -> None:
    await submitted(http)
    job_id = await submitted(http)
    plan = (await store.get([job_id]))[0].plan  # type: ignore[union-attr]
    await workers.enroll(store, card(queues={"default": 1}, kinds=(plan.stages[0].kind,)))

    [reason] = (await http.get(f"jobs/{job_id}/explain")).json()["reasons"]

    assert (reason["code"], reason["ahead"]) == ("QUEUED", 1)
