"""Many jobs at once over HTTP: counted, cancelled, retried and deleted, on every store, by those who may."""

from __future__ import annotations

from typing import Any

import pytest

from packhorse.auth import keys
from packhorse.core.plan import Status
from packhorse.store.base import Filter, Store
from tests.contract.builders import (
    cancelled,
    completed,
    failed,
    held,
    ids,
    marked,
    plan,
    stage,
    started,
    submit,
    submit_many,
)
from tests.http.conftest import publish
from tests.http.keyed import asking, audited, bearer, key
from tests.http.processes import Place
from tests.http.unserved import Http

ALONE = plan(stage("only"), pipeline="alone", slot="alone")
VERBS = ("cancel", "retry", "delete")


@pytest.fixture
def place(anywhere: str, tmp_path: Any) -> Place:
    place = Place(tmp_path, store=anywhere)
    publish(place)
    return place


async def changed(http: Http, verb: str, **body: Any) -> Any:
    answer = await http.post(f"jobs/{verb}", json=body)
    assert answer.status_code == 202, answer.text
    return answer.json()


async def all_changed(http: Http, verb: str, **body: Any) -> list[Any]:
    """The answers, one after the other, until nothing is left."""
    answers = [await changed(http, verb, **body)]
    while (cursor := answers[-1]["next"]) is not None:
        answers.append(await changed(http, verb, **body, cursor=cursor))
    return answers


async def status(store: Store, job_id: str) -> Status:
    return (await held(store, job_id)).status


# Counting


async def test_jobs_are_counted_by_the_filters_of_the_list(http: Http, store: Store) -> None:
    await submit_many(store, 3, user="ann")
    await completed(store, user="bob")

    async def count(query: str = "") -> Any:
        return (await http.get(f"jobs/count{query}")).json()

    assert await count() == {"count": 4, "is_at_least": False}
    assert (await count("?status=pending"))["count"] == 3
    assert (await count("?user_id=bob"))["count"] == 1
    assert (await count("?pipeline=add"))["count"] == 0
    assert (await count("?created_until=2026-01-01T00:00:00Z"))["count"] == 0
    assert (await http.get("jobs/count?limit=3")).status_code == 422


async def test_a_count_ends_at_a_thousand(http: Http, store: Store) -> None:
    await submit_many(store, 1001)

    assert (await http.get("jobs/count")).json() == {"count": 1000, "is_at_least": True}


# By ids


async def test_those_that_are_named_are_cancelled_and_others_left(http: Http, store: Store) -> None:
    done = await completed(store)
    asked_to_stop = (await started(store)).job
    first, second, other = await submit_many(store, 3)

    answer = await changed(http, "cancel", ids=[first.id, second.id, done.id, asked_to_stop.id, "none", "a\0b"])

    assert (answer["count"], answer["left"], answer["next"]) == (3, {"completed": 1, "gone": 2}, None)
    assert answer["named"] == [
        {"job_id": done.id, "why": "completed"}, {"job_id": "none", "why": "gone"}, {"job_id": "a\0b", "why": "gone"}
    ]  # fmt: skip
    assert [await status(store, each.id) for each in (first, second, other)] == ["cancelled", "cancelled", "pending"]
    assert (await held(store, asked_to_stop.id)).stopping == "cancel"


@pytest.mark.parametrize("verb", VERBS)
async def test_asked_twice_it_is_done_once(http: Http, store: Store, verb: str) -> None:
    ended, running, active = await failed(store), (await started(store)).job, await submit(store)
    body = {"ids": [active.id, ended.id, running.id]}

    first = await changed(http, verb, **body)
    after = await store.get(body["ids"])
    again = await changed(http, verb, **body)

    assert first["count"] == (2 if verb == "cancel" else 1)
    assert again["count"] == 0
    assert sum(again["left"].values()) == 3
    assert await store.get(body["ids"]) == after


async def test_a_retry_leaves_alone_whose_slot_is_taken(http: Http, store: Store) -> None:
    first = await failed(store, ALONE, user="ann")
    second = await failed(store, ALONE, user="ann")

    answer = await changed(http, "retry", ids=[first.id, second.id])

    assert (answer["count"], answer["left"]) == (1, {"slot_taken": 1})
    assert sorted([await status(store, first.id), await status(store, second.id)]) == ["failed", "pending"]


