"""The one shape of a job."""

from __future__ import annotations

import itertools
from datetime import datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from packhorse.core import lifecycle
from packhorse.core.models import Artifact, Event, Failure, Firing, Input, Job, Result, Spec, Stored, TaskId
from packhorse.core.plan import Need, Plan, StagePlan, Status
from packhorse.schemas.job_details import event_to_json
from packhorse.schemas.jobs import job_to_json, new_job_to_json, public_job, stable_names
from packhorse.schemas.progress import iso
from packhorse.store.base import Progress

PLAN = Plan(
    "p",
    (
        StagePlan("split"),
        StagePlan("each", needs=(Need("x", "split", "each"),)),
        StagePlan("join", needs=(Need("xs", "each", "gather"),)),
        StagePlan("side"),
    ),
)

A2 = {
    "job_id", "created_at", "updated_at", "status", "stage", "progress", "stage_progress", "parameters",
    "result_object_keys", "error", "origin", "user_id", "tenant_id", "created_by_client_id", "source_filename", "input",
    "stage_timings", "expires_at", "metadata",
}  # fmt: skip
MORE = {
    "pipeline", "run", "retry_count", "started_at", "completed_at", "result", "trace_id", "duration_ms", "stages",
    "version", "inputs", "priority", "not_before", "last_event",
}  # fmt: skip


def stored(name: str, key: str = "k") -> Stored:
    return Stored(key, name, 3, "ab" * 32)


def submitted(spec: Spec | None = None) -> Job:
    change = lifecycle.submit(PLAN, spec or Spec(b"{}"), job_id="j", user="u", now=1000.0, trace_id="t")
    return change.after


def done(job: Job, stage: str, element: int = 0, *, at: float, width: int | None = None) -> Job:
    task = TaskId(stage, element)
    job = lifecycle.start(job, task, token="t", worker="w", lease=1, now=at).after
    return lifecycle.finish(job, task, token="t", result=Result(b"1"), width=width, now=at + 2).after


def report(at: TaskId, current: float, run: int = 1, message: str = "") -> Progress:
    return Progress(at, run, 1003.0, current, 4.0, message, current / 4)


def test_every_field_that_was_asked_for_is_there() -> None:
    assert job_to_json(submitted(), Spec(b"{}"), {}, {}).keys() >= A2 | MORE


@pytest.mark.parametrize("plan", [PLAN, replace(PLAN, secrets=(("a",),), slot="s", keep={Status.FAILED: 5.0})])
def test_a_new_job_is_shown_as_any_other(plan: Plan) -> None:
    specs = [Spec(b'{"a":1}'), Spec(b'{"a":2}', metadata={"m": 1}, origin="cli"), Spec(b"{}")]
    specs.append(Spec(b'{"a":{"$file":0}}', (Input("a", 0, stored("x.bin")),)))
    options: list[dict[str, Any]] = [
        {"job_id": "1", "user": "ann", "now": 1000.0, "trace_id": "t"},
        {"job_id": "2", "user": "bob", "now": 2000.5, "tenant": "other", "client": "k", "priority": 7, "delay": 3600.0},
        {"job_id": "3", "user": "ann", "now": 3000.0, "firing": Firing("nightly", 2940.0), "webhooks": ("w",)},
    ]

    for spec, said in itertools.product(specs, options):
        job = lifecycle.submit(plan, spec, **said).after
        assert list(new_job_to_json(job, spec).items()) == list(job_to_json(job, spec, {}, {}).items())


def test_a_job_whose_spec_is_gone_can_still_be_shown() -> None:
    assert job_to_json(submitted(), None, {}, {})["parameters"] == {}


def test_files_among_the_parameters_are_shown_by_name() -> None:
    spec = Spec(
        b'{"model":{"$file":1},"images":[{"$file":0},{"$file":2}],"own":{"$file":0}}',
        (Input("images", 0, stored("a.png")), Input("model", 0, stored("m.onnx")), Input("images", 1, stored("b.png"))),
    )

    found = job_to_json(submitted(spec), spec, {}, {})

    assert found["parameters"] == {"model": "m.onnx", "images": ["a.png", "b.png"], "own": {"$file": 0}}
    assert found["source_filename"] == "a.png"


