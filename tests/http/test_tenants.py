"""Two tenants, every operation of the OpenAPI file and every page: neither sees, changes or hears of what is the
other's."""

from __future__ import annotations

import re
import secrets
from collections.abc import AsyncIterator, Iterator
from typing import Any, NamedTuple

import pytest
import pytest_asyncio

from packhorse.auth import keys
from packhorse.core.models import Job
from packhorse.factory import open_store
from packhorse.store.base import FailureFilter, Store
from packhorse.store.collections import keys as key_records
from packhorse.store.collections import schedules as schedule_records
from packhorse.store.collections import webhooks as webhook_records
from tests.contract.failures import failing, id_of, only_group, wrong
from tests.http.conftest import publish
from tests.http.keyed import BASE, asking, bearer, key
from tests.http.processes import Place
from tests.http.unserved import Http, blueprint
from tests.journey.places import PLACES

pytestmark = pytest.mark.asyncio(loop_scope="module")

SCOPES = ("submit", "read", "operate", "admin")
SECRET = "the-secret-of-acme"


class Operation(NamedTuple):
    method: str
    path: str

    def __str__(self) -> str:
        return f"{self.method} {self.path}"


def operations() -> Iterator[Operation]:
    paths: dict[str, dict[str, Any]] = blueprint().openapi_schema.to_schema()["paths"]
    for path, methods in paths.items():
        for method in methods:
            if path.startswith("/api/v1"):
                yield Operation(method.upper(), path.removeprefix("/api/v1/"))


OPERATIONS = list(operations())
SIGNED = "POST schedules/{schedule_id}/trigger"
"""For the holder of a token, whatever key is sent with it."""
OWNED = [
    each
    for each in OPERATIONS
    if re.search(r"{((job|key|webhook|schedule|failure|order|session)_id|fingerprint)}", each.path)
    and str(each) not in ("PUT schedules/{schedule_id}", "PUT job_config/{schedule_id}", SIGNED)
]
SHARED = [each for each in OPERATIONS if each not in OWNED and str(each) != SIGNED]
"""About all there is, or about what all tenants share."""
OF_ALL = ("queues", "workers", "stats", "health", "limits")
"""What is about the deployment, with the jobs of all tenants in it, and so only for those who run it."""
SCHEDULE = {"pipeline": "add", "user_id": "ann", "parameters": {"a": 1}, "cron": "0 3 * * *"}
BODIES: dict[str, dict[str, Any]] = {
    "POST jobs": {"json": {"pipeline": "add", "user_id": "ann", "parameters": {"a": 1}}},
    "POST jobs/batch": {"json": {"items": [{"pipeline": "add", "user_id": "ann", "parameters": {"a": 1}}]}},
    **{f"POST jobs/{verb}": {"json": {"all": True}} for verb in ("cancel", "retry", "delete")},
    "POST keys": {"json": {"scopes": ["read"]}},
    "POST webhooks": {"json": {"url": "https://example.org/told"}},
    "PUT schedules/{schedule_id}": {"json": SCHEDULE},
    "PUT job_config/{schedule_id}": {"json": {"pipeline": "add", "user_id": "ann", "a": 1, "cron": "0 3 * * *"}},
    "POST schedules/preview": {"json": {"cron": "* * * * *"}},
    "POST schedules/{schedule_id}/rollback": {"json": {"version": 1}},
    "GET schedules/{schedule_id}/diff": {"params": {"old": 1, "new": 1}},
    "POST failures/retry": {"json": {"pipeline": "convert"}},
    "POST failures/dismiss": {"json": {"pipeline": "convert", "reason": "known"}},
    "PUT limits/{limit}": {"json": {"most": 1}},
}


class Acme(NamedTuple):
    """What is there to be found of the other tenant."""

    names: dict[str, str]
    secrets: tuple[str, ...]
    tenant: str


