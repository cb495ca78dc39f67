"""Redis views: the keys of two apps' own designs, kept from the jobs' records by one writer at a time."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
import redis

from packhorse.background.redis_views import HOLD, RedisViews
from packhorse.core import json as core_json
from packhorse.core import lifecycle
from packhorse.core.models import Artifact, Input, Result, Spec, Stored
from packhorse.core.plan import Definition, Plan
from packhorse.errors import SettingError
from packhorse.factory import check
from packhorse.schemas.redis_views import user_name
from packhorse.settings import Settings
from packhorse.settings import redis_views as parse_views
from packhorse.store.base import Report
from packhorse.store.collections import workers
from packhorse.store.collections.workers import Machine, publish_definitions
from packhorse.store.redis import RedisStore
from tests.contract.builders import (
    CHAIN,
    cancel,
    card,
    claim_one,
    fail,
    finish,
    line,
    marked,
    needs,
    plan,
    report,
    sample,
    settled,
    stage,
    started,
    submit,
)
from tests.servers import valkey
from tests.store.redis.inside import OpenRedis

MODEL = Stored("jobs/1/input/model.onnx", "model.onnx", 204_800_000, "ab" * 32)
SPEC = Spec(b'{"model":{"$file":0},"platform":"520"}', (Input("model", 0, MODEL),))
SHOTS = plan(stage("cut", kind="left"), stage("yolo", needs("cut"), kind="right"), pipeline="analyse")
APPS = {"converter": CHAIN, "video": SHOTS}


def defined(app: str, graph: Plan) -> Definition:
    return Definition(app, graph.pipeline, core_json.encode(graph), b"{}", graph.fingerprint)


@pytest.fixture
async def store(redis_store: RedisStore) -> RedisStore:
    await publish_definitions(redis_store, [defined(app, graph) for app, graph in APPS.items()])
    return redis_store


Views = Callable[..., RedisViews]


@pytest.fixture
def place() -> str:
    """Where the keys of a view are."""
    return valkey.fresh_prefix()


@pytest.fixture
def views(store: RedisStore, place: str) -> Views:
    def views(app: str, writer: str = "w") -> RedisViews:
        return RedisViews(store, {app: place}, writer)

    return views


def converted(raw: redis.Redis, place: str, job_id: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(raw.get(f"{place}job:{job_id}") or "null")
    return found


def told(raw: redis.Redis, place: str, queue: str) -> list[dict[str, str]]:
    entries: list[Any] = raw.xrange(f"{place}queue:{queue}")  # type: ignore[assignment]
    return [fields for _, fields in entries]


# the converter's


async def test_each_queue_hears_of_a_job_once_however_often_it_is_looked_at(
    store: RedisStore, views: Views, raw: redis.Redis, place: str
) -> None:
    duty = views("converter")
    job = await submit(store, CHAIN, SPEC)
    await duty.tick()
    await finish(store, await claim_one(store))
    await duty.tick()
    await duty.tick()

    await finish(store, await claim_one(store))
    await finish(store, await claim_one(store))
    await duty.tick()

    assert [told(raw, place, each) for each in ("onnx", "bie", "nef")] == [
        [{"job_id": job.id, "stage": each}] for each in ("onnx", "bie", "nef")
    ]
    assert [(each["stage"], each["status"]) for each in told(raw, place, "done")] == [
        (each, "completed") for each in ("onnx", "bie", "nef")
    ]
    assert converted(raw, place, job.id)["status"] == "COMPLETED"


async def test_a_stage_that_moves_is_in_the_stream_of_progress(
    store: RedisStore, views: Views, raw: redis.Redis, place: str
) -> None:
    duty = views("converter")
    claimed = await started(store, CHAIN)
    await duty.tick()

    await store.report([report(claimed, 25)])
    await duty.tick()

    assert told(raw, place, "progress") == [{"job_id": claimed.job.id, "stage": "onnx", "progress": "25"}]
    assert converted(raw, place, claimed.job.id)["stage_progress"] == 25


async def test_a_job_that_failed_is_queued_again_by_its_retry(
    store: RedisStore, views: Views, raw: redis.Redis, place: str
) -> None:
    duty = views("converter")
    await finish(store, await started(store, CHAIN))
    await duty.tick()
    claimed = await claim_one(store)
    await fail(store, claimed)
    await duty.tick()
    failed = converted(raw, place, claimed.job.id)
    assert raw.exists(f"{place}user:ann:active_job") == 0

    await settled(store, claimed.job.id, lambda job: lifecycle.retry(job, now=store.now()))
    await duty.tick()

    assert (failed["status"], failed["stage"], failed["error"]["message"]) == ("FAILED", "bie", "It can never work.")
    assert [each["status"] for each in told(raw, place, "done")] == ["completed", "failed"]
    assert len(told(raw, place, "bie")) == 2
    assert converted(raw, place, claimed.job.id)["status"] == "BIE"
    assert raw.get(f"{place}user:ann:active_job") == claimed.job.id


async def test_a_cancelled_job_has_failed(store: RedisStore, views: Views, raw: redis.Redis, place: str) -> None:
    before, duty = await submit(store, CHAIN), views("converter")
    await cancel(store, before.id)
    await duty.tick()
    assert told(raw, place, "done") == []  # it had ended before there was a view, and is no news
    job = await submit(store, CHAIN)
    await duty.tick()

    await cancel(store, job.id)
    await duty.tick()

    assert [converted(raw, place, each.id)["status"] for each in (before, job)] == ["FAILED", "FAILED"]
    assert told(raw, place, "done") == [{"job_id": job.id, "stage": "", "status": "failed"}]


async def test_a_job_deleted_before_the_view_saw_its_end_is_not_active(
    store: RedisStore, views: Views, raw: redis.Redis, place: str
) -> None:
    job, duty = await submit(store, CHAIN), views("converter")
    other = await submit(store, CHAIN, user="bob")
    await duty.tick()
    assert 604_700 < int(raw.ttl(f"{place}user:ann:active_job")) <= 604_800
    raw.set(f"{place}user:bob:active_job", "a later job")

    for each in (job, other):
        await store.erase((await marked(store, await cancel(store, each.id))).id)
    await duty.tick()

    assert raw.exists(f"{place}user:ann:active_job") == 0
    assert raw.get(f"{place}user:bob:active_job") == "a later job"


async def test_users_of_two_tenants_do_not_share_a_key(
    store: RedisStore, views: Views, raw: redis.Redis, place: str
) -> None:
    ours, theirs = await submit(store, CHAIN), await submit(store, CHAIN, tenant="acme/1")

    await views("converter").tick()

    assert raw.smembers(f"{place}user:ann:jobs") == {ours.id}
    assert raw.smembers(f"{place}user:acme%2F1/ann:jobs") == {theirs.id}
    assert [converted(raw, place, each.id)["tenant_id"] for each in (ours, theirs)] == [None, "acme/1"]


def test_a_user_name_cannot_spell_the_key_of_another_user() -> None:
    users = [("default", "acme/bob"), ("acme", "bob"), ("default", "acme%2Fbob"), ("default", "ann@example.org")]

    assert [user_name(*each) for each in users] == ["acme%2Fbob", "acme/bob", "acme%252Fbob", "ann@example.org"]


async def test_jobs_of_other_apps_are_not_shown(store: RedisStore, views: Views, raw: redis.Redis, place: str) -> None:
    await submit(store, SHOTS)
    other = await submit(store, plan(stage("only"), pipeline="other"))

    await views("converter").tick()

    assert list(raw.scan_iter(f"{place}*")) == [f"{place}view:owner"]
    await cancel(store, other.id)
    await views("converter").tick()
    assert list(raw.scan_iter(f"{place}*")) == [f"{place}view:owner"]


# both


async def test_a_job_that_is_purged_leaves_no_key_in_a_view(store: RedisStore, raw: redis.Redis, place: str) -> None:
    for app, graph in APPS.items():
        duty, here = RedisViews(store, {app: f"{place}{app}:"}, "w"), f"{place}{app}:"
        claimed = await started(store, graph)
        await duty.tick()
        await store.log([line(claimed.job, "hello")], keep=100)
        await store.sample([sample(claimed.job, store.now())], keep=10)
        job = await fail(store, claimed)
        await duty.tick()
        assert [key for key in raw.scan_iter(f"{place}*") if job.id in key] != []

        await marked(store, job)
        await store.erase(job.id)
        await duty.tick()

        assert [key for key in raw.scan_iter(f"{place}*") if job.id in key] == []
        assert raw.smembers(f"{here}user:ann:jobs") == raw.smembers(f"{here}jobs:failed") == set()


async def test_a_view_goes_on_where_a_dead_writer_stopped(
    store: RedisStore, views: Views, raw: redis.Redis, prefix: str, place: str
) -> None:
    job = await submit(store, CHAIN)
    await views("converter", "first").tick()
    await finish(store, await claim_one(store))
    second = views("converter", "second")
    await second.tick()
    held = converted(raw, place, job.id)["status"]
    assert 0 < int(raw.pttl(f"{prefix}views:converter:writer")) <= 1000 * HOLD

    raw.delete(f"{prefix}views:converter:writer")  # as it expires
    await second.tick()

    assert held == "ONNX"  # as long as the first may still write
    assert converted(raw, place, job.id)["status"] == "BIE"
    assert len(told(raw, place, "onnx")) == len(told(raw, place, "bie")) == 1


async def test_a_view_that_lost_its_place_in_the_feed_is_built_again(
    store: RedisStore, views: Views, raw: redis.Redis, prefix: str, place: str
) -> None:
    job = await submit(store, CHAIN)
    duty = views("converter")
    await duty.tick()
    await finish(store, await claim_one(store))
    raw.xtrim(f"{prefix}feed", maxlen=0, approximate=False)

    await duty.tick()

    assert converted(raw, place, job.id)["status"] == "BIE"
    assert len(told(raw, place, "onnx")) == len(told(raw, place, "bie")) == 1


async def test_a_view_is_built_once_however_much_changes_meanwhile(
    store: RedisStore, views: Views, raw: redis.Redis, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(3):
        await submit(store, SHOTS)
    find, pages = store.find, list[str]()

    async def find_slowly(*args: Any, **options: Any) -> Any:
        found = await find(*args, **options)
        pages.append((await submit(store, SHOTS)).id)
        return found

    monkeypatch.setattr(store, "find", find_slowly)
    monkeypatch.setattr("packhorse.background.redis_views.PAGE", 1)
    monkeypatch.setattr("packhorse.store.redis.watch.MANY", 2)
    duty = views("video")
    await duty.tick()
    built = len(pages)

    await duty.tick()

    assert len(pages) == built == 4
    assert [raw.get(f"{place}job:{id}:status") for id in pages] == ["pending"] * 4


async def test_a_view_that_is_built_again_forgets_jobs_that_are_gone(
    store: RedisStore, views: Views, raw: redis.Redis, prefix: str, place: str
) -> None:
    claimed, duty = await started(store, SHOTS), views("video")
    await duty.tick()
    await store.erase((await marked(store, await fail(store, claimed))).id)
    raw.delete(f"{prefix}views:video")

    await duty.tick()

    assert [key for key in raw.scan_iter(f"{place}*") if claimed.job.id in key] == []
    assert raw.smembers(f"{place}jobs:active") == set()


async def test_ids_that_a_view_never_showed_stay_in_its_sets(
    store: RedisStore, views: Views, raw: redis.Redis, prefix: str, place: str
) -> None:
    claimed, duty = await started(store, SHOTS), views("video")
    await duty.tick()
    raw.sadd(f"{place}jobs:failed", "theirs")
    await store.erase((await marked(store, await fail(store, claimed))).id)
    raw.delete(f"{prefix}views:video")

    await duty.tick()

    assert [raw.smembers(f"{place}jobs:{name}") for name in ("active", "failed")] == [set(), {"theirs"}]
    assert raw.exists(f"{prefix}views:video:shown:{place}") == 0


@pytest.mark.parametrize(
    ("app", "key", "owner"),
    [("video", "view:owner", "d1/video"), ("video", "stats:total_jobs", ""), ("converter", "queue:bie", "")],
)
async def test_a_view_writes_nothing_under_a_prefix_that_somebody_else_uses(
    store: RedisStore,
    views: Views,
    raw: redis.Redis,
    place: str,
    caplog: pytest.LogCaptureFixture,
    app: str,
    key: str,
    owner: str,
) -> None:
    raw.set(f"{place}{key}", owner or "7")
    await submit(store, APPS[app])
    duty = views(app)

    await duty.tick()
    await duty.tick()

    assert list(raw.scan_iter(f"{place}*")) == [f"{place}{key}"]
    [said] = [each.getMessage() for each in caplog.records if each.levelname == "ERROR"]
    assert f"belong to {owner or 'another program'}" in said
    key, owner = said[said.index("SET ") :].split()[1:]
    raw.set(key, owner)
    await duty.tick()
    assert len(list(raw.scan_iter(f"{place}job:*"))) > 0


async def test_a_pipeline_that_is_published_later_belongs_to_its_app(
    store: RedisStore, views: Views, raw: redis.Redis, place: str
) -> None:
    duty, later = views("video"), plan(stage("only"), pipeline="later")
    await duty.tick()
    await publish_definitions(store, [defined("video", later)])
    job = await submit(store, later)

    await duty.tick()

    assert raw.get(f"{place}job:{job.id}:status") == "pending"


async def test_a_view_under_another_prefix_is_built_there(
    store: RedisStore, views: Views, raw: redis.Redis, place: str
) -> None:
    job = await submit(store, SHOTS)
    await views("video").tick()

    await RedisViews(store, {"video": f"{place}new:"}, "w").tick()

    assert raw.get(f"{place}new:job:{job.id}:status") == "pending"
    assert raw.get(f"{place}new:stats:total_jobs") == "1"


async def test_what_ended_too_long_ago_is_not_brought_back(
    timed_redis: RedisStore, raw: redis.Redis, place: str, clock: Any
) -> None:
    await publish_definitions(timed_redis, [defined(app, graph) for app, graph in APPS.items()])
    job = await submit(timed_redis, SHOTS)
    await cancel(timed_redis, job.id)
    clock.forward(86_400.0)

    await RedisViews(timed_redis, {"video": place}, "w").tick()

    assert [key for key in raw.scan_iter(f"{place}*") if job.id in key] == []
    assert (raw.get(f"{place}stats:total_jobs"), raw.get(f"{place}stats:processed_today")) == ("1", "0")


# the video app's


async def test_jobs_are_counted_once_and_are_in_one_set_each(
    store: RedisStore, views: Views, raw: redis.Redis, place: str
) -> None:
    duty = views("video")
    first, second = await started(store, SHOTS), await submit(store, SHOTS)
    await duty.tick()
    await fail(store, first)
    await duty.tick()
    raw.hdel(f"{store._link.prefix}views:video", "cursor")

    await duty.tick()

    assert [raw.smembers(f"{place}jobs:{name}") for name in ("active", "completed", "failed")] == [
        {second.id},
        set(),
        {first.job.id},
    ]
    assert (raw.get(f"{place}stats:total_jobs"), raw.get(f"{place}stats:processed_today")) == ("2", "1")
    assert 0 < int(raw.ttl(f"{place}stats:processed_today")) <= 86_400


async def test_what_was_processed_is_counted_anew_each_day(
    store: RedisStore, views: Views, raw: redis.Redis, place: str
) -> None:
    await fail(store, await started(store, SHOTS))
    duty = views("video")
    await duty.tick()
    assert raw.get(f"{place}stats:processed_today") == "1"
    raw.hset(f"{store._link.prefix}views:video", "day", "2020-01-01")

    await submit(store, SHOTS)
    await duty.tick()

    assert raw.get(f"{place}stats:processed_today") == "0"


async def test_what_the_host_uses_is_as_fresh_as_our_own(
    store: RedisStore, views: Views, raw: redis.Redis, place: str
) -> None:
    await workers.enroll(store, card("w", machine=Machine(1.0, 0.123, 4, 5_000_000, 8_000_000)))

    await views("video").tick()

    assert (raw.get(f"{place}stats:cpu:current"), raw.get(f"{place}stats:memory:current")) == ("12.3", "5000000")
    assert 0 < int(raw.ttl(f"{place}stats:cpu:current")) <= 10


async def test_results_of_stages_that_a_retry_drops_leave_the_view(
    store: RedisStore, views: Views, raw: redis.Redis, place: str
) -> None:
    found = Stored("jobs/1/output/cut/t/0.json", "cut.json", 5, "ab" * 32)
    claimed, duty = await started(store, SHOTS), views("video")
    await finish(store, claimed, Result(b'{"found":{"$file":0}}', (Artifact("cut/cut.json", found),)))
    await finish(store, await claim_one(store), Result(b'{"found":{"$file":0}}', (Artifact("y", found),)))
    await duty.tick()
    id = claimed.job.id
    names = [f"{place}{kind}:{id}" for kind in ("result", "output")] + [f"{place}metrics:{id}:duration"]
    before = [raw.type(name) for name in names], json.loads(raw.hget(names[0], "cut") or "")["found"]["object_key"]

    await settled(store, id, lambda job: lifecycle.retry(job, stage="*", now=store.now()))
    await duty.tick()

    assert before == (["hash", "string", "string"], found.key)
    assert [raw.exists(name) for name in names] == [0, 0, 0]
    assert raw.smembers(f"{place}jobs:active") == {id}


async def test_progress_writes_the_log_every_two_seconds_at_most(
    timed_redis: RedisStore, raw: redis.Redis, place: str, clock: Any
) -> None:
    store, logs = timed_redis, list[int]()
    await publish_definitions(store, [defined("video", SHOTS)])
    duty, claimed = RedisViews(store, {"video": place}, "w"), await started(store, SHOTS)
    key = f"{place}log:{claimed.job.id}"

    async def look(*reports: Report) -> None:
        await store.log([line(claimed.job, "hello")], keep=100)
        await store.report(reports)
        await duty.tick()
        logs.append(str(raw.get(key)).count("hello"))

    await look()
    await look(report(claimed, 25))
    assert raw.get(f"{place}job:{claimed.job.id}:processor:cut:current") == "25"
    clock.forward(2.0)
    await duty._follow(*duty._kept[0])  # without a change
    logs.append(str(raw.get(key)).count("hello"))
    await look(report(claimed, 50))
    await fail(store, claimed)
    await look()

    assert logs == [1, 1, 2, 2, 4]


async def test_a_step_of_a_view_has_a_limited_size(
    store: RedisStore, views: Views, raw: redis.Redis, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended, write, sizes = list[str](), store.write_view, list[int]()
    for _ in range(3):
        claimed = await started(store, SHOTS)
        await finish(store, claimed, Result(json.dumps({"text": "é" * 50_000}, ensure_ascii=False).encode()))
        ended.append((await cancel(store, claimed.job.id)).id)

    async def write_view(*args: Any, **options: Any) -> Any:
        sizes.append(sum(len(text.encode()) for command in (*args, ())[3] for text in command))
        return await write(*args, **options)

    monkeypatch.setattr(store, "write_view", write_view)

    await views("video").tick()

    assert sum(sizes) > 300_000
    assert max(sizes) <= 262_144
    assert [len(json.loads(raw.hget(f"{place}result:{id}", "cut") or "")["text"]) for id in ended] == [50_000] * 3
    assert raw.get(f"{place}stats:processed_today") == "3"


# settings


@pytest.mark.parametrize(
    ("store", "views", "why"),
    [
        ("sqlite:///tmp/x.db", "video=momentry:", "needs a Redis store"),
        ("postgresql://localhost/x", "video=momentry:", "needs a Redis store"),
        ("redis://localhost", "video=packhorse:", "own prefix"),
        ("redis://localhost?prefix=mine:", "video=mine:", "own prefix"),
        ("redis+cluster://localhost", "video={packhorse}:", "own prefix"),
    ],
)
def test_views_that_cannot_be_are_refused(store: str, views: str, why: str) -> None:
    with pytest.raises(SettingError, match=why) as refused:
        check(Settings(store=store, redis_views=parse_views(views)))

    assert refused.value.facts["name"] == "redis_views"


@pytest.mark.parametrize("text", ["speech=x:", "video", "video=a:,video=b:", "video=a:,converter=a:"])
def test_what_names_no_view_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="view"):
        parse_views(text)


def test_a_view_may_have_no_prefix() -> None:
    assert parse_views("converter=, video=momentry:") == {"converter": "", "video": "momentry:"}


async def test_in_a_cluster_a_view_has_to_share_the_slot(open_redis: OpenRedis) -> None:
    cluster, name = valkey.shared_cluster(), valkey.fresh_prefix().rstrip(":")
    store = await open_redis(cluster.url(f"{name}:"))
    await publish_definitions(store, [defined("video", SHOTS)])
    job = await submit(store, SHOTS)

    with pytest.raises(SettingError, match=rf"\{{{name}\}}"):
        RedisViews(store, {"video": "momentry:"}, "w")
    with pytest.raises(SettingError, match="own"):
        RedisViews(store, {"video": f"{{{name}}}:"}, "w")
    await RedisViews(store, {"video": f"{{{name}}}momentry:"}, "w").tick()

    with cluster.client(decode_responses=True) as client:
        assert client.get(f"{{{name}}}momentry:job:{job.id}:status") == "pending"


async def test_without_the_setting_there_is_no_key_of_a_view(store: RedisStore, raw: redis.Redis, prefix: str) -> None:
    await submit(store, CHAIN)

    assert list(raw.scan_iter(f"{prefix}views:*")) == []