def test_a_job_is_named_after_its_pipelines_first_file_parameter_whichever_file_came_first() -> None:
    spec = Spec(
        b'{"model":{"$file":1},"images":[{"$file":0}]}',
        (Input("images", 0, stored("a.png")), Input("model", 0, stored("m.onnx", "jobs/j/input/model.0.onnx"))),
    )
    job = replace(submitted(spec), plan=replace(PLAN, primary="model", lists=("images",)))

    found = job_to_json(job, spec, {}, {})
    without = job_to_json(replace(job, plan=replace(job.plan, primary="other")), spec, {}, {})

    assert (found["source_filename"], found["input"]) == ("m.onnx", {**found["inputs"][1], "images_count": 1})
    assert without["source_filename"] == "a.png"  # an optional file that was not sent


def test_an_active_job_shows_when_it_would_be_deleted_and_an_ended_one_when_it_is() -> None:
    plan = replace(PLAN, stages=PLAN.stages[:1], keep={Status.COMPLETED: 600.0, Status.FAILED: 60.0})
    job = lifecycle.submit(plan, Spec(b"{}"), job_id="j", user="u", now=1000.0, delay=100.0).after
    started = lifecycle.start(job, TaskId("split"), token="t", worker="w", lease=1, now=1200.0).after

    shown = [job_to_json(each, None, {}, {})["expires_at"] for each in (job, started)]
    ended = [done(job, "split", at=1200.0), failed(job, "split", at=1200.0)]

    assert shown == [iso(1700.0), iso(1800.0)]
    assert [job_to_json(each, None, {}, {})["expires_at"] for each in ended] == [iso(1802.0), iso(1262.0)]


def test_an_apps_word_for_a_stage_is_shown_while_it_runs_and_its_files_on_top_if_it_asks() -> None:
    plan = replace(PLAN, stage_statuses={"split": "SPLIT", "side": "SIDE"}, outputs={"path": "split"}, has_output=True)
    job = lifecycle.submit(plan, Spec(b"{}"), job_id="j", user="u", now=1000.0).after
    started = lifecycle.start(job, TaskId("side"), token="t", worker="w", lease=1, now=1001.0).after

    shown = [job_to_json(each, None, {}, {}) for each in (job, started, done(started, "split", at=1002.0, width=1))]

    assert [each["alias"] and each["alias"].get("stage", "") for each in shown] == [None, "SIDE", "SIDE"]
    assert shown[0]["output"] == {"path": None}
    assert "output" not in job_to_json(submitted(), None, {}, {})
    assert public_job(shown[0])["output"] == {}


def test_files_of_one_name_are_told_apart_by_their_stage() -> None:
    job = submitted()
    made = {each: Result(b"1", (Artifact(f"{each}/Out.txt", stored("Out.txt")),)) for each in ("split", "side")}
    other = Result(b"1", (Artifact("side/other.txt", stored("other.txt")),))

    same = stable_names(job, {TaskId(stage): result for stage, result in made.items()})
    apart = stable_names(job, {TaskId("split"): made["split"], TaskId("side"): other})

    assert [*same.values()] == ["jobs/j/output/split/Out.txt", "jobs/j/output/side/Out.txt"]
    assert [*apart.values()] == ["jobs/j/output/Out.txt", "jobs/j/output/other.txt"]


def test_a_stage_shows_what_it_last_reported() -> None:
    job = lifecycle.start(submitted(), TaskId("split"), token="t", worker="w", lease=1, now=1001.0).after

    found = job_to_json(job, None, {}, {TaskId("split"): report(TaskId("split"), 1, message="one of four")})

    assert found["stages"]["split"] == {
        "status": "running",
        "progress": 25.0,
        "current": 1,
        "total": 4.0,
        "message": "one of four",
        "attempt": 1,
        "started_at": iso(1001.0),
        "completed_at": None,
        "updated_at": iso(1003.0),
    }
    assert (found["stage"], found["stage_progress"], found["progress"]) == ("split", 25.0, 6.25)


def test_a_report_of_an_earlier_run_is_not_shown() -> None:
    job = lifecycle.start(submitted(), TaskId("split"), token="t", worker="w", lease=1, now=1001.0).after
    job = replace(job, run=2)

    assert (
        job_to_json(job, None, {}, {TaskId("split"): report(TaskId("split"), 3)})["stages"]["split"]["current"] is None
    )


def test_a_stage_with_elements_counts_them() -> None:
    job = done(submitted(), "split", at=1001.0, width=3)
    job = done(job, "each", 0, at=1004.0)
    job = lifecycle.start(job, TaskId("each", 1), token="t", worker="w", lease=1, now=1007.0).after

    each = job_to_json(job, None, {}, {})["stages"]["each"]

    assert (each["current"], each["total"]) == (1, 3)
    assert each["elements"] == {"total": 3, "completed": 1, "failed": 0, "running": 1, "skipped": 0}


