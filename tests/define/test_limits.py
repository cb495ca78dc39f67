"""Limits and fairness of pipelines, stages and jobs: what the plan says of them, and what is refused."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

from packhorse.core import json
from packhorse.core.limits import Fair
from packhorse.core.plan import Plan, StagePlan
from packhorse.define import Context, File, JobDecorator, Limit, Params, Pipeline, Secret
from packhorse.errors import DefinitionError


class Album(Params):
    photos: File
    site: str = "oslo"
    key: Secret | None = None


def stages(pipeline: Pipeline[Any]) -> tuple[StagePlan, ...]:
    return pipeline.plan().stages


def names(stage: StagePlan) -> list[tuple[str, str, int, float]]:
    return [(limit.name, limit.by, limit.most, limit.window) for limit in stage.limits]


def test_a_limit_of_a_pipeline_is_one_of_all_its_stages() -> None:
    album = Pipeline("album", Album, limits=[Limit("tenant", at_once=20), Limit("user", at_once=2)])

    @album.stage
    def measure(ctx: Context, p: Album) -> None: ...

    @album.stage(limits=[Limit("user", per_minute=30), Limit("name:whisper-gpu", at_once=1)])
    def render(ctx: Context, p: Album) -> None: ...

    first, second = stages(album)
    assert names(first) == [("album.user", "user", 2, 0.0), ("album.tenant", "tenant", 20, 0.0)]
    assert names(second) == [
        ("album.user", "user", 2, 0.0),
        ("album.render.user.per_minute", "user", 30, 60.0),
        ("album.tenant", "tenant", 20, 0.0),
        ("whisper-gpu", "", 1, 0.0),
    ]


def test_a_limit_may_have_several_numbers() -> None:
    album = Pipeline("album", Album, limits=[Limit("params.site", at_once=2, per_second=1, per_hour=100)])

    @album.stage
    def fetch(ctx: Context, p: Album) -> None: ...

    [stage] = stages(album)
    assert names(stage) == [
        ("album.params.site", "params.site", 2, 0.0),
        ("album.params.site.per_second", "params.site", 1, 1.0),
        ("album.params.site.per_hour", "params.site", 100, 3600.0),
    ]
    assert [limit.default for limit in stage.limits] == ["oslo"] * 3


def test_a_job_has_the_limits_of_its_pipeline() -> None:
    found: list[Pipeline[Any]] = []

    @JobDecorator(found.append)(limits=[Limit("params.site", per_minute=3)], fair="tenant")
    def fetch(site: str) -> None: ...

    [stage] = stages(found[0])
    assert names(stage) == [("fetch.params.site.per_minute", "params.site", 3, 60.0)]
    assert stage.fair == Fair("tenant")


def test_a_stage_says_itself_whose_turns_it_takes() -> None:
    album = Pipeline("album", Album, fair="tenant", weights={"acme": 3}, aging="10m")

    @album.stage
    def measure(ctx: Context, p: Album) -> None: ...

    @album.stage(fair="user")
    def render(ctx: Context, p: Album) -> None: ...

    assert [stage.fair for stage in stages(album)] == [Fair("tenant", {"acme": 3.0}, 600.0), Fair("user")]


def test_aging_needs_no_fairness() -> None:
    album = Pipeline("album", Album, aging="1h")

    @album.stage
    def measure(ctx: Context, p: Album) -> None: ...

    assert stages(album)[0].fair == Fair("", {}, 3600.0)


def test_a_plan_without_them_is_stored_as_it_was() -> None:
    plain = Pipeline("album", Album)

    @plain.stage
    def measure(ctx: Context, p: Album) -> None: ...

    assert b"limits" not in json.encode(plain.plan())
    assert b"fair" not in json.encode(plain.plan())


def test_a_plan_survives_in_the_store() -> None:
    album = Pipeline("album", Album, limits=[Limit("params.site", at_once=2)], fair="user", weights={"ann": 2})

    @album.stage
    def measure(ctx: Context, p: Album) -> None: ...

    assert json.decode(json.encode(album.plan()), Plan) == album.plan()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"limits": [Limit("user", at_once=0)]}, r"Limit\('user'\): at_once must be a whole number, from 1 to 1000000"),
        ({"limits": [Limit("user", per_minute=True)]}, "per_minute must be a whole number"),
        ({"limits": [Limit("user", at_once=1.5)]}, "at_once must be a whole number"),  # type: ignore[arg-type]
        ({"limits": [Limit("user")]}, r"Limit\('user'\) needs a number: at_once, per_second, per_minute, per_hour"),
        ({"limits": [Limit("users", at_once=1)]}, "a limit goes by .*, not 'users'"),
        ({"limits": [Limit("params.", at_once=1)]}, "a limit goes by"),
        ({"limits": [Limit("name:", at_once=1)]}, "'' is not a valid name"),
        ({"limits": [Limit("name:a.b", at_once=1)]}, "'a.b' is not a valid name"),
        (
            {"limits": [Limit("name:per_hour", at_once=1)]},
            "names that end in per_second, per_minute",
        ),
        ({"limits": [Limit("params.sight", at_once=1)]}, "names the parameter 'sight'; there is photos, site, key"),
        ({"limits": [Limit("params.photos", at_once=1)]}, "'photos', which is a file or secret"),
        ({"limits": [Limit("params.key", at_once=1)]}, "'key', which is a file or secret"),
        ({"limits": Limit("user", at_once=1)}, r"limits takes a list such as"),
        ({"limits": ["user"]}, r"limits takes a list such as"),
        ({"fair": "group"}, 'fair can only be "user" or "tenant", not \'group\''),
        ({"weights": {"acme": 2}}, "weights= needs fair="),
        ({"fair": "user", "weights": {"ann": 0}}, "weights: ann must be more than 0"),
        ({"fair": "user", "weights": ["ann"]}, "weights takes a mapping"),
        ({"aging": 0}, "aging must be more than 0"),
        ({"aging": "soon"}, "'soon' is not a duration"),
    ],
)
def test_what_cannot_be_kept_is_refused_with_file_and_line(options: dict[str, Any], message: str) -> None:
    line = inspect.getsourcelines(test_what_cannot_be_kept_is_refused_with_file_and_line)[1]

    with pytest.raises(DefinitionError, match=message) as refused:
        Pipeline("album", Album, **options)
    _check_place(refused.value, line)

    album = Pipeline("album", Album)
    with pytest.raises(DefinitionError, match=message) as refused:

        @album.stage(**options)  # type: ignore[untyped-decorator] # mypy does not know which options these are
        def measure(ctx: Context, p: Album) -> None: ...

    _check_place(refused.value, line)


def _check_place(error: DefinitionError, line: int) -> None:
    file, _, number = str(error.facts["place"]).rpartition(":")
    assert file.endswith("tests/define/test_limits.py")
    assert line < int(number) < line + 60


def test_two_limits_of_one_name_are_refused_where_the_second_is() -> None:
    album = Pipeline("album", Album, limits=[Limit("name:gpu", at_once=1)])

    with pytest.raises(DefinitionError, match="Stage 'render' of 'album' has two limits named 'gpu'"):

        @album.stage(limits=[Limit("name:gpu", at_once=2)])
        def render(ctx: Context, p: Album) -> None: ...
