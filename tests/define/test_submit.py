from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from packhorse.define import Options, Params, Pipeline
from packhorse.errors import DefinitionError, InvalidInput
from tests.define.recorder import Recorder


class Convert(Params):
    platform: str = "520"


@pytest.fixture
def convert() -> Pipeline[Convert]:
    pipeline = Pipeline("convert", Convert)
    pipeline.submitter = Recorder()
    return pipeline


async def test_a_submit_reaches_the_app_with_what_was_asked_for(convert: Pipeline[Convert]) -> None:
    recorder = convert.submitter = Recorder()

    handle: object = convert.submit(Convert(), user="ann", priority=3, delay="5m", key="k", metadata={"a": [1]})
    await convert.a_submit(Convert(platform="720"))

    assert handle == "handle"
    assert recorder.calls == [
        (convert, Convert(), Options(user="ann", priority=3, delay=300, key="k", metadata={"a": [1]})),
        (convert, Convert(platform="720"), Options()),
    ]


async def test_options_of_one_job_win_over_those_of_all(convert: Pipeline[Convert]) -> None:
    recorder = convert.submitter = Recorder()

    convert.submit_many([Convert(), (Convert(platform="720"), {"user": "ben", "key": "k"})], user="ann", priority=3)
    await convert.a_submit_many(iter([Convert()]))

    assert recorder.calls == [
        (convert, Convert(), Options(user="ann", priority=3)),
        (convert, Convert(platform="720"), Options(user="ben", priority=3, key="k")),
        (convert, Convert(), Options()),
    ]


def test_one_key_for_many_jobs_and_an_unknown_option_submit_nothing(convert: Pipeline[Convert]) -> None:
    recorder = convert.submitter = Recorder()
    wrong: Any = {"colour": "red"}

    with pytest.raises(InvalidInput, match="key of its own"):
        convert.submit_many([Convert()], key="k")
    with pytest.raises(TypeError, match="colour"):
        convert.submit_many([Convert(), (Convert(), wrong)])

    assert recorder.calls == []


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("user", ""),
        ("user", 3),
        ("user", "ann\nINFO forged"),
        ("user", "ann\x1b[2J"),
        ("user", "ann\u202e"),
        ("user", "x" * 256),
        ("priority", "high"),
        ("priority", True),
        ("priority", 1001),
        ("delay", "soon"),
        ("delay", -1),
        ("at", datetime(2026, 1, 31)),
        ("at", "2026-01-31T12:00:00Z"),
        ("key", ""),
        ("metadata", {"a": object()}),
        ("user", "a\0b"),
        ("key", "a\0b"),
    ],
)
def test_an_option_that_makes_no_sense_is_refused_by_name(convert: Pipeline[Convert], option: str, value: Any) -> None:
    with pytest.raises(InvalidInput) as refused:
        convert.submit(Convert(), **{option: value})

    assert [mistake["field"] for mistake in refused.value.errors] == [option]


@pytest.mark.parametrize(
    "options", [{}, {"key": "k", "delay": 1}, {"key": "k", "at": datetime(2026, 1, 31, tzinfo=UTC)}]
)
def test_debounce_takes_a_key_and_nothing_else(convert: Pipeline[Convert], options: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput) as refused:
        convert.submit(Convert(), debounce="10s", **options)

    assert [mistake["field"] for mistake in refused.value.errors] == ["debounce"]


def test_at_and_delay_together_are_refused(convert: Pipeline[Convert]) -> None:
    with pytest.raises(InvalidInput, match="either at or delay"):
        convert.submit(Convert(), at=datetime(2026, 1, 31, tzinfo=UTC), delay=1)


@pytest.mark.parametrize(
    ("metadata", "field"),
    [
        ({"a": "\0"}, "metadata.a"),
        ({"a": [{"b": "x\0"}]}, "metadata.a[0].b"),
        ({"a\0": 1}, "metadata.a\\0"),
    ],
)
def test_a_nul_in_the_metadata_is_refused_by_place(
    convert: Pipeline[Convert], metadata: dict[str, object], field: str
) -> None:
    with pytest.raises(InvalidInput, match="NUL") as refused:
        convert.submit(Convert(), metadata=metadata)

    assert [mistake["field"] for mistake in refused.value.errors] == [field]


def test_what_is_wrong_with_an_option_names_it_once(convert: Pipeline[Convert]) -> None:
    with pytest.raises(InvalidInput) as refused:
        convert.submit(Convert(), priority=5000)

    assert refused.value.message == "priority: it must be a whole number, from -1000 to 1000, not 5000."
    assert refused.value.errors[0]["message"] == "it must be a whole number, from -1000 to 1000, not 5000"


def test_a_pipeline_of_no_app_has_nowhere_to_submit_to() -> None:
    with pytest.raises(DefinitionError, match=r"belongs to no app.*test_submit.py:\d+$"):
        Pipeline("convert", Convert).submit(Convert())


def test_an_option_there_is_not_is_answered_with_those_there_are(convert: Pipeline[Convert]) -> None:
    wrong: dict[str, Any] = {"wat": 1}

    with pytest.raises(
        TypeError, match=r"^submit has no option 'wat'; it has user, priority, delay, at, debounce, key, metadata$"
    ):
        convert.submit(Convert(), **wrong)


def test_a_long_user_is_not_said_back_whole(convert: Pipeline[Convert]) -> None:
    with pytest.raises(InvalidInput) as refused:
        convert.submit(Convert(), user="x" * 5000)

    assert refused.value.message.endswith(f"not '{'x' * 79}….")
