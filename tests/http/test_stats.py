"""How it goes, over HTTP and on every store: what there is, what waits, and series that are short enough to plot."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from litestar.testing import AsyncTestClient

from packhorse.store.base import Store
from packhorse.store.collections import workers as worker_records
from packhorse.store.collections.queues import Level, Reading, add_reading
from packhorse.store.counters import MINUTE, QUARTER, Tally, duration_bucket
from tests.contract.builders import card
from tests.http.conftest import publish
from tests.http.processes import Place
from tests.http.test_jobs import failed, submitted
from tests.journey.site import until

Http = AsyncTestClient[Any]


@pytest.fixture
def place(tmp_path: Path, anywhere: str) -> Place:
    place = Place(tmp_path, store=anywhere)
    publish(place)
    return place


def tallies(at: float, counts: Mapping[str, int], *, pipeline: str = "add", queue: str = "") -> dict[Tally, int]:
    """As a worker writes them: by minute, and by quarter of an hour."""
    return {
        Tally(step, int(at // step) * step, pipeline, queue, name): count
        for name, count in counts.items()
        for step in (MINUTE, QUARTER)
    }


async def stats(http: Http, **query: str) -> dict[str, Any]:
    answer = await http.get("stats", params=query)
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


async def test_the_overview_says_what_there_is(http: Http, store: Store) -> None:
    await submitted(http)
    await failed(store, await submitted(http))
    await worker_records.enroll(store, card("w1", queues={"default": 2}, busy={"default": 1}))
    await store.tally(tallies(store.now(), {"completed": 5, "failed": 2}))

    found = await stats(http)

    jobs = found["jobs"]
    assert (jobs["total"], jobs["active"], jobs["failed"], jobs["completed"], jobs["capped"]) == (2, 1, 1, 0, [])
    assert (found["running"], found["waiting"], found["waiting_capped"]) == (1, 1, False)
    assert (found["workers"], found["slots"]) == (1, 2)
    assert found["oldest_wait_seconds"] > 0
    assert found["failed_24h"] == 2
    assert jobs["measured_at"].endswith("Z")


async def test_what_has_ended_today_is_counted_from_midnight_utc(http: Http, store: Store) -> None:
    now = store.now()
    midnight = now // 86_400 * 86_400
    await store.tally(tallies(midnight, {"completed": 3, "cancelled": 1, "run:4": 9}))
    await store.tally(tallies(midnight - 1, {"completed": 100, "failed": 7}))

    found = await stats(http)

    assert found["processed_today"] == 4
    assert found["failed_24h"] == 7


async def test_percentiles_over_a_window_are_those_of_what_was_counted(http: Http, store: Store) -> None:
    """A thousand waits of 1 to 1000 ms, spread over three minutes."""
    now = store.now()
    for minute in range(3):
        waits = Counter(f"wait:{duration_bucket(n / 1000)}" for n in range(1, 1001) if n % 3 == minute)
        await store.tally(tallies(now - 60 * minute, waits, queue="default"))

    window = (await stats(http, window="10m", queue="default"))["window"]

    assert window["wait_seconds"] == {
        "p50": pytest.approx(0.5, rel=0.2),
        "p95": pytest.approx(0.95, rel=0.2),
        "p99": pytest.approx(0.99, rel=0.2),
    }
    assert window["run_seconds"] == {"p50": None, "p95": None, "p99": None}


async def test_a_series_is_of_jobs_or_of_one_queue_or_pipeline(http: Http, store: Store) -> None:
    now = store.now()
    await store.tally(tallies(now, {"completed": 4}))
    await store.tally(tallies(now, {"completed": 6}, pipeline="convert"))
    await store.tally(tallies(now, {"finish": 9, "fail": 1}, queue="default"))

    jobs = (await stats(http))["window"]
    one = (await stats(http, pipeline="add"))["window"]
    queue = (await stats(http, queue="default", window="10m"))["window"]

    assert (jobs["outcomes"], jobs["per_minute"]) == ({"completed": 10}, round(10 / 60, 3))
    assert (one["outcomes"], one["pipeline"]) == ({"completed": 4}, "add")
    assert (queue["outcomes"], queue["per_minute"], queue["queue"]) == ({"finish": 9, "fail": 1}, 1.0, "default")


@pytest.mark.parametrize(("window", "step", "points"), [("1h", 60, 60), ("5h", 60, 300), ("72h", 900, 288)])
async def test_a_series_has_no_more_points_than_can_be_plotted(
    http: Http, store: Store, window: str, step: int, points: int
) -> None:
    now = store.now()
    for ago in (0, 30, 3500, 4 * 3600, 71 * 3600):
        await store.tally(tallies(now - ago, {"completed": 1}))
        await add_reading(store, Reading(int((now - ago) // 60) * 60, 2, {"default": Level(7, 1.5, 3, 4)}))

    found = await stats(http, window=window)

    assert found["window"]["step_seconds"] == step
    assert points <= len(found["series"]) <= points + 1
    total = {"1h": 3, "5h": 4, "72h": 5}[window]
    assert found["window"]["outcomes"] == {"completed": total}
    assert sum(point["outcomes"].get("completed", 0) for point in found["series"]) == total
    read = [point for point in found["series"] if point["ready"] is not None]
    assert {(point["ready"], point["oldest_seconds"], point["running"], point["workers"]) for point in read} == {
        (7, 1.5, 3, 2)
    }


async def test_a_point_shows_the_peak_of_its_readings_and_the_fewest_workers(http: Http, store: Store) -> None:
    at = int((store.now() - 3600) // QUARTER) * QUARTER
    for n, (ready, workers) in enumerate([(1, 3), (80, 1), (2, 3)]):
        await add_reading(store, Reading(at + 60 * n, workers, {"onnx": Level(ready), "default": Level(5)}))

    [point] = [each for each in (await stats(http, window="72h", queue="onnx"))["series"] if each["ready"] is not None]

    assert (point["ready"], point["workers"]) == (80, 1)


@pytest.mark.parametrize("window", ["", "soon", "59s", "73h", "-1h"])
async def test_a_window_is_between_a_minute_and_72_hours(http: Http, window: str) -> None:
    answer = await http.get("stats", params={"window": window})

    assert answer.status_code == 422
    assert answer.json()["errors"][0]["field"] == "window"


async def test_a_queue_nobody_uses_is_404(http: Http) -> None:
    answer = await http.get("stats", params={"queue": "defualt"})

    assert (answer.status_code, answer.json()["type"]) == (404, "urn:packhorse:queue-not-found")


async def test_a_queue_says_how_long_what_waits_has_waited_and_how_it_went_lately(http: Http, store: Store) -> None:
    await submitted(http)
    await worker_records.enroll(store, card("w1", queues={"default": 2}, busy={"default": 2}))
    now = store.now()
    await store.tally(tallies(now - 60, {"finish": 8, "fail": 2, f"wait:{duration_bucket(0.2)}": 10}, queue="default"))
    await store.tally(tallies(now - 3600, {"finish": 1000}, queue="default"))

    [queue] = [each for each in (await http.get("queues")).json()["items"] if each["name"] == "default"]

    assert (queue["ready"], queue["running"], queue["per_minute"]) == (1, 2, 2.0)
    assert 0 < queue["oldest_seconds"] < 60
    assert queue["wait_seconds"]["p50"] == pytest.approx(0.2, rel=0.2)


async def test_a_cancelled_job_that_never_ran_is_counted_by_the_server(http: Http) -> None:
    job_id = await submitted(http)
    await http.post(f"jobs/{job_id}/cancel")

    async def counted() -> bool | None:
        return (await stats(http))["processed_today"] == 1 or None

    assert await until(counted, 30, lambda: "it was not counted")