@pytest.fixture(scope="module", params=PLACES)
def place(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Place:
    """One of each sort for all rows: what the earlier ones left there is only more to be found."""
    folder = tmp_path_factory.mktemp("tenants")
    settings = {"keyless": False, "secret_key": "s" * 40, "promote_to": f"file://{folder / 'kept'}"}
    place = Place(folder, **PLACES[request.param](folder), **settings)
    publish(place)
    return place


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def http(place: Place) -> AsyncIterator[Http]:
    async with asking(place) as http:
        yield http


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def store(place: Place) -> AsyncIterator[Store]:
    store = await open_store(place.settings.store)
    yield store
    await store.close()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def acme(http: Http, store: Store) -> Acme:
    """For all rows: each finds what it is about unchanged, or the row before has failed."""
    tenant = f"acme-{secrets.token_hex(4)}"
    mine, text = await keys.create(store, tenant, SCOPES, by="cli", name=SECRET)
    job = {"pipeline": "add", "user_id": SECRET, "parameters": {"a": 1}, "metadata": {"note": SECRET}}
    job_id = (await http.post("jobs", json=job, headers=bearer(text))).json()["job_id"]
    webhook = {"url": f"https://example.com/{SECRET}"}
    webhook_id = (await http.post("webhooks", json=webhook, headers=bearer(text))).json()["webhook_id"]
    schedule = {**SCHEDULE, "user_id": SECRET, "labels": {"note": SECRET}}
    answer = await http.put("schedules/nightly", json=schedule, headers=bearer(text))
    assert answer.status_code == 201
    failed = await failing(store, wrong(SECRET), tenant=tenant, user=SECRET)
    session_id = (await http.post("sessions", headers=bearer(text))).json()["session_id"]
    order = (await http.post("failures/retry", json={"pipeline": "none"}, headers=bearer(text))).json()["order"]
    names = {
        "job_id": job_id, "run": "1", "key_id": mine.id, "webhook_id": webhook_id, "name": "add/out.txt",
        "queue": "default",
        "schedule_id": "nightly", "version": "1", "limit": "album.user",
        "failure_id": id_of(failed), "fingerprint": (await only_group(store, tenant)).fingerprint,
        "order_id": order["order_id"], "session_id": session_id,
    }  # fmt: skip
    return Acme(names, (SECRET, job_id, mine.id, webhook_id, text, failed.id, names["order_id"], session_id), tenant)


def ids(operation: Operation) -> str:
    return str(operation)


@pytest.mark.parametrize("operation", OPERATIONS, ids=ids)
async def test_without_a_key_nothing_is_told(http: Http, acme: Acme, operation: Operation) -> None:
    answer = await http.request(operation.method, operation.path.format(**acme.names), **BODIES.get(str(operation), {}))

    assert answer.status_code == 401


@pytest.mark.parametrize("operation", OWNED, ids=ids)
async def test_what_is_anothers_is_not_there(http: Http, store: Store, acme: Acme, operation: Operation) -> None:
    """Not even as something that may not be seen: it answers as for an id that nobody has."""
    foreign = operation.path.format(**acme.names)
    missing = operation.path.format(**{name: "0" * len(value) for name, value in acme.names.items()})
    headers = await key(store, "umbrella", *SCOPES)
    body = BODIES.get(str(operation), {})

    answers = [await http.request(operation.method, path, headers=headers, **body) for path in (foreign, missing)]

    assert [answer.status_code for answer in answers] == [404, 404]
    assert answers[0].headers["content-type"] == answers[1].headers["content-type"] == "application/problem+json"
    if operation.method != "HEAD":
        assert answers[0].json()["type"] == answers[1].json()["type"]
    assert SECRET not in answers[0].text


@pytest.mark.parametrize("operation", SHARED, ids=ids)
async def test_what_is_listed_or_made_says_nothing_of_the_other(
    http: Http, store: Store, acme: Acme, operation: Operation
) -> None:
    headers = await key(
        store, f"globex-{secrets.token_hex(4)}", *SCOPES
    )  # another for each row: they would find each other's

    answer = await http.request(
        operation.method, operation.path.format(**acme.names), headers=headers, **BODIES.get(str(operation), {})
    )

    assert answer.status_code == 403 if operation.path.startswith(OF_ALL) else answer.is_success
    assert not [secret for secret in acme.secrets if secret in answer.text]


@pytest.mark.parametrize("operation", OWNED, ids=ids)
async def test_what_was_tried_has_changed_nothing(http: Http, store: Store, acme: Acme, operation: Operation) -> None:
    before = await all_of(store, acme)

    await http.request(
        operation.method,
        operation.path.format(**acme.names),
        headers=await key(store, "umbrella", *SCOPES),
        **BODIES.get(str(operation), {}),
    )

    assert await all_of(store, acme) == before


# Pages

PUBLIC = ("/login", "/logout", "/p/")
"""Pages for which a key is not needed, or which end the session of whoever asks."""
QUERIES = {
    "GET /schedules/{schedule_id}/rollback": {"to": "1"},
    "GET /schedules/{schedule_id}/diff": {"old": "1", "new": "1"},
    "GET /failures/retry": {"pipeline": "convert"},
    "GET /failures/dismiss": {"pipeline": "convert"},
}
FORMS = {
    "POST /jobs/confirm": {"do": "delete", "all": "yes"},
    "POST /jobs/change": {"do": "cancel", "all": "yes"},
    "POST /failures/retry": {"pipeline": "convert"},
    "POST /failures/dismiss": {"pipeline": "convert", "reason": "known"},
    "POST /limits/{limit}": {"most": "1"},
}


def pages() -> Iterator[Operation]:
    for route in blueprint().routes:
        for handler in getattr(route, "route_handlers", ()):
            is_page = handler.opt.get("include_in_schema", handler.include_in_schema) is False
            if is_page and handler.fn.__module__.startswith("packhorse.web.pages."):
                path = re.sub(r"{(\w+):\w+}", r"{\1}", route.path)
                yield from (Operation(method, path) for method in handler.http_methods if method != "HEAD")


PAGES = [each for each in sorted(pages(), key=str) if not each.path.startswith(PUBLIC) and each.path != "/docs"]
OWNED_PAGES = [
    each for each in PAGES if re.search(r"{((job|key|webhook|schedule|order|session)_id|fingerprint)}", each.path)
]
OTHER_PAGES = [each for each in PAGES if each not in OWNED_PAGES]
KINDS: dict[str, tuple[tuple[str, ...], str | None]] = {
    "admin": (SCOPES, None),
    "operator": (("operate",), None),
    "client": (("submit", "read"), None),
    "reader": (("read",), None),
    "user": (("submit", "read", "operate"), "ben"),
}
"""Scopes and the bound user of every kind of key."""


async def look(http: Http, page: Operation, names: dict[str, str], headers: dict[str, str]) -> Any:
    address = f"http://packhorse.example{page.path.format(**names)}"
    form: dict[str, Any] = {"data": FORMS.get(str(page), {})} if page.method == "POST" else {}
    return await http.request(
        page.method, address, headers=headers, params=QUERIES.get(str(page), {}), follow_redirects=False, **form
    )


@pytest.mark.parametrize("page", PAGES, ids=ids)
async def test_without_a_key_a_page_leads_to_the_login(http: Http, acme: Acme, page: Operation) -> None:
    answer = await look(http, page, acme.names, {})

    assert (answer.status_code, answer.headers["location"].partition("?")[0]) == (303, "/login")
    assert not [secret for secret in acme.secrets if secret in answer.text]


@pytest.mark.parametrize("page", OWNED_PAGES, ids=ids)
async def test_a_page_of_what_is_anothers_is_not_there(http: Http, store: Store, acme: Acme, page: Operation) -> None:
    """For each kind of key as for an id that nobody has; 403 only where the key could not use the page at all."""
    before = await all_of(store, acme)
    missing = {name: "0" * len(value) for name, value in acme.names.items()}
    for scopes, user in KINDS.values():
        headers = await key(store, "initech", *scopes, user=user)  # has no schedule of the same name

        answers = [await look(http, page, names, headers) for names in (acme.names, missing)]

        statuses = {answer.status_code for answer in answers}
        assert statuses in ({404}, {403})
        assert statuses == {404} or scopes != SCOPES
        assert not [secret for secret in acme.secrets if secret in answers[0].text and secret not in page_of(acme)]
    assert await all_of(store, acme) == before


@pytest.mark.parametrize("page", OWNED_PAGES, ids=ids)
async def test_a_page_of_another_user_is_not_there(http: Http, store: Store, acme: Acme, page: Operation) -> None:
    headers = await key(store, acme.tenant, "submit", "read", "operate", user="ben")

    answer = await look(http, page, acme.names, headers)

    assert answer.status_code in (403, 404)
    assert SECRET not in answer.text


@pytest.mark.parametrize("page", OTHER_PAGES, ids=ids)
async def test_a_page_about_all_there_is_says_nothing_of_the_other(
    http: Http, store: Store, acme: Acme, page: Operation
) -> None:
    before = await all_of(store, acme)
    for scopes, user in KINDS.values():
        answer = await look(http, page, acme.names, await key(store, "globex", *scopes, user=user))

        assert answer.status_code < 500
        assert not [secret for secret in acme.secrets if secret in answer.text]
    assert await all_of(store, acme) == before


@pytest.mark.parametrize("page", PAGES, ids=ids)
async def test_a_token_of_one_job_opens_no_page_of_another(
    http: Http, store: Store, acme: Acme, page: Operation
) -> None:
    headers = await key(store, "umbrella", *SCOPES)
    mine = (await http.post("jobs", json=BODIES["POST jobs"]["json"], headers=headers)).json()["job_id"]
    token = (await http.post(f"jobs/{mine}/tokens", headers=headers)).json()["key"]

    answer = await look(http, page, acme.names, bearer(token))

    assert answer.status_code in (403, 404)
    assert SECRET not in answer.text


def page_of(acme: Acme) -> tuple[str, ...]:
    """What an error page may say again because it was in the address."""
    return tuple(acme.names.values())


async def all_of(store: Store, acme: Acme) -> tuple[Any, ...]:
    names = acme.names
    schedule = await schedule_records.get(store, acme.tenant, names["schedule_id"])
    assert schedule is not None
    return (
        await store.get([names["job_id"]]),
        await key_records.get(store, [names["key_id"]]),
        await key_records.list_sessions(store, tenant=acme.tenant),
        schedule,
        await schedule_records.runs(store, acme.tenant, names["schedule_id"]),
        await store.failures(FailureFilter(acme.tenant)),
        await store.failure_groups(acme.tenant),
        await webhook_records.list_endpoints(store, acme.tenant),
    )


# Two tenants that call everything the same


USER, CAUSE = "ann", "The disk is full."


class Side(NamedTuple):
    """A tenant whose user, schedule, pipeline and cause of failure have the same names as the other's."""

    headers: dict[str, str]
    job_id: str
    failed: Job
    fingerprint: str
    own: tuple[str, ...]
    """What nothing of the other side has."""


async def side(http: Http, store: Store) -> Side:
    mark = secrets.token_hex(8)
    mine, text = await keys.create(store, f"twin-{mark}", SCOPES, by="cli", name=mark)
    headers = bearer(text)
    job = {"pipeline": "add", "user_id": USER, "parameters": {"a": 1}, "metadata": {"note": mark}}
    job_id = (await http.post("jobs", json=job, headers=headers)).json()["job_id"]
    url = f"https://example.com/{mark}"
    webhook_id = (await http.post("webhooks", json={"url": url}, headers=headers)).json()["webhook_id"]
    schedule = {**SCHEDULE, "user_id": USER, "labels": {"note": mark}}
    assert (await http.put("schedules/nightly", json=schedule, headers=headers)).status_code == 201
    session_id = (await http.post("sessions", headers=headers)).json()["session_id"]
    failed = await failing(store, wrong(CAUSE), tenant=f"twin-{mark}", user=USER)
    group = await only_group(store, f"twin-{mark}")
    own = (mark, job_id, mine.id, webhook_id, session_id, failed.id)
    return Side(headers, job_id, failed, group.fingerprint, own)


@pytest_asyncio.fixture(loop_scope="module")
async def sides(http: Http, store: Store) -> tuple[Side, Side]:
    return await side(http, store), await side(http, store)


def lists(of: Side) -> dict[str, dict[str, Any]]:
    """Every list of the API with each of its filters that both sides match, and what must be in it at least."""
    failed = {"user_id": USER, "pipeline": of.failed.plan.pipeline, "error_code": "BROKEN", "status": "open"}
    return {
        "jobs": {"user_id": USER, "pipeline": "add", "status": "pending", "created_from": "2020-01-01T00:00:00Z"},
        "failures": {**failed, "fingerprint": of.fingerprint, "since": "2020-01-01T00:00:00Z"},
        "failures/groups": {},
        f"failures/groups/{of.fingerprint}": {},
        "schedules": {"runs": 3},
        "schedules/nightly": {},
        "schedules/nightly/versions": {},
        "schedules/nightly/versions/1": {},
        "schedules/nightly/runs": {},
        "keys": {},
        "webhooks": {},
        "sessions": {},
        "audit": {},
    }


FULL = (
    "jobs",
    "failures",
    "schedules",
    "schedules/nightly",
    "schedules/nightly/versions/1",
    "keys",
    "webhooks",
    "sessions",
    "audit",
)
"""Lists in which something that only one side has must be found."""


async def test_a_token_runs_the_schedule_of_its_tenant_and_no_key_stands_in_for_it(
    http: Http, store: Store, acme: Acme, sides: tuple[Side, Side]
) -> None:
    before = await all_of(store, acme)
    mine, other = sides
    token = (await http.post("schedules/nightly/token", headers=mine.headers)).json()["token"]

    refused = [
        await http.post(f"schedules/{name}/trigger", headers=other.headers) for name in ("nightly", "no-such-schedule")
    ]
    done = await http.post("schedules/nightly/trigger", params={"token": token}, headers=other.headers)

    assert [answer.status_code for answer in (*refused, done)] == [401, 401, 202]
    assert refused[0].json()["detail"] == refused[1].json()["detail"]
    counts = [len((await http.get("schedules/nightly/runs", headers=each.headers)).json()["items"]) for each in sides]
    assert counts == [1, 0]
    assert await all_of(store, acme) == before


async def test_every_list_shows_each_of_two_alike_tenants_its_own(http: Http, sides: tuple[Side, Side]) -> None:
    assert sides[0].fingerprint == sides[1].fingerprint
    for mine, other in (sides, sides[::-1]):
        for path, filters in lists(mine).items():
            for query in ({}, filters, *({name: value} for name, value in filters.items())):
                answer = await http.get(path, params=query, headers=mine.headers)

                assert answer.status_code == 200, (path, query)
                assert not [each for each in other.own if each in answer.text], (path, query)
                assert path not in FULL or [each for each in mine.own if each in answer.text], (path, query)


async def test_every_count_of_two_alike_tenants_is_of_one_of_them(http: Http, sides: tuple[Side, Side]) -> None:
    for mine in sides:

        async def read(path: str, who: Side = mine, **query: str) -> Any:
            return (await http.get(path, params=query, headers=who.headers)).json()

        assert (await read("jobs/count"))["count"] == 2
        assert (await read("jobs/count", user_id=USER))["count"] == 2
        assert (await read("jobs/count", user_id=USER, pipeline="add", status="pending"))["count"] == 1
        assert len((await read("jobs", user_id=USER))["items"]) == 2
        group = await read(f"failures/groups/{mine.fingerprint}")
        assert (group["count"], group["open"], group["users"]) == (1, 1, 1)
        assert [each["count"] for each in (await read("failures/groups"))["items"]] == [1]
        assert len((await read("failures", fingerprint=mine.fingerprint))["items"]) == 1
        trial = {"fingerprint": mine.fingerprint, "dry_run": True}
        assert (await http.post("failures/retry", json=trial, headers=mine.headers)).json()["count"] == 1
        for chosen in ({"all": True}, {"user_id": USER}, {"pipeline": "add"}):
            asked = {**chosen, "dry_run": True}
            found = (await http.post("jobs/cancel", json=asked, headers=mine.headers)).json()
            assert (found["count"], [each["job_id"] for each in found["first"]]) == (1, [mine.job_id])


async def test_what_one_of_two_alike_tenants_does_to_all_leaves_the_others(
    http: Http, store: Store, sides: tuple[Side, Side]
) -> None:
    mine, other = sides
    tenant = other.failed.tenant
    before = (await store.get([other.job_id, other.failed.id]), await store.failures(FailureFilter(tenant)))

    for verb in ("cancel", "retry", "delete"):
        for chosen in ({"all": True}, {"user_id": USER}, {"pipeline": "add"}, {"ids": [other.job_id, other.failed.id]}):
            await http.post(f"jobs/{verb}", json=chosen, headers=mine.headers)
    dismissed = {"fingerprint": mine.fingerprint, "reason": "known"}
    await http.post("failures/dismiss", json=dismissed, headers=mine.headers)
    await http.post("failures/retry", json={"user_id": USER, "pipeline": "one"}, headers=mine.headers)
    for verb in ("pause", "run", "reset"):
        await http.post(f"schedules/nightly/{verb}", json={"reason": "known"}, headers=mine.headers)
    await http.delete("schedules/nightly", headers=mine.headers)
    await http.post("jobs/cancel", json={"all": True}, headers=mine.headers)  # nothing is left that others would claim

    assert before == (await store.get([other.job_id, other.failed.id]), await store.failures(FailureFilter(tenant)))
    schedule = (await http.get("schedules/nightly", headers=other.headers)).json()
    assert (schedule["version"], schedule["active"], schedule.get("deleted_at")) == (1, True, None)
    assert (await http.get("schedules/nightly/runs", headers=other.headers)).json()["items"] == []


PAGES_OF_BOTH = {
    "/jobs": {"user_id": USER, "pipeline": "add", "status": "pending"},
    "/failures": {"user_id": USER, "error_code": "BROKEN", "view": "single"},
    "/schedules": {},
    "/schedules/nightly": {},
    "/schedules/nightly/history": {},
    "/keys": {},
    "/sessions": {},
    "/audit": {},
}


async def test_every_page_shows_each_of_two_alike_tenants_its_own(http: Http, sides: tuple[Side, Side]) -> None:
    for mine, other in (sides, sides[::-1]):
        group: dict[str, dict[str, str]] = {f"/failures/groups/{mine.fingerprint}": {}}
        for path, filters in {**PAGES_OF_BOTH, **group}.items():
            for query in ({}, filters, *({name: value} for name, value in filters.items())):
                answer = await http.get(f"http://packhorse.example{path}", params=query, headers=mine.headers)

                assert answer.status_code == 200, (path, query)
                assert not [each for each in other.own if each in answer.text], (path, query)
        shown = (await http.get("http://packhorse.example/jobs", params={"user_id": USER}, headers=mine.headers)).text
        assert mine.job_id in shown
        assert mine.failed.id in shown


async def test_every_operation_of_a_job_is_among_them() -> None:
    assert BASE.endswith("/api/v1/")
    assert {str(each) for each in OPERATIONS} >= {
        "POST jobs",
        "GET jobs/{job_id}",
        "GET jobs/{job_id}/events",
        "GET jobs/{job_id}/result",
        "POST jobs/{job_id}/cancel",
        "DELETE keys/{key_id}",
        "GET audit",
    }
    assert {str(each) for each in OWNED_PAGES} >= {
        "GET /jobs/{job_id}",
        "GET /jobs/{job_id}/log.txt",
        "POST /jobs/{job_id}/share/{key_id}/revoke",
        "GET /keys/{key_id}",
        "POST /schedules/{schedule_id}/edit",
        "GET /failures/groups/{fingerprint}",
        "GET /failures/orders/{order_id}",
    }
