from __future__ import annotations

import dataclasses
import inspect
from typing import Any

import pytest

from packhorse.core import json
from packhorse.core.plan import Backoff, Defaults, Plan, StagePlan, Status, fill_plan
from packhorse.define import Context, File, JobDecorator, Params, Pipeline, Stage, each, gather, needs
from packhorse.errors import DefinitionError


class Convert(Params):
    """Converts."""

    model: File


def line() -> int:
    frame = inspect.currentframe()
    assert frame is not None
    assert frame.f_back is not None
    return frame.f_back.f_lineno


@pytest.fixture
def convert() -> Pipeline[Convert]:
    return Pipeline("convert", Convert)


def onnx(ctx: Context, p: Convert) -> File:
    return p.model


def test_options_reach_the_plan() -> None:
    convert = Pipeline("convert", Convert, one_per="user", keep="7d", deadline="1h", run_timeout="10m")
    convert.stage(
        name="first",
        queue="gpu",
        retries=0,
        timeout="10m",
        stall="30s",
        backoff=("2s", "5m"),
        memory="512MB",
        weight=2,
        elements=5,
    )(onnx)

    plan = convert.plan()

    assert plan.stages == (
        StagePlan(
            "first",
            "gpu",
            kind=plan.stages[0].kind,
            retries=0,
            timeout=600,
            stall=30,
            backoff=Backoff(2, 300),
            memory=512 * 1024**2,
            weight=2,
            elements=5,
        ),
    )
    assert (plan.deadline, plan.run_timeout, plan.slot) == (3600, 600, "convert")
    assert plan.keep == dict.fromkeys((Status.COMPLETED, Status.FAILED, Status.CANCELLED), 604_800)


def test_without_options_the_plan_has_the_defaults_and_leaves_them_to_the_deployment(
    convert: Pipeline[Convert],
) -> None:
    convert.stage(onnx)

    plan = convert.plan()

    kind, left = plan.stages[0].kind, ("retries", "backoff", "timeout")
    stage = StagePlan("onnx", kind=kind, unset=left)
    assert plan == Plan(
        "convert",
        (stage,),
        primary="model",
        unset=("deadline", "keep", "pending", "revive"),
        fingerprint=plan.fingerprint,
    )


@pytest.mark.parametrize("name", ["pipeline", "user_id", "parameters", "priority", "delay", "metadata"])
def test_a_parameter_that_a_submit_has_itself_is_refused(name: str) -> None:
    params = dataclasses.make_dataclass("Taken", [(name, str)])

    with pytest.raises(DefinitionError, match=f"cannot be named '{name}'"):
        Pipeline("taken", params)


def test_a_deployment_fills_in_only_what_was_left_open(convert: Pipeline[Convert]) -> None:
    convert.stage(retries=7)(onnx)

    plan = fill_plan(convert.plan(), Defaults(retries=1, timeout=5.0, deadline=60.0, keep=30.0))

    [stage] = plan.stages
    assert (stage.retries, stage.timeout, stage.unset) == (7, 5.0, ())
    assert (plan.deadline, plan.keep[Status.FAILED], plan.unset) == (60.0, 30.0, ())
    assert plan.fingerprint != convert.plan().fingerprint


def test_decorators_can_be_kept_and_used_again(convert: Pipeline[Convert]) -> None:
    gpu = convert.stage(queue="gpu", retries=1)

    assert gpu(name="a")(onnx).plan.queue == "gpu"
    assert gpu(name="b", queue="cpu")(onnx).plan.queue == "cpu"
    assert (convert.stages["b"].plan.retries, list(convert.stages)) == (1, ["a", "b"])


def test_pipelines_may_share_a_slot_and_keep_jobs_by_how_they_ended() -> None:
    plan = _planned(one_per="user", slot="shared", keep={"completed": "30d", "cancelled": 60})

    assert plan.slot == "shared"
    assert plan.keep == {Status.COMPLETED: 30 * 86_400, Status.CANCELLED: 60}