async def test_what_is_deleted_is_gone_at_once(http: Http, store: Store) -> None:
    job, active = await completed(store), await submit(store)

    answer = await changed(http, "delete", ids=[job.id, active.id])

    assert (answer["count"], answer["left"]) == (1, {"pending": 1})
    assert (await http.get(f"jobs/{job.id}")).status_code == 404
    assert (await http.get("jobs/count")).json()["count"] == 1


# By a filter


async def test_all_that_match_are_cancelled_in_several_steps(http: Http, store: Store) -> None:
    await completed(store, user="ann")
    running = (await started(store, user="bob")).job
    mine = await submit_many(store, 450, user="ann")
    waiting = await submit(store, user="bob")

    answers = await all_changed(http, "cancel", user_id="ann")

    assert [each["count"] for each in answers] == [200, 200, 50]
    assert all(each["left"] == {} for each in answers)
    assert ids(await store.find(Filter(status=Status.CANCELLED), limit=1000)) == ids(mine)[::-1]
    assert await store.get([running.id, waiting.id]) == [running, waiting]


async def test_with_all_every_active_job_is_meant_running_ones_too(http: Http, store: Store) -> None:
    done, running, waiting = await failed(store), (await started(store)).job, await submit(store)

    answer = await changed(http, "cancel", all=True)

    assert (answer["count"], answer["left"], answer["next"]) == (2, {}, None)
    assert (await held(store, running.id)).stopping == "cancel"
    assert (await status(store, waiting.id), await status(store, done.id)) == ("cancelled", "failed")


async def test_all_failed_and_cancelled_are_retried_but_not_the_completed(http: Http, store: Store) -> None:
    done, first, second = await completed(store), await failed(store), await cancelled(store)

    answer = await changed(http, "retry", all=True)

    assert answer["count"] == 2
    assert [await status(store, each.id) for each in (done, first, second)] == ["completed", "pending", "pending"]


async def test_all_ended_ones_are_deleted_and_those_being_purged_are_not_counted(http: Http, store: Store) -> None:
    await marked(store, await completed(store))
    for make in (completed, failed, cancelled):
        await make(store)
    active = await submit(store)

    answer = await changed(http, "delete", pipeline="convert")

    assert (answer["count"], answer["left"]) == (3, {})
    assert [each["job_id"] for each in (await http.get("jobs")).json()["items"]] == [active.id]


async def test_a_status_in_which_nothing_can_be_done_means_no_job(http: Http, store: Store) -> None:
    await completed(store)

    answer = await changed(http, "cancel", status="completed")

    assert (answer["count"], answer["left"], answer["next"]) == (0, {}, None)


async def test_jobs_that_come_after_the_first_step_are_not_meant(http: Http, store: Store) -> None:
    await submit_many(store, 201)
    first = await changed(http, "cancel", all=True)
    late = await submit(store)

    rest = await changed(http, "cancel", all=True, cursor=first["next"])

    assert (first["count"], rest["count"]) == (200, 1)
    assert await status(store, late.id) == "pending"


async def test_nor_are_they_in_another_status_that_is_come_to_later(http: Http, store: Store) -> None:
    await submit_many(store, 200)
    first = await changed(http, "cancel", all=True)
    late = (await started(store)).job

    rest = await changed(http, "cancel", all=True, cursor=first["next"])

    assert (first["count"], rest["count"], rest["next"]) == (200, 0, None)
    assert await held(store, late.id) == late


# Trials, and what is refused


@pytest.mark.parametrize("verb", VERBS)
async def test_a_trial_tells_how_many_and_changes_nothing(http: Http, store: Store, verb: str) -> None:
    jobs = [await failed(store), await completed(store), *await submit_many(store, 12)]
    before = await store.get(ids(jobs))
    able = {"cancel": 12, "retry": 1, "delete": 2}[verb]

    by_filter = await changed(http, verb, pipeline="convert", dry_run=True)
    by_ids = await changed(http, verb, ids=[*ids(jobs), "none"], dry_run=True)

    assert (by_filter["count"], by_filter["is_at_least"], by_filter["left"]) == (able, False, {})
    assert len(by_filter["first"]) == min(able, 10)
    assert (by_ids["count"], sum(by_ids["left"].values())) == (able, 15 - able)
    assert await store.get(ids(jobs)) == before


