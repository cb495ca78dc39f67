"""When a stage waited and how long it took: by the clock, and no sums that nobody can make sense of."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import pytest

from packhorse.web.widgets.job import Row, timeline

BEGIN = 1_800_000_000.0
NEEDS = {"work": ["split"]}


def at(seconds: float) -> str:
    return datetime.fromtimestamp(BEGIN + seconds, UTC).isoformat()


def event(type: str, seconds: float, stage: str | None = None, **more: Any) -> dict[str, Any]:
    return {"type": type, "at": at(seconds), **({} if stage is None else {"stage": stage}), **more}


def read(events: Sequence[Any], *, status: str = "completed", now: float = 100.0, **stages: str) -> dict[str, Row]:
    ended = None if status == "running" else events[-1]["at"]
    job = {"created_at": at(0), "completed_at": ended, "status": status}
    told = {"stages": {name: {"status": each} for name, each in stages.items()}}
    return dict(timeline({**job, **told}, events, NEEDS, datetime.fromtimestamp(BEGIN + now, UTC)).rows)


def test_elements_side_by_side_are_told_by_the_clock() -> None:
    events = [event("submitted", 0), event("stage_started", 1, "split"), event("stage_completed", 2, "split")]
    for element in range(40):
        start = 3 + element // 20 * 10
        events.append(event("stage_started", start, "work", element=element, attempt=1))
        events.append(event("stage_completed", start + 10, "work", element=element))
    events.append(event("completed", 24))

    found = read(sorted(events, key=lambda each: each["at"]), split="completed", work="completed")

    assert (found["split"].waited, found["split"].took) == (1.0, 1.0)
    assert (found["work"].waited, found["work"].took) == (1.0, 20.0)


def test_what_is_waited_between_attempts_is_part_of_what_it_took() -> None:
    events = [
        event("submitted", 0),
        event("stage_started", 2, "split", attempt=1),
        event("retrying", 3, "split", why="failed", code="EXCEPTION"),
        event("stage_started", 8, "split", attempt=2),
        event("stage_completed", 9, "split"),
        event("completed", 9),
    ]

    row = read(events, split="completed")["split"]

    assert (row.waited, row.took) == (2.0, 7.0)
    assert [span.kind for span in row.spans] == ["wait", "failed", "run"]


@pytest.mark.parametrize(("seconds", "waited"), [(0.0, 0.0), (4.0, 4.0)])
def test_one_that_runs_has_taken_what_has_passed(seconds: float, waited: float) -> None:
    events = [event("submitted", 0), event("stage_started", seconds, "split", attempt=1)]

    row = read(events, status="running", now=10.0, split="running")["split"]

    assert (row.waited, row.took) == (waited, 10.0 - seconds)


def test_one_that_could_run_waits_until_now_and_one_that_could_not_does_not() -> None:
    found = read([event("submitted", 0)], status="running", now=5.0, split="pending", work="pending")

    assert (found["split"].waited, found["split"].took) == (5.0, None)
    assert (found["work"].waited, found["work"].took) == (None, None)
