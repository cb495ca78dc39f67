"""The words of an app's own users: declared in one place, refused where they cannot be meant."""

from __future__ import annotations

from typing import Any

import pytest

from packhorse import App, Context, Params
from packhorse.core import json
from packhorse.core.plan import DownloadLimits, Plan, Status
from packhorse.errors import DefinitionError


class Words(Params):
    text: str = ""


def defined(app: App, **options: Any) -> Plan:
    pipeline = app.pipeline("count", Words, **options)

    @pipeline.stage
    def split(ctx: Context, p: Words) -> list[str]:
        return p.text.split()

    return json.plan_from(app.code.definitions()[-1].plan)


def test_the_words_of_an_app_are_published_with_each_of_its_pipelines() -> None:
    app = App("words", statuses={"pending": "created", "completed": "success"})

    @app.job
    def other() -> None: ...

    plans = [json.plan_from(each.plan) for each in app.code.definitions()]
    plan = defined(App("words", statuses={"running": "processing"}), outputs={"split_path": "split"})

    assert [each.statuses for each in plans] == [{Status.PENDING: "created", Status.COMPLETED: "success"}]
    assert (plan.statuses, plan.outputs) == ({Status.RUNNING: "processing"}, {"split_path": "split"})


def test_who_says_nothing_has_the_plan_that_it_always_had() -> None:
    said = defined(App("words"))

    assert (said.statuses, said.outputs) == ({}, {})
    assert b"statuses" not in json.encode(said)


def test_a_running_stage_has_a_word_in_the_pipelines_that_have_the_stage() -> None:
    app = App("words", statuses={"running": "busy", "running:split": "SPLIT"})

    @app.job
    def other() -> None: ...

    defined_ = defined(app)
    assert (defined_.statuses, defined_.stage_statuses) == ({Status.RUNNING: "busy"}, {"split": "SPLIT"})


def test_a_word_for_a_stage_that_there_is_not_is_refused() -> None:
    with pytest.raises(DefinitionError, match="statuses= for 'onnx', but no stage has that name"):
        defined(App("words", statuses={"running:onnx": "ONNX"}))


def test_files_on_top_of_a_job_need_names() -> None:
    with pytest.raises(DefinitionError, match="has_output= needs outputs="):
        defined(App("words"), has_output=True)


@pytest.mark.parametrize(
    "wrong", [{"done": "success"}, {"running": ""}, {"running": 1}, {"running": "a\nb"}, {"running:": "a"}]
)
def test_a_status_that_there_is_not_or_a_word_that_is_none_is_refused(wrong: Any) -> None:
    with pytest.raises(DefinitionError, match="statuses="):
        App("words", statuses=wrong)


@pytest.mark.parametrize("wrong", [{"path": "nobody"}, {"": "split"}])
def test_an_output_of_no_stage_is_refused(wrong: dict[str, str]) -> None:
    with pytest.raises(DefinitionError, match="outputs="):
        defined(App("words"), outputs=wrong)


def test_a_pipeline_declares_limits_of_its_downloads() -> None:
    plan = defined(App("words"), downloads={"per": "key", "per_minute": 20, "bytes_per_hour": "1GB"})

    assert plan.downloads == DownloadLimits("key", per_minute=20, bytes_per_hour=1024**3)
    assert defined(App("words")).downloads is None


def test_whom_downloads_are_counted_for_is_as_the_settings_say_unless_declared() -> None:
    limits = [defined(App("words"), downloads=given).downloads for given in ({"at_once": 1}, {"per": "user"})]

    assert [each.per for each in limits if each is not None] == [None, "user"]
    assert b'"per":"user"' in json.encode(limits[1])


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        ({"per": "tenant"}, 'per can only be "user" or "key"'),
        ({"per_minute": -1}, "per_minute must be a whole number, at least 0"),
        ({"bytes_per_day": "lots"}, "'lots' is not a size"),
        ({"per_hour": 3}, "downloads has no option 'per_hour'; it has per, at_once"),
        (20, "downloads takes a mapping"),
    ],
)
def test_download_limits_that_make_no_sense_are_refused(wrong: Any, text: str) -> None:
    with pytest.raises(DefinitionError, match=text):
        defined(App("words"), downloads=wrong)


@pytest.mark.parametrize("wrong", ["{", "{date}.txt", "", 3, "{0}"])
def test_a_name_of_the_result_that_cannot_be_made_is_refused(wrong: Any) -> None:
    with pytest.raises(DefinitionError, match="result_name"):
        defined(App("words"), result_name=wrong)


@pytest.mark.parametrize(
    "wrong", ["{source.__class__}", "{source[0]}", "{name:>999999999}", "{name!r}", "{name:{suffix}}", "{}", "a}"]
)
def test_a_name_of_the_result_has_only_bare_fields(wrong: str) -> None:
    with pytest.raises(
        DefinitionError, match=r"result_name takes a pattern of \{source\}, \{name\} and \{suffix\}, not"
    ):
        defined(App("words"), result_name=wrong)


def test_a_name_of_the_result_can_have_braces() -> None:
    assert defined(App("words"), result_name="{{{source}}}{suffix}").result_name == "{{{source}}}{suffix}"