async def test_a_trial_counts_no_further_than_a_thousand(http: Http, store: Store) -> None:
    await submit_many(store, 1001)

    answer = await changed(http, "cancel", all=True, dry_run=True)

    assert (answer["count"], answer["is_at_least"]) == (1000, True)


@pytest.mark.parametrize("verb", VERBS)
async def test_what_is_not_meant_clearly_is_refused(http: Http, store: Store, verb: str) -> None:
    job = await submit(store)
    bodies: dict[str, dict[str, Any]] = {
        "ids": {}, "both": {"ids": [job.id], "all": True}, "many": {"ids": ["x"] * 201}, "nul": {"user_id": "a\0"},
        "time": {"created_from": "soon"}, "status": {"status": "odd"}, "name": {"state": "pending"},
        "cursor": {"all": True, "cursor": "odd"}, "infinite": {"all": True, "cursor": "1e999:odd:"},
    }  # fmt: skip

    answers = {name: await http.post(f"jobs/{verb}", json=body) for name, body in bodies.items()}

    assert {name: answer.status_code for name, answer in answers.items()} == dict.fromkeys(bodies, 422)
    assert await status(store, job.id) == "pending"


# Who may


@pytest.fixture
def keyed(anywhere: str, tmp_path: Any) -> Place:
    return Place(tmp_path, store=anywhere, keyless=False)


@pytest.mark.parametrize("verb", VERBS)
async def test_only_ones_own_are_changed(keyed: Place, store: Store, verb: str) -> None:
    make = submit if verb == "cancel" else failed
    own, of_bob = await make(store, tenant="acme", user="ann"), await make(store, tenant="acme", user="bob")
    foreign = await make(store, tenant="zeta", user="ann")
    headers = await key(store, "acme", "submit", "read", user="ann")

    async with asking(keyed) as http:
        by_ids = await _told(http, verb, headers, ids=[of_bob.id, foreign.id])
        trial = await _told(http, verb, headers, ids=[of_bob.id, foreign.id], dry_run=True)
        of_others = await _told(http, verb, headers, user_id="bob")
        all = await _told(http, verb, headers, all=True)

    assert (by_ids["count"], by_ids["left"], trial["count"], trial["left"]) == (0, {"gone": 2}, 0, {"gone": 2})
    assert (of_others["count"], all["count"]) == (0, 1)
    assert [await held(store, each.id) for each in (of_bob, foreign)] == [of_bob, foreign]
    assert await held(store, own.id) != own


async def _told(http: Http, verb: str, headers: dict[str, str], **body: Any) -> Any:
    answer = await http.post(f"jobs/{verb}", json=body, headers=headers)
    assert answer.status_code == 202
    return answer.json()


async def test_each_verb_needs_what_it_needs_for_one_job(keyed: Place, store: Store) -> None:
    """A token is for the one job it names, though it may cancel that."""
    can_submit, can_read = await key(store, "acme", "submit"), await key(store, "acme", "read")
    job = await submit(store, tenant="acme")
    _, text = await keys.create_token(store, job, by="cli", client="", lasting=60.0)

    async with asking(keyed) as http:
        answers = [
            [(await http.post(f"jobs/{verb}", json={"all": True}, headers=each)).status_code for verb in VERBS]
            for each in (bearer(text), can_read, can_submit)
        ]

    assert answers == [[403, 403, 403], [403, 403, 403], [202, 202, 202]]


async def test_the_audit_tells_how_many_and_of_each_that_is_deleted(keyed: Place, store: Store) -> None:
    jobs = [await completed(store, tenant="acme"), await failed(store, tenant="acme")]
    headers = await key(store, "acme")

    async with asking(keyed) as http:
        await _told(http, "cancel", headers, all=True)
        await _told(http, "delete", headers, all=True)
        told = [each for each in await audited(store, 4, "acme") if each.event.startswith("job")]

    assert [(each.event, each.job_id, each.details) for each in told] == [
        ("jobs.deleted", "", {"count": 2}),
        ("job.deleted", jobs[0].id, {}),
        ("job.deleted", jobs[1].id, {}),
    ]
