"""Values to bytes and back: nothing is lost, and what cannot be read is refused by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from packhorse.core import json, lifecycle
from packhorse.core.json import replace_at, values_at
from packhorse.core.limits import Fair, Limit
from packhorse.core.models import (
    Artifact,
    Event,
    Failure,
    Firing,
    Input,
    Job,
    Result,
    Spec,
    Stage,
    Stored,
    Task,
    TaskId,
)
from packhorse.core.plan import Backoff, Definition, Plan, Status, fingerprint
from packhorse.errors import CorruptRecord, SchemaTooNew
from tests.core.plans import (
    BROKEN,
    FAN,
    HOPELESS,
    LEFT,
    NESTED,
    NOW,
    ONLY,
    SPLIT,
    cancelled,
    completed,
    each,
    failed,
    page,
    plan,
    retried,
    running,
    split,
    stage,
    started,
    submitted,
    sure,
)

APART = plan(stage("left"), stage("right"), deadline=50.0)
BOTH = started(running(APART, LEFT), TaskId("right"))

JOBS: dict[str, Job] = {
    "pending": submitted(),
    "running": running(),
    "between attempts": failed(running(), ONLY, error=Failure("X", 'é\n"\u2028', detail="Traceback …")),
    "alone": lifecycle.fail(running(), ONLY, token="t", error=BROKEN, luck=0.3, alone=True, now=NOW).after,
    "completed": completed(),
    "failed": failed(running(), ONLY, error=HOPELESS),
    "cancelled": cancelled(submitted()),
    "cancelling": cancelled(BOTH),
    "failing": failed(BOTH, LEFT, error=HOPELESS),
    "expiring": sure(lifecycle.expire(BOTH, now=NOW + 50.0)).after,
    "elements unknown": submitted(NESTED),
    "elements known": started(split(3), page(1)),
    "an element failed": failed(started(split(3), page(1)), page(1), error=HOPELESS),
    "no elements": split(0),
    "second run": retried(failed(running(FAN, SPLIT), SPLIT, error=HOPELESS), "*"),
}

STORED = Stored("jobs/j/input/m.onnx", "mödel.onnx", 7, "00ff", "model/onnx")
FULL_SPEC = Spec(b'{"model":{"$file":0}}', (Input("model", 0, STORED),), {"note": [1, None, {"a": "b"}]}, "cli")
FULL_RESULT = Result(b'{"$file":0}', (Artifact("nef/model.nef", STORED),), (Artifact("nef/log.txt", STORED),))
FULL_PLAN = plan(
    stage(
        "split",
        queue="gpu",
        kind="k",
        retries=0,
        backoff=Backoff(2.0, 9.0),
        timeout=1.0,
        stall=5.0,
        memory=1,
        weight=2.0,
    ),
    stage("page", each("split"), is_async=True, elements=3),
    slot="s",
    keep={Status.FAILED: 1.0, Status.COMPLETED: 0.5},
)

READERS: dict[str, Callable[[bytes, str], object]] = {
    "state": json.state_from,
    "spec": json.spec_from,
    "result": json.result_from,
    "events": json.events_from,
}
every_reader = pytest.mark.parametrize(("what", "read"), READERS.items(), ids=READERS)


def state_of(job: Job) -> json.State:
    return json.State(
        json.VERSION, job.run, job.events, job.stopping, job.error, job.stages, job.webhooks, job.promoted, job.firing
    )


# round trips


@pytest.mark.parametrize("job", JOBS.values(), ids=JOBS)
def test_the_state_of_a_job_survives(job: Job) -> None:
    assert json.state_from(json.encode(state_of(job)), "j") == state_of(job)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("webhooks", ("e1", "e2")),
        ("promoted", ("s3://a/b",)),
        ("firing", Firing("nightly", 86_400.0)),
        ("revived", 2),
    ],
)
def test_optional_parts_of_a_job_survive_in_its_state(field: str, value: object) -> None:
    state = json.state_from(json.state_of(msgspec.structs.replace(submitted(), **{field: value})), "j")

    assert (state.v, getattr(state, field)) == (json.UNREGULATED, value)


@pytest.mark.parametrize("options", [{"limits": (Limit("convert.user", "user", 1),)}, {"fair": Fair("user")}])
def test_older_workers_are_told_that_they_do_not_know_limits(options: dict[str, Any]) -> None:
    limited = submitted(plan(stage("only", **options)))

    assert json.state_from(json.state_of(limited), "j").v == json.VERSION == json.UNREGULATED + 1


@pytest.mark.parametrize(("on_conflict", "version"), [("refuse", json.UNREGULATED), ("queue", 3), ("replace", 3)])
def test_older_workers_leave_jobs_alone_that_others_may_wait_for(on_conflict: Any, version: int) -> None:
    one_per = msgspec.structs.replace(plan(stage("only"), slot="convert"), on_conflict=on_conflict)
    job = submitted(one_per)

    assert json.state_from(json.state_of(job), "j").v == version


def test_the_values_that_limits_go_by_survive() -> None:
    limited = submitted(plan(stage("only", limits=(Limit("convert.params.platform", "params.platform", 1),))))

    assert json.state_from(json.state_of(limited), "j").limit_values == {"platform": "520"}


@pytest.mark.parametrize("spec", [Spec(b"{}"), FULL_SPEC])
def test_a_spec_survives(spec: Spec) -> None:
    assert json.spec_from(json.encode(spec), "j") == spec


@pytest.mark.parametrize("result", [Result(b"null"), FULL_RESULT])
def test_a_result_survives(result: Result) -> None:
    assert json.result_from(json.encode(result), "j") == result


@pytest.mark.parametrize("shape", [plan(stage("only")), NESTED, FULL_PLAN])
def test_a_plan_survives(shape: Plan) -> None:
    assert json.plan_from(json.encode(shape)) == shape


def test_a_plan_that_survived_finds_its_retention_by_status() -> None:
    assert json.plan_from(json.encode(FULL_PLAN)).keep[Status.FAILED] == 1.0


def test_events_survive_in_their_order() -> None:
    events = (Event(1, "submitted", NOW, {"user_id": "ann"}), Event(2, "started", NOW + 0.25))

    assert json.events_from(json.encode(events), "j") == events


@given(
    st.builds(
        Task,
        status=st.sampled_from(Status),
        attempt=st.integers(0, 2**31),
        token=st.none() | st.text(),
        started_at=st.none() | st.floats(0, 1e12),
        ended_at=st.none() | st.floats(0, 1e12),
        ready_at=st.none() | st.floats(0, 1e12),
        error=st.none() | st.builds(Failure, st.text(), st.text(), detail=st.none() | st.text()),
        is_alone=st.booleans(),
    )
)
def test_any_task_survives(task: Task) -> None:
    state = json.State(json.VERSION, 1, 1, None, None, (Stage((task,)), Stage(None), Stage(())))

    assert json.state_from(json.encode(state), "j") == state


def test_any_type_can_be_asked_for() -> None:
    assert json.decode(b"[1,2]", list[int]) == [1, 2]


def test_no_type_means_plain_values() -> None:
    assert json.decode('{"a":[1,null]}') == {"a": [1, None]}


# refusals


def test_a_newer_state_is_refused_with_both_versions() -> None:
    newer = msgspec.structs.replace(state_of(submitted()), v=json.VERSION + 1)

    with pytest.raises(SchemaTooNew) as refusal:
        json.state_from(json.encode(newer), "j")

    assert refusal.value.facts == {"found": json.VERSION + 1, "known": json.VERSION, "job_id": "j"}


def test_a_newer_state_with_more_in_it_is_refused_for_its_version() -> None:
    newer = [json.VERSION + 1, *msgspec.to_builtins(state_of(submitted()))[1:], "more"]

    with pytest.raises(SchemaTooNew):
        json.state_from(json.encode(newer), "j")


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"", id="nothing"),
        pytest.param(b"\x00\xff", id="not text"),
        pytest.param(b"7", id="another type"),
        pytest.param(b"[1,1,1,null,null,[[[", id="cut off"),
        pytest.param(json.encode("word") + b"x", id="something after it"),
    ],
)
@every_reader
def test_what_cannot_be_read_is_refused_by_name(data: bytes, what: str, read: Callable[[bytes, str], object]) -> None:
    with pytest.raises(CorruptRecord) as refusal:
        read(data, "j")

    assert (refusal.value.facts["what"], refusal.value.facts["job_id"]) == (what, "j")


@pytest.mark.parametrize(
    ("read", "data"),
    [
        (json.state_from, b'[1,1,1,null,{"code":"\xff","message":""},[]]'),
        (json.spec_from, b'{"parameters":"e30=","origin":"\xff"}'),
        (json.result_from, b'{"value":"","files":[{"name":"\xff"}]}'),
        (json.events_from, b'[{"n":1,"type":"\xff","at":1}]'),
    ],
)
def test_a_broken_byte_inside_a_string_is_refused(read: Callable[[bytes, str], object], data: bytes) -> None:
    with pytest.raises(CorruptRecord):
        read(data, "j")


@pytest.mark.parametrize("data", [b"", b"7", b"{", b'{"app":"\xff"}'], ids=["empty", "another", "cut", "byte"])
@pytest.mark.parametrize(
    ("read", "what"), [(json.plan_from, "plan"), (lambda data: json.record(data, Definition), "definition")]
)
def test_what_is_kept_beside_jobs_is_refused_by_its_sort(
    read: Callable[[bytes], object], what: str, data: bytes
) -> None:
    with pytest.raises(CorruptRecord, match=f"A {what} cannot be read") as refusal:
        read(data)

    assert refusal.value.facts["what"] == what


@given(at=st.integers(0), byte=st.integers(0, 255), job=st.sampled_from(list(JOBS.values())))
def test_a_flipped_byte_is_read_or_refused_but_never_anything_else(at: int, byte: int, job: Job) -> None:
    data = bytearray(json.encode(state_of(job)))
    data[at % len(data)] = byte

    try:
        read: object = json.state_from(bytes(data), "j")
    except CorruptRecord as refusal:
        read = refusal

    assert isinstance(read, json.State | CorruptRecord)


# fingerprints


def test_equal_values_have_one_fingerprint_whatever_their_order() -> None:
    assert fingerprint({"a": 1, "b": {"c": 2, "d": 3}}) == fingerprint({"b": {"d": 3, "c": 2}, "a": 1})


@pytest.mark.parametrize("other", [{"a": 2}, {"b": 1}, {"a": "1"}, {"a": [1]}, {}, None])
def test_different_values_have_different_fingerprints(other: object) -> None:
    assert fingerprint(other) != fingerprint({"a": 1})


def test_a_fingerprint_is_the_same_in_every_process() -> None:
    assert fingerprint({"b": 1, "a": None}) == "c0bf82ad036cb0a5a03d6759c1b7b8b1"


GIVEN = {
    "key": "k1",
    "none": None,
    "headers": {"Authorization": "h1", "X": "h2"},
    "users": [{"name": "ann", "password": "p1"}, {"name": "bob", "password": "p2"}],
}


@pytest.mark.parametrize(
    ("path", "there"),
    [
        (("key",), ["k1"]),
        (("none",), []),
        (("missing",), []),
        (("key", "deeper"), []),
        (("headers", "*"), ["h1", "h2"]),
        (("headers", "X"), ["h2"]),
        (("users", "*", "password"), ["p1", "p2"]),
        (("users", "password"), []),
    ],
)
def test_a_path_leads_to_what_its_names_say(path: tuple[str, ...], there: list[str]) -> None:
    assert values_at(GIVEN, [path]) == there


def test_what_is_changed_is_a_copy() -> None:
    assert replace_at(GIVEN, [("key",), ("users", "*", "password")], str.upper) == {
        **GIVEN,
        "key": "K1",
        "users": [{"name": "ann", "password": "P1"}, {"name": "bob", "password": "P2"}],
    }
    assert GIVEN["key"] == "k1"