def test_a_backoff_alone_keeps_the_longest_wait_sensible() -> None:
    stages = {start: Pipeline("a", Convert).stage(backoff=start)(onnx).plan.backoff for start in ("5s", "2m")}

    assert stages == {"5s": Backoff(5, 60), "2m": Backoff(120, 120)}


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"retries": -1}, "retries must be a whole number, at least 0, not -1"),
        ({"retries": True}, "retries must be a whole number"),
        ({"timeout": 0}, "timeout must be more than 0"),
        ({"timeout": "soon"}, "'soon' is not a duration"),
        ({"stall": 0}, "stall must be more than 0"),
        ({"memory": "lots"}, "'lots' is not a size"),
        ({"memory": 0}, "memory must be more than 0"),
        ({"weight": 0}, "weight must be more than 0"),
        ({"weight": float("inf")}, "weight must be more than 0"),
        ({"weight": "heavy"}, "weight must be more than 0"),
        ({"elements": 0}, "elements must be a whole number, at least 1"),
        ({"backoff": ("1m", "1s")}, "backoff cannot start at 60s and stop growing at 1s"),
        ({"queue": "a b"}, "'a b' is not a valid name"),
        ({"name": "-a"}, "'-a' is not a valid name"),
        ({"tiemout": 1}, "tiemout"),
    ],
)
def test_a_limit_that_makes_no_sense_is_refused_with_its_place(
    convert: Pipeline[Convert], options: Any, sentence: str
) -> None:
    with pytest.raises(DefinitionError) as refused:
        convert.stage(**options)(onnx)

    assert sentence in refused.value.message
    assert refused.value.message.endswith(f"test_pipelines.py:{onnx.__code__.co_firstlineno}")


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"one_per": "tenant"}, 'one_per can only be "user"'),
        ({"slot": "a"}, 'slot= needs one_per="user"'),
        ({"on_conflict": "queue"}, 'on_conflict= needs one_per="user"'),
        ({"one_per": "user", "on_conflict": "wait"}, 'on_conflict can only be "refuse", "queue" or "replace"'),
        ({"one_per": "user", "slot": "a/b"}, "'a/b' is not a valid name"),
        ({"keep": {"pending": "1d"}}, "keep takes cancelled, completed, failed"),
        ({"keep": "forever"}, "'forever' is not a duration"),
        ({"deadline": 0}, "deadline must be more than 0"),
        ({"run_timeout": 0}, "run_timeout must be more than 0"),
        ({"dedline": 1}, "dedline"),
        ({"search": "platform"}, "search takes names of parameters"),
        ({"search": ("colour",)}, "search= names 'colour', which is no parameter"),
        ({"search": ("model",)}, "search= names 'model', a file"),
    ],
)
def test_an_option_of_a_pipeline_that_makes_no_sense_is_refused_with_its_place(options: Any, sentence: str) -> None:
    with pytest.raises(DefinitionError) as refused:
        Pipeline("convert", Convert, **options)
    here = line()

    assert refused.value.message.startswith("Pipeline 'convert': ")
    assert sentence in refused.value.message
    assert refused.value.message.endswith(f"test_pipelines.py:{here - 1}")


@pytest.mark.parametrize("name", ["a", "A9", "text-to_speech", "0", "x" * 63])
def test_names_of_letters_digits_and_strokes_are_taken(name: str) -> None:
    assert Pipeline(name, Convert).stage(name=name, queue=name)(onnx).name == name


@pytest.mark.parametrize("name", ["", "_a", "-a", "a b", "a/b", "a#b", "a.b", "é", "a\n", "x" * 64, 3, None])
def test_other_names_are_refused(name: Any) -> None:
    with pytest.raises(DefinitionError, match="is not a valid name"):
        Pipeline(name, Convert)


def test_two_stages_of_one_name_are_refused_with_both_places(convert: Pipeline[Convert]) -> None:
    first = convert.stage(onnx)

    with pytest.raises(
        DefinitionError, match=rf"has the name of 'onnx' at {first.place}. See .*test_pipelines.py:\d+$"
    ):

        @convert.stage
        def ONNX(ctx: Context, p: Convert) -> None: ...


def test_a_stage_of_another_pipeline_cannot_be_needed(convert: Pipeline[Convert]) -> None:
    foreign = Pipeline("other", Convert).stage(onnx)
    convert.stage(onnx)

    with pytest.raises(DefinitionError, match="of another pipeline"):

        @convert.stage
        def bie(ctx: Context, p: Convert, model: File = needs(foreign)) -> None: ...


