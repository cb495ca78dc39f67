"""How much longer a job runs: from runs before it and from its own pace, and nothing where neither tells."""

from __future__ import annotations

from collections import Counter

import pytest

from packhorse.background.stats import StatsCounter
from packhorse.core import lifecycle
from packhorse.core.models import Job
from packhorse.jobs.explain import estimate_job, past_durations
from packhorse.jobs.transact import Transactor
from packhorse.schemas.job_details import Estimate
from packhorse.store.base import Progress, Store
from packhorse.store.counters import duration_bucket
from tests.contract.builders import ONNX, SPEC, needs, plan, stage, started, submission
from tests.contract.stores import Clock
from tests.worker.builders import finishing

NOW = 1_800_000_000.0
TWO = plan(stage("onnx"), stage("bie", needs("onnx")))
SIDE = plan(stage("onnx"), stage("bie"))
PAST = {"onnx": Counter({duration_bucket(10.0): 9}), "bie": Counter({duration_bucket(100.0): 4})}
WITHIN = 0.25
"""Buckets are a fifth wide, and a little."""


def waiting(of: object = TWO) -> Job:
    return submission(of, SPEC, now=NOW).after  # type: ignore[arg-type]


def running() -> Job:
    change = lifecycle.start(waiting(), ONNX, token="t", worker="w", lease=15, now=NOW)
    assert change is not None
    return change.after


def told(job: Job, after: float = 0.0, share: float | None = None) -> Estimate:
    report = {} if share is None else {ONNX: Progress(ONNX, 1, NOW, share, 1.0, "", share)}
    return estimate_job(job, report, PAST, NOW + after)


def test_stages_in_a_row_take_as_long_as_both() -> None:
    found = told(waiting())

    assert found.seconds == pytest.approx(110.0, rel=WITHIN)
    assert found.runs == 4


def test_stages_side_by_side_take_as_long_as_the_longer_one() -> None:
    assert told(waiting(SIDE)).seconds == pytest.approx(100.0, rel=WITHIN)


def test_the_time_before_a_job_may_begin_is_no_part_of_what_it_takes() -> None:
    delayed = submission(TWO, SPEC, now=NOW, delay=3600.0).after

    assert told(delayed).seconds == pytest.approx(110.0, rel=WITHIN)


def test_what_has_passed_is_taken_off() -> None:
    assert told(running(), after=5.0).stages["onnx"].seconds == pytest.approx(5.0, rel=2 * WITHIN)


def test_its_own_pace_says_more_than_the_past() -> None:
    """After 30 seconds it is half done: thirty more, whatever others took."""
    assert told(running(), after=30.0, share=0.5).stages["onnx"].seconds == pytest.approx(30.0)


def test_what_takes_longer_than_ever_and_says_nothing_has_no_estimate() -> None:
    found = told(running(), after=1000.0)

    assert found.stages["onnx"].seconds is None
    assert found.seconds is None


def test_where_nothing_is_known_nothing_is_told() -> None:
    found = estimate_job(waiting(), {}, {}, NOW)

    assert (found.seconds, found.runs) == (None, 0)


def test_a_job_that_is_being_stopped_has_none() -> None:
    change = lifecycle.cancel(running(), now=NOW)

    assert change is not None
    assert told(change.after).seconds is None


async def test_a_job_that_went_well_is_the_past_of_the_next(store: Store, clock: Clock) -> None:
    stats = StatsCounter(store)
    claimed = await started(store)
    clock.forward(40.0)
    await Transactor(store, stats.run_ended)(claimed.job.id, finishing(store, claimed))
    await stats.flush()

    found = await past_durations(store, claimed.job.plan.pipeline)

    assert found == {claimed.task.stage: Counter({duration_bucket(40.0): 1})}
    assert await past_durations(store, "another") == {}


def test_nine_of_ten_need_no_longer_than_the_longest_time_that_it_names() -> None:
    past = {"onnx": Counter({duration_bucket(10.0): 80, duration_bucket(60.0): 20}), "bie": PAST["bie"]}

    found = estimate_job(waiting(), {}, past, NOW)
    by_pace = estimate_job(running(), {ONNX: Progress(ONNX, 1, NOW, 0.5, 1.0, "", 0.5)}, past, NOW + 30)
    over = told(running(), after=1000.0)

    assert [found.seconds, found.most] == pytest.approx([110.0, 160.0], rel=WITHIN)
    assert [by_pace.seconds, by_pace.most] == pytest.approx([130.0, 145.0], rel=WITHIN)
    assert by_pace.stages["onnx"].most == pytest.approx(45.0)
    assert over.most is None