def test_times_of_stages_are_those_of_their_tasks() -> None:
    job = done(submitted(), "split", at=1001.0, width=2)
    job = done(job, "each", 0, at=1004.0)

    found = job_to_json(job, None, {}, {})["stage_timings"]

    assert found["split"] == {"started_at": iso(1001.0), "completed_at": iso(1003.0), "duration_ms": 2000}
    assert found["each"] == {"started_at": iso(1004.0), "completed_at": None, "duration_ms": None}
    assert (found["join"], found["side"]) == (None, None)


def failed(job: Job, stage: str, element: int = 0, *, at: float) -> Job:
    task, error = TaskId(stage, element), Failure("NO_LUCK", "It broke.", permanent=True)
    job = lifecycle.start(job, task, token="t", worker="w", lease=1, now=at).after
    return lifecycle.fail(job, task, token="t", error=error, luck=0.0, now=at + 2).after


def test_times_of_a_retried_stage_are_those_of_the_current_run() -> None:
    job = done(done(submitted(), "split", at=1001.0, width=2), "each", 0, at=1004.0)
    retried = lifecycle.retry(failed(job, "each", 1, at=1007.0), now=5000.0)
    assert retried is not None
    job = done(retried.after, "each", 1, at=5001.0)

    found = job_to_json(job, None, {}, {})

    timings = [each for each in found["stage_timings"].values() if each is not None]
    assert [each["duration_ms"] for each in timings] == [2000, 2000]  # the first did not run again
    assert (found["stages"]["each"]["started_at"], found["stages"]["each"]["completed_at"]) == (iso(5001), iso(5003))


def test_a_failed_job_names_the_stage_that_failed_and_not_one_that_never_started() -> None:
    job = failed(submitted(), "side", at=1001.0)

    found = job_to_json(job, None, {}, {})

    assert (found["stages"]["split"]["status"], found["stage"]) == ("skipped", "side")


def test_a_finished_job_shows_what_its_last_stages_returned() -> None:
    job = done(submitted(), "split", at=1001.0, width=2)
    for element in (0, 1):
        job = done(job, "each", element, at=1004.0)
    job = done(done(job, "join", at=1007.0), "side", at=1010.0)
    made = Artifact("side/a.txt", stored("a.txt", "k1"))
    results: dict[TaskId, Result] = {
        TaskId("each", 0): Result(b'{"$file":0}', (Artifact("each/0/b.txt", stored("b", "k2")),)),
        TaskId("each", 1): Result(b'{"$file":0}', (Artifact("each/1/b.txt", stored("b", "k3")),)),
        TaskId("join"): Result(b'{"n":1}'),
        TaskId("side"): Result(b'{"text":{"$file":0},"$$file":5}', (made,)),
    }

    found = job_to_json(job, None, results, {})

    assert found["status"] == "completed"
    assert found["result"].keys() == {"join", "side"}
    assert found["result"]["join"] == {"n": 1}
    assert found["result"]["side"]["text"]["name"] == "side/a.txt"
    assert found["result"]["side"]["$file"] == 5
    assert found["result_object_keys"] == {"each": ["k2", "k3"], "side": "k1"}
    assert (found["progress"], found["stage"], found["stage_progress"]) == (100.0, None, 100.0)
    assert found["duration_ms"] == 11_000


def test_an_error_shows_where_it_was() -> None:
    job = replace(submitted(), error=Failure("X", "It broke.", "each", 2, detail="line 3"))

    assert job_to_json(job, None, {}, {})["error"] == {
        "code": "X",
        "message": "It broke.",
        "stage": "each",
        "detail": "line 3",
        "element": 2,
    }


def test_an_event_keeps_its_own_time_beside_the_one_it_speaks_of() -> None:
    facts: dict[str, Any] = {"stage": "s", "at": 1010.0}

    assert event_to_json(Event(3, "retrying", 1000.0, facts)) == {
        "n": 3,
        "type": "retrying",
        "at": iso(1000.0),
        "stage": "s",
        "not_before": iso(1010.0),
    }


@given(st.floats(0, 4e9))
def test_a_time_shown_is_not_after_the_time_meant(at: float) -> None:
    shown = datetime.fromisoformat(str(iso(at))).timestamp()

    assert shown <= at
    assert at - shown < 2e-6


def test_a_time_past_the_calendar_can_be_shown() -> None:
    assert iso(0.0) == "1970-01-01T00:00:00.000000Z"
    assert iso(1e300) == "9999-12-31T23:59:59.000000Z"
    assert iso(None) is None