def test_what_the_graph_forbids_is_refused_at_the_stage(convert: Pipeline[Convert]) -> None:
    @convert.stage
    def split(ctx: Context, p: Convert) -> list[int]:
        return []

    @convert.stage
    def work(ctx: Context, p: Convert, n: int = each(split)) -> int:
        return n

    def wrong(ctx: Context, p: Convert, n: int = needs(work)) -> None: ...
    def wronger(ctx: Context, p: Convert, n: Any = gather(split)) -> None: ...
    def twice(ctx: Context, p: Convert, n: int = each(split), m: int = each(split)) -> None: ...

    for function, sentence in ((wrong, "must use gather"), (wronger, "must use needs"), (twice, "two each")):
        with pytest.raises(
            DefinitionError, match=rf"{sentence}.*test_pipelines.py:{function.__code__.co_firstlineno}$"
        ):
            convert.stage(function)


def test_a_pipeline_without_stages_has_no_plan(convert: Pipeline[Convert]) -> None:
    with pytest.raises(DefinitionError, match=r"has no stages. See .*test_pipelines.py:\d+$"):
        convert.plan()


def test_only_functions_are_stages(convert: Pipeline[Convert]) -> None:
    with pytest.raises(DefinitionError, match=r"Only a function can be decorated, not 3. See .*test_pipelines.py"):
        convert.stage(3)  # type: ignore[call-overload]


def test_a_kind_changes_with_the_wiring_and_with_nothing_else() -> None:
    def kind(how: Any, parameter: str, **options: Any) -> str:
        convert = Pipeline("convert", Convert)

        @convert.stage
        def split(ctx: Context, p: Convert) -> list[int]:
            return []

        namespace: dict[str, Any] = {"how": how, "split": split}
        exec(f"def work(ctx, p, {parameter}=how(split)): ...", namespace)
        work: Stage[..., Any] = convert.stage(**options)(namespace["work"])
        return work.plan.kind

    kinds = [kind(needs, "a"), kind(each, "a"), kind(needs, "b")]

    assert len(set(kinds)) == 3
    assert all(kind.startswith("convert/work#") and len(kind) == len("convert/work#") + 8 for kind in kinds)
    assert kind(needs, "a", retries=9, queue="gpu") == kinds[0]


def test_a_fingerprint_changes_with_the_plan() -> None:
    assert _planned().fingerprint == _planned().fingerprint != _planned(deadline="1h").fingerprint


def test_a_definition_is_what_an_api_host_needs(convert: Pipeline[Convert]) -> None:
    convert.stage(onnx)

    definition = convert.definition("edge")

    assert (definition.app, definition.pipeline, definition.description) == ("edge", "convert", "Converts.")
    assert json.plan_from(definition.plan) == convert.plan()
    assert json.decode(definition.schema, dict[str, Any]) == convert.schema.json_schema()


def test_a_definitions_fingerprint_changes_with_the_parameters_too() -> None:
    class Other(Params):
        model: File
        more: int = 0

    found = set()
    for params in (Convert, Convert, Other):
        pipeline: Pipeline[Any] = Pipeline("convert", params)
        pipeline.stage(loose)
        found.add(pipeline.definition("edge").fingerprint)

    assert len(found) == 2


def loose(ctx: Context, p: Any) -> None: ...


def _planned(**options: Any) -> Plan:
    pipeline = Pipeline("convert", Convert, **options)
    stage: Stage[..., File] = pipeline.stage(onnx)
    assert stage.plan in pipeline.plan().stages
    return pipeline.plan()


def test_an_option_there_is_not_is_answered_with_those_there_are() -> None:
    wrong: dict[str, Any] = {"wat": 1}
    convert = Pipeline("convert", Params)

    with pytest.raises(
        DefinitionError, match="Pipeline 'other': a pipeline has no option 'wat'; it has one_per, slot, "
    ):
        Pipeline("other", Params, **wrong)
    with pytest.raises(DefinitionError, match="Stage 'work' of 'convert': a stage has no option 'wat'; it has name, "):

        @convert.stage(**wrong)  # type: ignore[untyped-decorator] # mypy does not know which options these are
        def work(ctx: Context, p: Params) -> None: ...

    with pytest.raises(DefinitionError, match="Job 'job': a job has no option 'wat'; it has name, queue, "):

        @JobDecorator(lambda _: None)(**wrong)
        def job() -> None: ...


@pytest.mark.parametrize("wrong", ["timeout", ("stall",), ("timeout", "disk")])
def test_limits_after_which_a_stage_is_retried_are_checked(wrong: Any) -> None:
    pipeline = Pipeline("limits", Params)

    with pytest.raises(DefinitionError, match="retry_on takes"):

        @pipeline.stage(retry_on=wrong)
        def work(ctx: Context, p: Params) -> None: ...
