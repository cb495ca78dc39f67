"""Failures over HTTP, on every store: listed, grouped, retried and dismissed, by those who may."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from packhorse.background.failures import BulkActions
from packhorse.core.failures import MAX_TIMES
from packhorse.jobs.transact import Transactor
from packhorse.store.base import Store
from packhorse.store.collections.failures import dismiss_group, list_orders
from tests.contract.failures import BY_ANN, failing, failing_many, id_of, only_group, wrong
from tests.http.conftest import publish
from tests.http.keyed import asking, audited, key
from tests.http.processes import Place
from tests.http.unserved import Http


@pytest.fixture
def place(tmp_path: Path, anywhere: str) -> Place:
    place = Place(tmp_path, store=anywhere)
    publish(place)
    return place


async def work(store: Store) -> None:
    """What a worker does about orders."""
    duty = BulkActions(store, Transactor(store))
    while await duty.tick() == 0.0:
        pass


async def found(http: Http, query: str = "") -> list[str]:
    return [each["job_id"] for each in (await http.get(f"failures{query}")).json()["items"]]


async def test_a_failure_is_shown_with_all_that_is_known_of_it(http: Http, store: Store) -> None:
    job = await failing(store, wrong("Model 7 is broken."), user="ann", trace_id="t1")
    group = await only_group(store)

    [shown] = (await http.get("failures")).json()["items"]

    assert shown == (await http.get(f"failures/{id_of(job)}")).json()
    assert shown["timestamp"].endswith("Z")
    assert shown | {"timestamp": None} == {
        "failure_id": id_of(job), "fingerprint": group.fingerprint, "job_id": job.id, "run": 1,
        "tenant_id": "default", "user_id": "ann", "pipeline": "convert", "stage": "only", "error_code": "BROKEN",
        "message": "Model 7 is broken.", "attempts": 1, "timestamp": None, "trace_id": "t1", "schedule_id": None,
        "status": "open", "settled": None, "revived": 0, "revived_at_most": 0, "revives_at": None,
    }  # fmt: skip


async def test_failures_are_filtered_and_paged(http: Http, store: Store) -> None:
    jobs = [
        await failing(store, wrong(f"Way {name}.", code), user=name) for name, code in zip("abc", "AAB", strict=True)
    ]
    newest = sorted(jobs, key=id_of, reverse=True)

    first = (await http.get("failures?limit=2")).json()
    rest = (await http.get(f"failures?limit=2&cursor={first['next']}")).json()

    assert [each["failure_id"] for each in first["items"] + rest["items"]] == [id_of(job) for job in newest]
    assert rest["next"] is None
    assert await found(http, "?error_code=B") == [jobs[2].id]
    assert await found(http, "?user_id=a") == [jobs[0].id]
    assert await found(http, f"?job_id={jobs[1].id}") == [jobs[1].id]
    assert await found(http, "?status=dismissed") == []
    assert await found(http, "?schedule_id=none") == []
    assert len(await found(http, "?pipeline=convert&since=2026-01-01T00:00:00Z")) == 3
    assert await found(http, "?until=2026-01-01T00:00:00Z") == []
    assert (await http.get("failures?code=A")).status_code == 422


async def test_groups_tell_how_many_since_when_and_how_many_users(http: Http, store: Store) -> None:
    for n, user in enumerate(("ann", "bob", "ann")):
        await failing(store, wrong(f"It broke {n} times."), user=user)

    [group] = (await http.get("failures/groups")).json()["items"]

    assert group == (await http.get(f"failures/groups/{group['fingerprint']}")).json()
    assert (group["count"], group["open"], group["users"], group["has_more_users"]) == (3, 3, 2, False)
    assert group["first_seen"] < group["last_seen"]
    assert (group["is_dismissed"], group["dismissal"], group["seen_again"]) == (False, None, None)
    assert (group["error_code"], group["message"]) == ("BROKEN", "It broke 0 times.")


async def test_a_trial_tells_how_many_and_which_and_orders_nothing(http: Http, store: Store) -> None:
    await failing_many(store, *[wrong()] * 12, wrong("Another thing.", "OTHER"))

    answer = await http.post("failures/retry", json={"error_code": "BROKEN", "dry_run": True})

    said = answer.json()
    assert answer.status_code == 202
    assert (said["count"], said["is_at_least"], said["order"]) == (12, False, None)
    assert len(said["first"]) == 10
    assert {each["error_code"] for each in said["first"]} == {"BROKEN"}
    assert (await http.get("failures/orders")).json()["items"] == []


async def test_one_is_retried_by_its_id_and_the_order_says_how_far_it_is(http: Http, store: Store) -> None:
    job, other = await failing(store), await failing(store)

    order = (await http.post("failures/retry", json={"ids": [id_of(job)], "pace": 5})).json()["order"]
    await work(store)
    done = (await http.get(f"failures/orders/{order['order_id']}")).json()

    assert (order["kind"], order["done"], order["ended_at"], order["by"], order["pace"]) == (
        "retry",
        0,
        None,
        "local",
        5,
    )
    assert (done["done"], done["left"], done["named"]) == (1, {}, [])
    assert done["ended_at"] is not None
    assert (await http.get("failures/orders")).json()["items"] == [done]
    shown = (await http.get(f"failures/{id_of(job)}")).json()
    assert (shown["status"], shown["settled"]["run"], shown["settled"]["order_id"]) == ("retried", 2, order["order_id"])
    assert (await http.get(f"failures/{id_of(other)}")).json()["status"] == "open"


async def test_a_group_is_retried_whole(http: Http, store: Store) -> None:
    await failing_many(store, *[wrong()] * 3, wrong("Another thing."))
    [group] = [each for each in await store.failure_groups("default") if each.count == 3]

    await http.post("failures/retry", json={"fingerprint": group.fingerprint})
    await work(store)

    assert (await http.get(f"failures/groups/{group.fingerprint}")).json()["retried"] == 3
    assert len(await found(http, "?status=open")) == 1


async def test_a_dismissed_group_says_by_whom_and_why_until_it_is_seen_again(http: Http, store: Store) -> None:
    await failing(store)
    group = await only_group(store)

    answer = await http.post("failures/dismiss", json={"fingerprint": group.fingerprint, "reason": "It is known."})
    at_once = (await http.get(f"failures/groups/{group.fingerprint}")).json()
    await work(store)
    dismissed = (await http.get(f"failures/groups/{group.fingerprint}")).json()
    await failing(store)
    again = (await http.get(f"failures/groups/{group.fingerprint}")).json()

    assert answer.status_code == 202
    assert (at_once["is_dismissed"], at_once["dismissal"]["reason"]) == (True, "It is known.")
    assert (dismissed["open"], dismissed["dismissed"]) == (0, 1)
    assert (again["is_dismissed"], again["open"]) == (False, 1)
    assert again["seen_again"] is not None


async def test_a_part_of_a_group_is_dismissed_without_the_group(http: Http, store: Store) -> None:
    await failing(store, user="ann")
    await failing(store, user="bob")
    group = await only_group(store)

    asked = {"fingerprint": group.fingerprint, "user_id": "ann", "reason": "ann knows"}
    await http.post("failures/dismiss", json=asked)
    await work(store)

    after = await only_group(store)
    assert (after.open, after.dismissed, after.dismissal) == (1, 1, None)


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "ids"),
        ({"ids": ["x"], "pipeline": "p"}, "ids"),
        ({"ids": ["x"] * 1001}, "ids"),
        ({"pipeline": "p", "pace": 0}, "pace"),
        ({"pipeline": "p", "pace": -1}, "pace"),
        ({"pipeline": "\0"}, "pipeline"),
        ({"since": "yesterday"}, "since"),
        ({"group": "g"}, "group"),
    ],
    ids=["nothing", "both", "many", "no pace", "back", "nul", "no time", "unknown"],
)
async def test_what_cannot_be_meant_is_refused(http: Http, body: dict[str, Any], field: str) -> None:
    answer = await http.post("failures/retry", json=body)

    assert answer.status_code == 422
    assert field in [each["field"] for each in answer.json()["errors"]]


@pytest.mark.parametrize("reason", [None, "", "  ", "x" * 501, "\0"], ids=["none", "empty", "blank", "long", "nul"])
async def test_a_dismissal_needs_a_reason(http: Http, store: Store, reason: str | None) -> None:
    job = await failing(store)
    body = {"ids": [id_of(job)], **({} if reason is None else {"reason": reason})}

    answer = await http.post("failures/dismiss", json=body)

    assert answer.status_code == 422
    assert [each["field"] for each in answer.json()["errors"]] == ["reason"]
    assert await list_orders(store, "default") == []


@pytest.mark.parametrize("path", ["failures/nope", "failures/groups/nope", "failures/orders/nope"])
async def test_what_is_not_there_is_404(http: Http, path: str) -> None:
    assert (await http.get(path)).status_code == 404


async def test_what_is_not_there_is_not_retried(http: Http) -> None:
    unknown = await http.post("failures/retry", json={"ids": ["nope"]})
    group = await http.post("failures/retry", json={"fingerprint": "nope"})

    assert (unknown.status_code, unknown.json()["type"].rpartition(":")[2]) == (404, "failure-not-found")
    assert (group.status_code, group.json()["type"].rpartition(":")[2]) == (404, "failure-group-not-found")


async def test_a_job_retried_by_the_usual_way_settles_its_failure(http: Http, store: Store) -> None:
    job = await failing(store)

    await http.post(f"jobs/{job.id}/retry")

    assert (await http.get(f"failures/{id_of(job)}")).json()["status"] == "retried"


# With keys


@pytest.fixture
async def keyed(place: Place) -> Any:
    place.settings = replace(place.settings, keyless=False)
    async with asking(place) as http:
        yield http


async def test_reading_and_settling_need_their_scopes(keyed: Http, store: Store) -> None:
    job = await failing(store, tenant="acme")
    reads, works = await key(store, "acme", "read"), await key(store, "acme", "operate")

    assert (await keyed.get("failures", headers=reads)).status_code == 200
    assert (await keyed.post("failures/retry", json={"ids": [id_of(job)]}, headers=reads)).status_code == 403
    answer = await keyed.post("failures/retry", json={"ids": [id_of(job)]}, headers=works)
    assert answer.status_code == 202


async def test_a_key_for_one_user_sees_that_users_failures_and_no_groups(keyed: Http, store: Store) -> None:
    mine, other = await failing(store, tenant="acme", user="ann"), await failing(store, tenant="acme", user="bob")
    headers = await key(store, "acme", "read", "operate", user="ann")

    listed = (await keyed.get("failures", headers=headers)).json()["items"]

    assert [each["job_id"] for each in listed] == [mine.id]
    assert (await keyed.get("failures?user_id=bob", headers=headers)).json()["items"] == []
    assert (await keyed.get(f"failures/{id_of(other)}", headers=headers)).status_code == 404
    assert (await keyed.get("failures/groups", headers=headers)).status_code == 403
    assert (await keyed.post("failures/retry", json={"ids": [id_of(mine)]}, headers=headers)).status_code == 403


async def test_what_is_ordered_is_audited(keyed: Http, store: Store) -> None:
    await failing(store, tenant="acme")
    headers = await key(store, "acme", "operate")

    await keyed.post("failures/dismiss", json={"error_code": "BROKEN", "reason": "known"}, headers=headers)

    entries = await audited(store, 2, "acme")
    [entry] = [each for each in entries if each.event == "failures.dismissed"]
    assert (entry.details["count"], entry.details["reason"]) == (1, "known")
    [order] = await list_orders(store, "acme")
    assert entry.details["order_id"] == order.id


async def test_anothers_failures_are_neither_seen_nor_touched(keyed: Http, store: Store) -> None:
    job = await failing(store, tenant="acme")
    group = await only_group(store, "acme")
    await dismiss_group(store, "acme", group.fingerprint, BY_ANN)
    headers = await key(store, "umbrella", "operate")

    assert (await keyed.get("failures", headers=headers)).json()["items"] == []
    for body in ({"ids": [id_of(job)]}, {"fingerprint": group.fingerprint}):
        assert (await keyed.post("failures/retry", json=body, headers=headers)).status_code == 404
    answer = await keyed.post("failures/retry", json={"error_code": "BROKEN"}, headers=headers)
    assert answer.json()["count"] == 0
    await work(store)
    assert (await only_group(store, "acme")).open == 1


# Trends, and what an order is about


async def test_a_group_tells_its_trend_if_asked(http: Http, store: Store) -> None:
    await failing_many(store, *[wrong() for _ in range(3)])
    group = await only_group(store)

    [plain] = (await http.get("failures/groups")).json()["items"]
    [listed] = (await http.get("failures/groups?trend=true")).json()["items"]
    one = (await http.get(f"failures/groups/{group.fingerprint}?trend=true")).json()

    assert "trend" not in plain
    assert sum(listed["trend"]["counts"]) == sum(one["trend"]["counts"]) == 3
    assert (len(one["trend"]["counts"]), one["trend"]["seconds"], one["trend"]["is_cut"]) == (24, 3600.0, False)


async def test_a_trend_says_that_it_does_not_know_all(http: Http, store: Store) -> None:
    await failing_many(store, *[wrong() for _ in range(MAX_TIMES + 1)])

    [group] = (await http.get("failures/groups?trend=true")).json()["items"]

    assert group["count"] == MAX_TIMES + 1
    assert group["trend"]["is_cut"]
    assert sum(each or 0 for each in group["trend"]["counts"]) == MAX_TIMES


async def test_dismissed_groups_are_chosen_or_left_out(http: Http, store: Store) -> None:
    await failing(store, wrong("Way a."))
    known = (await only_group(store)).fingerprint
    await failing(store, wrong("Way b."))
    await dismiss_group(store, "default", known, BY_ANN)

    async def listed(query: str) -> list[str]:
        found = (await http.get(f"failures/groups{query}")).json()["items"]
        return [each["fingerprint"] for each in found]

    assert len(await listed("")) == 2
    assert await listed("?dismissed=true") == [known]
    assert known not in await listed("?dismissed=false")


async def test_an_order_says_what_it_is_about_and_how_many_that_were(http: Http, store: Store) -> None:
    jobs = await failing_many(store, wrong(), wrong())
    group = await only_group(store)

    of_group = (await http.post("failures/retry", json={"fingerprint": group.fingerprint})).json()["order"]
    of_one = (await http.post("failures/retry", json={"ids": [id_of(jobs[0])]})).json()["order"]

    assert (of_group["about"]["fingerprint"], of_group["about"]["pipeline"]) == (group.fingerprint, None)
    assert (of_group["count"], of_one["count"], of_one["about"]) == (2, 1, None)
