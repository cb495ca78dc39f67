"""Limits over HTTP: what is in force, who holds it, what waits, and what operators set."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from packhorse.core import json
from packhorse.core.plan import Definition
from packhorse.define.registry import load
from packhorse.errors import Conflict
from packhorse.factory import open_store
from packhorse.store.base import Starter, Store
from packhorse.store.collections import limits, workers
from packhorse.store.collections.workers import publish_definitions
from tests.contract.builders import card
from tests.http.keyed import asking, audited, key
from tests.http.processes import Place
from tests.http.unserved import Http

APP = """
from packhorse import App, Context, Limit, Params

app = App("limited")


class Photos(Params):
    site: str = "oslo"


album = app.pipeline("album", Photos, limits=[Limit("user", at_once=1)])


@album.stage(limits=[Limit("params.site", per_minute=2)])
def measure(ctx: Context, p: Photos) -> str:
    return p.site
"""
USER, SITE = "album.user", "album.measure.params.site.per_minute"


@pytest.fixture(scope="module")
def definitions(tmp_path_factory: pytest.TempPathFactory) -> list[Definition]:
    path = tmp_path_factory.mktemp("app") / "limited.py"
    path.write_text(APP)
    return load(str(path)).definitions()


@pytest.fixture
def place(tmp_path: Path, definitions: list[Definition]) -> Place:
    place = Place(tmp_path)

    async def publish() -> None:
        store = await open_store(place.settings.store)
        await publish_definitions(store, definitions)
        await store.close()

    asyncio.run(publish())
    return place


async def submit(http: Http, user: str = "ann", **options: Any) -> str:
    body = {"pipeline": "album", "user_id": user}
    return str((await http.post("jobs", json=body, **options)).json()["job_id"])


async def start(store: Store, definitions: list[Definition], limit: int = 10) -> list[str]:
    """The jobs whose stages a worker starts now."""
    tokens = (f"t{n}-{store.now()}" for n in range(1000))
    [kind] = {b["kind"] for b in _stages(definitions)}
    claims = await store.claim({"default": limit}, {kind}, Starter(tokens, "w", 15.0, store.now))
    return [claim.job.id for claim in claims]


def _stages(definitions: list[Definition]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for each in definitions:
        found += json.decode(each.plan)["stages"]
    return found


async def found(http: Http, name: str, **options: Any) -> dict[str, Any]:
    answer = await http.get(f"limits/{name}", **options)
    assert answer.status_code == 200
    return dict(answer.json())


async def test_limits_say_what_is_in_force_and_who_holds_it(
    http: Http, store: Store, definitions: list[Definition]
) -> None:
    jobs = [await submit(http) for _ in range(3)]
    started = await start(store, definitions)

    listed = {each["name"]: each for each in (await http.get("limits")).json()["items"]}

    assert started == jobs[:1]
    assert listed.keys() == {USER, SITE}
    of_user = listed[USER]
    assert (of_user["by"], of_user["window_seconds"], of_user["declared"]) == ("user", None, [1])
    assert (of_user["pipelines"], of_user["set"], of_user["used"], of_user["parked"]) == (["album.measure"], None, 1, 2)
    [held] = of_user["keys"]
    assert (held["value"], [each["job_id"] for each in held["holders"]]) == ("ann", started)
    [site] = listed[SITE]["keys"]
    assert (listed[SITE]["window_seconds"], site["value"], site["used"]) == (60.0, "oslo", 1)
    assert site["free_at"] is not None


async def test_a_number_that_is_set_applies_at_once_and_is_kept_with_its_reason(
    http: Http, store: Store, definitions: list[Definition]
) -> None:
    jobs = [await submit(http) for _ in range(3)]
    await start(store, definitions)

    answer = await http.put(f"limits/{USER}", json={"most": 2, "reason": "the night is quiet"})

    document = answer.json()
    assert (answer.status_code, document["version"]) == (200, 1)
    assert (document["set"]["most"], document["set"]["by"], document["set"]["reason"]) == (
        2,
        "local",
        "the night is quiet",
    )
    assert await start(store, definitions) == jobs[1:2]
    document = (await http.request("DELETE", f"limits/{USER}", json={"reason": "day"})).json()
    assert (document["set"], document["version"]) == (None, 2)
    assert [(each["most"], each["reason"]) for each in document["versions"]] == [
        (None, "day"),
        (2, "the night is quiet"),
    ]
    assert await start(store, definitions) == []
    events = [each for each in await audited(store, 2) if each.event.startswith("limit.")]
    assert [(each.event, each.details["most"]) for each in events] == [("limit.set", 2), ("limit.reset", None)]


async def test_zero_stops_what_the_limit_applies_to(http: Http, store: Store, definitions: list[Definition]) -> None:
    await http.put(f"limits/{SITE}", json={"most": 0})
    job_id = await submit(http)

    assert await start(store, definitions) == []
    [reason] = (await http.get(f"jobs/{job_id}/explain")).json()["reasons"]
    assert reason["code"] == "NO_WORKER"  # nobody serves it either, and that comes first


@pytest.mark.parametrize(
    "body", [{"most": -1}, {"most": 1.5}, {"most": 10**9}, {}, None, {"most": 1, "reason": "x" * 501}]
)
async def test_a_number_that_makes_no_sense_is_refused(http: Http, body: dict[str, Any] | None) -> None:
    answer = await http.put(f"limits/{USER}", json=body)

    assert answer.status_code == 422
    assert (await found(http, USER))["version"] == 0


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE"])
async def test_a_limit_that_nobody_has_is_404(http: Http, method: str) -> None:
    answer = await http.request(method, "limits/albun.user", json={"most": 1} if method == "PUT" else None)

    assert (answer.status_code, answer.json()["type"]) == (404, "urn:packhorse:limit-not-found")


async def test_a_change_of_what_has_changed_meanwhile_is_refused(http: Http) -> None:
    await http.put(f"limits/{USER}", json={"most": 2, "version": 0})

    answer = await http.put(f"limits/{USER}", json={"most": 3, "version": 0})

    assert answer.status_code == 409
    assert (await found(http, USER))["set"]["most"] == 2


async def test_of_several_changes_at_once_the_newest_is_in_force(store: Store) -> None:
    await asyncio.gather(*(limits.put_limit(store, USER, n, by="ann", reason="") for n in range(1, 8)))

    newest = (await limits.list_limits(store))[USER].newest
    [state] = await store.limit_states([f"{USER}=default/ann"])
    assert (newest.version, state.most) == (7, newest.most)
    with pytest.raises(Conflict):
        await limits.put_limit(store, USER, 1, by="ann", reason="", expected=3)


async def test_what_a_server_could_not_put_in_force_a_worker_does(store: Store) -> None:
    await limits.put_limit(store, USER, 2, by="ann", reason="")
    await store.set_limit(USER, None)

    await limits.apply_limits(store)

    [state] = await store.limit_states([f"{USER}=default/ann"])
    assert state.most == 2


async def test_operators_do_not_see_users_and_jobs_of_other_tenants(
    tmp_path: Path, definitions: list[Definition]
) -> None:
    place = Place(tmp_path, keyless=False)
    store = await open_store(place.settings.store)
    await publish_definitions(store, definitions)
    async with asking(place) as http:
        operator = await key(store, "default", "operate")
        foreign = await submit(http, "secret-user", headers=await key(store, "acme"))
        mine = await submit(http, "ann", headers=await key(store, "default"))
        await start(store, definitions)

        document = await found(http, USER, headers=operator)
        answer = await http.get("limits", headers=await key(store, "acme", "operate"))

    await store.close()
    assert document["used"] == 2
    values = {each["value"]: [holder["job_id"] for holder in each["holders"]] for each in document["keys"]}
    assert values == {None: [], "ann": [mine]}
    assert foreign not in str(document)
    assert "secret-user" not in str(document)
    assert answer.status_code == 403


async def test_explain_names_the_limit_its_holders_and_when_there_is_room(
    http: Http, store: Store, definitions: list[Definition]
) -> None:
    [kind] = {stage["kind"] for stage in _stages(definitions)}
    await workers.enroll(store, card("w", queues={"default": 4}, kinds=(kind,)))
    [first, second] = [await submit(http) for _ in range(2)]
    await start(store, definitions)

    [reason] = (await http.get(f"jobs/{second}/explain")).json()["reasons"]

    assert reason["code"] == "LIMITED"
    assert reason["message"] == f"`measure` waits for limit `album.user`: 1 of 1 at once are used, by job {first}"
    assert reason["limit"] == {
        "name": USER, "most": 1, "window_seconds": None, "used": 1, "parked": 1, "jobs": [first], "free_at": None,
    }  # fmt: skip
    await submit(http, "bob")
    await start(store, definitions)
    waiting = await submit(http, "eve")
    await start(store, definitions)
    [reason] = (await http.get(f"jobs/{waiting}/explain")).json()["reasons"]
    assert reason["limit"]["name"] == SITE
    assert "2 of 2 per minute are used; there is room again in " in reason["message"]
    assert reason["limit"]["free_at"] is not None
    assert first not in str(reason)
