"""The API of one app: as if it were alone, although others run on the same store."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import httpx2
import pytest
from starlette.applications import Starlette
from starlette.routing import Mount

from packhorse import App
from packhorse.auth import keys
from packhorse.background.scheduler import declare
from packhorse.core.schedules import Declared, Terms
from packhorse.errors import DefinitionError, InvalidInput, UnknownPipeline
from packhorse.factory import open_store
from packhorse.jobs.catalog import Catalog
from packhorse.jobs.encryption import get_encryptor
from packhorse.store.base import Store
from packhorse.store.collections.workers import publish_definitions
from packhorse.web.app import asgi
from tests.contract.builders import plan, stage
from tests.contract.failures import failing, id_of
from tests.http.keyed import bearer
from tests.http.processes import Place
from tests.http.unserved import Http, unserved


def one() -> App:
    app = App("one", statuses={"pending": "created"})

    @app.job
    def only(n: int = 0) -> int:
        return n

    return app


def two() -> App:
    app = App("two", statuses={"pending": "waiting"}, default_pipeline="second")

    @app.job
    def first(n: int = 0) -> int:
        return n

    @app.job
    def second(n: int = 0) -> int:
        return n

    return app


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Store]:
    store = await open_store(Place(tmp_path).settings.store)
    await publish_definitions(store, [*one().code.definitions(), *two().code.definitions()])
    yield store
    await store.close()


@pytest.fixture
async def http(tmp_path: Path, store: Store) -> AsyncIterator[Http]:
    async with unserved(Place(tmp_path).settings, "http://127.0.0.1/") as http:
        yield http


async def submitted(http: Http, base: str, **more: object) -> str:
    answer = await http.post(f"{base}api/v1/jobs", json={"parameters": {}, "user_id": "ann", **more})
    assert answer.status_code == 202, answer.text
    assert answer.headers["Location"] == f"/{base}api/v1/jobs/{answer.json()['job_id']}"
    return str(answer.json()["job_id"])


async def test_an_app_sees_its_own_pipelines_and_jobs_only(http: Http) -> None:
    mine = await submitted(http, "apps/one/")
    others = [await submitted(http, "apps/two/"), await submitted(http, "apps/two/", pipeline="first")]

    async def listed(path: str) -> list[str]:
        return [each["job_id"] for each in (await http.get(path)).json()["items"]]

    assert await listed("apps/one/api/v1/jobs") == [mine]
    assert await listed("apps/two/api/v1/jobs") == others[::-1]
    assert await listed("apps/two/api/v1/jobs?limit=1") == others[1:]
    assert await listed(f"apps/two/api/v1/jobs?cursor={others[1]}") == others[:1]
    assert await listed("apps/two/api/v1/jobs?status=waiting&pipeline=first") == others[1:]
    assert await listed("api/v1/jobs") == [*others[::-1], mine]
    pipelines = (await http.get("apps/two/api/v1/pipelines")).json()["items"]
    assert sorted(each["name"] for each in pipelines) == ["first", "second"]
    counts = [(await http.get(f"{at}api/v1/jobs/count")).json()["count"] for at in ("apps/one/", "apps/two/", "")]
    assert counts == [1, 2, 3]


async def test_a_job_of_another_app_looks_as_if_it_did_not_exist(http: Http) -> None:
    job = await submitted(http, "apps/one/")

    gets = ["", "/events", "/log", "/artifacts", "/result", "/history", "/explain", "/metrics", "/estimate", "/tokens"]
    answers = [await http.get(f"apps/two/api/v1/jobs/{job}{each}") for each in gets]
    answers += [await http.post(f"apps/two/api/v1/jobs/{job}/{each}") for each in ("cancel", "retry", "tokens")]
    answers.append(await http.delete(f"apps/two/api/v1/jobs/{job}"))
    many = (await http.post("apps/two/api/v1/jobs/cancel", json={"ids": [job]})).json()
    listed = await http.get("apps/two/api/v1/jobs?pipeline=only")

    assert {each.status_code for each in answers} == {404}
    assert (many["count"], many["left"]) == (0, {"gone": 1})
    assert (listed.status_code, listed.json()["errors"][0]["field"]) == (422, "pipeline")
    assert (await http.get(f"apps/one/api/v1/jobs/{job}")).json()["status"] == "pending"


async def test_an_app_cannot_submit_or_schedule_for_another(http: Http) -> None:
    asked = {"pipeline": "only", "parameters": {}, "user_id": "ann"}
    terms = {"pipeline": "only", "cron": "0 8 * * *"}

    answers = [
        await http.post("apps/two/api/v1/jobs", json=asked),
        await http.put("apps/two/api/v1/schedules/daily", json=terms),
        await http.post("apps/two/api/v1/jobs/cancel", json={"all": True}),
    ]
    made = await http.put("apps/one/api/v1/schedules/daily", json=terms)

    assert [each.status_code for each in answers] == [422, 422, 422]
    assert {each.json()["errors"][0]["field"] for each in answers} == {"pipeline"}
    assert made.status_code == 201
    assert (await http.get("apps/two/api/v1/schedules/daily")).status_code == 404
    assert (await http.get("apps/two/api/v1/schedules")).json()["items"] == []
    assert [each["schedule_id"] for each in (await http.get("apps/one/api/v1/schedules")).json()["items"]] == ["daily"]


@pytest.fixture
async def moved(store: Store, http: Http) -> str:
    """A schedule that app one declares and that ran there, and that was then moved to app two and ran there."""
    declared = Declared("nightly", Terms("only", b"{}", "0 3 * * *", user="ann"))
    await declare(store, [declared], one().code.definitions(), get_encryptor(""))
    terms = {"pipeline": "second", "cron": "0 3 * * *", "user_id": "ann"}
    answers = [
        await http.post("apps/one/api/v1/schedules/nightly/run"),
        await http.put("api/v1/schedules/nightly", json=terms, headers={"If-Match": '"1"'}),
        await http.post("apps/two/api/v1/schedules/nightly/run"),
    ]
    assert [each.status_code for each in answers] == [202, 200, 202]
    return "nightly"


async def test_an_app_does_not_see_the_runs_that_a_schedule_had_in_another(http: Http, moved: str) -> None:
    async def listed(path: str) -> list[int]:
        return [each["version"] for each in (await http.get(path)).json()["items"]]

    [listing] = (await http.get("apps/two/api/v1/schedules?runs=9")).json()["items"]

    assert await listed(f"api/v1/schedules/{moved}/runs") == [2, 1]
    assert await listed(f"apps/two/api/v1/schedules/{moved}/runs") == [2]
    assert [each["version"] for each in listing["runs"]] == [2]
    assert len((await http.get(f"apps/two/api/v1/job_config/{moved}/status")).json()["items"]) == 1


async def test_an_app_does_not_see_what_another_declares_for_a_schedule(http: Http, moved: str) -> None:
    found = [(await http.get(f"{at}api/v1/schedules/{moved}")).json() for at in ("", "apps/two/")]
    [listed] = (await http.get("apps/two/api/v1/schedules")).json()["items"]

    assert [each["origin"] for each in (*found, listed)] == ["code", "person", "person"]
    assert {"field": "pipeline", "old": "only", "new": "second"} in found[0]["drift"]
    assert (found[1]["drift"], listed["drift"]) == (None, None)


async def test_a_reset_does_not_move_a_schedule_to_another_app(http: Http, moved: str) -> None:
    refused = await http.post(f"apps/two/api/v1/schedules/{moved}/reset")
    kept = (await http.get(f"api/v1/schedules/{moved}")).json()

    assert (refused.status_code, refused.json()["errors"][0]["field"]) == (422, "pipeline")
    assert (kept["version"], kept["pipeline"]) == (2, "second")


async def test_an_app_sees_and_settles_its_own_failures_only(http: Http, store: Store) -> None:
    jobs = [
        await failing(store, plan=plan(stage("only"), pipeline=each)) for each in ("only", "first", "second", "first")
    ]
    mine, others = jobs[0], [jobs[3], jobs[2], jobs[1]]

    async def listed(path: str) -> list[str]:
        return [each["job_id"] for each in (await http.get(path)).json()["items"]]

    page = (await http.get("apps/two/api/v1/failures?limit=2")).json()
    assert [each["job_id"] for each in page["items"]] == [job.id for job in others[:2]]
    assert await listed(f"apps/two/api/v1/failures?cursor={page['next']}") == [others[2].id]
    assert await listed("apps/one/api/v1/failures") == [mine.id]
    assert await listed("apps/one/api/v1/failures?pipeline=first") == []
    [group] = (await http.get("apps/one/api/v1/failures/groups")).json()["items"]
    assert group["pipeline"] == "only"
    other = {"ids": [id_of(mine)]}, {"fingerprint": group["fingerprint"]}, {"pipeline": "only"}, {"user_id": "ann"}
    answers = [await http.post("apps/two/api/v1/failures/retry", json=each) for each in other]
    assert [each.status_code for each in answers] == [404, 404, 422, 422]
    hidden = [f"{id_of(mine)}", f"groups/{group['fingerprint']}", "orders"]
    assert {(await http.get(f"apps/two/api/v1/failures/{each}")).status_code for each in hidden} == {404}

    retried = [
        await http.post("apps/two/api/v1/failures/retry", json={"pipeline": "first", "dry_run": True}),
        await http.post("apps/one/api/v1/failures/retry", json={"error_code": "BROKEN"}),
    ]
    assert [each.json()["count"] for each in retried] == [2, 1]


@pytest.mark.parametrize("path", ["apps/three/api/v1/jobs", "apps/one/api/v1/keys", "apps/one/jobs", "apps/one/"])
async def test_what_is_of_no_app_is_not_found(http: Http, path: str) -> None:
    assert (await http.get(path)).status_code == 404


async def test_the_openapi_file_names_the_app_as_its_server(http: Http) -> None:
    found = (await http.get("apps/one/openapi.json")).json()

    assert found["servers"] == [{"url": "/apps/one"}]
    assert found["paths"] == (await http.get("openapi.json")).json()["paths"]


async def test_an_app_is_found_below_a_mount(tmp_path: Path, store: Store) -> None:
    app = asgi(Place(tmp_path).settings)
    parent = httpx2.ASGITransport(app=Starlette(routes=[Mount("/carrier", app)]))

    async with httpx2.AsyncClient(transport=parent, base_url="http://127.0.0.1/carrier/apps/one/") as http:
        made = await http.post("api/v1/jobs", json={"parameters": {}, "user_id": "ann"})
        found = await http.get(f"http://127.0.0.1{made.headers['Location']}")
        servers = (await http.get("openapi.json")).json()["servers"]

    assert made.headers["Location"] == f"/carrier/apps/one/api/v1/jobs/{made.json()['job_id']}"
    assert (found.json()["pipeline"], servers) == ("only", [{"url": "/carrier/apps/one"}])


async def test_keys_and_tenants_hold_in_the_api_of_an_app(tmp_path: Path, store: Store) -> None:
    acme, other = [bearer((await keys.create(store, each, ["submit", "read"], by="cli"))[1]) for each in ("a", "b")]
    body = {"parameters": {}, "user_id": "ann"}

    async with unserved(Place(tmp_path, keyless=False).settings, "http://127.0.0.1/apps/one/api/v1/") as http:
        job = (await http.post("jobs", json=body, headers=acme)).json()["job_id"]
        answers = [await http.get(f"jobs/{job}", headers=each) for each in (acme, other, {})]
        operated = await http.get("schedules", headers=acme)

    assert [each.status_code for each in answers] == [200, 404, 401]
    assert "RateLimit" in answers[0].headers
    assert operated.status_code == (await _unscoped_status(tmp_path, acme))


async def _unscoped_status(folder: Path, key: dict[str, str]) -> int:
    async with unserved(Place(folder, keyless=False).settings) as http:
        return int((await http.get("schedules", headers=key)).status_code)


async def test_the_default_pipeline_is_meant_where_none_is_named(store: Store) -> None:
    with pytest.raises(InvalidInput, match="Name a pipeline"):
        await Catalog(store).get(None)
    with pytest.raises(UnknownPipeline):
        await Catalog(store, "gone").get(None)

    found = [await Catalog(store, "first").get(None, app) for app in ("", "one", "two")]

    assert [each.plan.pipeline for each in found] == ["first", "only", "first"]
    assert (await Catalog(store).get(None, "two")).plan.pipeline == "second"


def test_a_default_that_there_is_not_is_refused() -> None:
    with pytest.raises(DefinitionError, match="default_pipeline='gone', but no such pipeline"):
        App("words", default_pipeline="gone").code.definitions()
