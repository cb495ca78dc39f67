"""What workers have published, and the rules of each pipeline's parameters."""

from __future__ import annotations

from typing import Any, Literal

import msgspec
import pydantic
import pytest

from packhorse import App, File, Params
from packhorse.core import json
from packhorse.core.plan import Definition
from packhorse.core.records import Record
from packhorse.define.pipelines import Pipeline
from packhorse.errors import InvalidInput, UnknownPipeline
from packhorse.jobs import catalog as catalogs
from packhorse.jobs.catalog import Catalog, Published


class Turn(msgspec.Struct):
    speaker: str
    text: str = ""


class Speak(Params):
    turns: list[Turn]
    voice: str | None = None
    mode: Literal["a", "b"] = "a"
    speed: float = 1.0
    count: Literal[1, 2] = 1
    anything: Any = None
    sample: File | None = None
    more: tuple[File, ...] = ()


def definition(params: type[Any] = Speak, name: str = "speak", description: str = "") -> Definition:
    pipeline: Pipeline[Any] = App("test").pipeline(name, params, description=description)

    @pipeline.stage
    def only(ctx: Any, p: Any) -> None: ...

    return pipeline.definition("test")


class Registry:
    def __init__(self, *found: Definition) -> None:
        self.found = list(found)
        self.asked = 0

    async def scan(self, kind: str, *_: Any, **__: Any) -> list[Record]:
        self.asked += 1
        return [Record(kind, each.pipeline, json.encode(each)) for each in self.found]


def catalog(registry: Registry) -> Catalog:
    return Catalog(registry)  # type: ignore[arg-type]


def fields(published: Published, values: dict[str, Any]) -> set[str]:
    return {mistake["field"] for mistake in published.find_errors(values)}


async def test_a_definition_that_has_changed_brings_its_new_rules(monkeypatch: pytest.MonkeyPatch) -> None:
    class Older(Params):
        speed: float = 1.0

    class Newer(Params):
        voice: str

    monkeypatch.setattr(catalogs, "FRESH", 0.0)
    registry = Registry(definition(Older))
    published = catalog(registry)
    before = await published.get("speak")

    registry.found = [definition(Newer)]
    after = await published.get("speak")

    assert (fields(before, {"speed": "fast"}), fields(before, {"voice": "x"})) == ({"speed"}, {"voice"})
    assert (after.names, fields(after, {"speed": 2.0}), fields(after, {"voice": "x"})) == (
        ["voice"],
        {"speed", "voice"},
        set(),
    )


def test_files_are_found_by_their_schema() -> None:
    assert Published(definition()).files == {"sample": "one", "more": "many"}


def test_files_of_a_pydantic_model_are_found() -> None:
    class Model(pydantic.BaseModel):
        one: File
        maybe: File | None = None
        many: list[File] = []
        text: str = ""

    assert Published(definition(Model)).files == {"one": "one", "maybe": "one", "many": "many"}


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("voice", "7", "7"),
        ("voice", "null", "null"),
        ("mode", "b", "b"),
        ("speed", "1.5", 1.5),
        ("count", "2", 2),
        ("turns", '[{"speaker": "x"}]', [{"speaker": "x"}]),
        ("anything", '{"a": 1}', {"a": 1}),
        ("speed", "fast", "fast"),  # left to the schema, which says what was expected
        ("anything", "x", "x"),
    ],
)
def test_a_part_is_text_where_text_may_stand_else_json(name: str, text: str, value: Any) -> None:
    assert Published(definition()).read(name, [text]) == value


class Lists(Params):
    tags: list[str] = []  # noqa: RUF012
    sizes: list[int] = []  # noqa: RUF012
    turns: list[Turn] = []  # noqa: RUF012
    either: list[int] | str = ""
    maybe: list[str] | None = None
    pair: tuple[str, int] = ("", 0)
    one: str = ""


@pytest.mark.parametrize(
    ("name", "texts", "value"),
    [
        ("tags", ["a", "5"], ["a", "5"]),
        ("tags", ["a"], ["a"]),
        ("tags", ["5"], ["5"]),
        ("tags", [""], [""]),
        ("tags", ["null"], ["null"]),
        ("tags", ['["a", "b"]'], ["a", "b"]),
        ("tags", ["[]"], []),
        ("tags", ["[draft"], ["[draft"]),
        ("tags", ["[a]", "[b]"], ["[a]", "[b]"]),
        ("tags", ["[" * 500 + "]" * 500], "[" * 500 + "]" * 500),
        ("sizes", ["1", "2"], [1, 2]),
        ("sizes", ["1"], [1]),
        ("sizes", ["[1, 2]"], [1, 2]),
        ("sizes", ["many"], ["many"]),
        ("turns", ['{"speaker": "x"}'], [{"speaker": "x"}]),
        ("turns", ['{"speaker": "x"}', '{"speaker": "y"}'], [{"speaker": "x"}, {"speaker": "y"}]),
        ("either", ["[1]"], "[1]"),
        ("either", ["1", "2"], [1, 2]),
        ("maybe", ["null"], None),
        ("maybe", ["a"], ["a"]),
        ("pair", ["1", "2"], ["1", 2]),
    ],
)
def test_several_parts_of_a_list_are_its_elements(name: str, texts: list[str], value: Any) -> None:
    published = Published(definition(Lists))

    assert published.is_list(name)
    assert published.read(name, texts) == value


def test_only_a_list_may_be_given_several_times() -> None:
    assert not Published(definition(Lists)).is_list("one")
    assert not Published(definition(Lists)).is_list("nope")


def test_a_name_there_is_not_is_answered_with_those_there_are() -> None:
    published = Published(definition(Lists))

    [top] = published.find_errors({"tgas": []})
    [inner] = published.find_errors({"turns": [{"speaker": "a", "txt": ""}]})

    assert top["message"].endswith("Parameters: tags, sizes, turns, either, maybe, pair, one")
    assert inner["field"] == "turns[0].txt"
    assert inner["message"].endswith("Parameters: speaker, text")


def test_mistakes_are_named_where_they_are() -> None:
    published = Published(definition())

    assert fields(published, {}) == {"turns"}
    assert fields(published, {"turns": [{"speaker": "a"}, {"text": 7}]}) == {"turns[1].speaker", "turns[1].text"}
    assert fields(published, {"turns": [{"speaker": "a", "x": 1}]}) == {"turns[0].x"}
    assert fields(published, {"turns": [], "mode": "c", "speed": "x", "zz": 1}) == {"mode", "speed", "zz"}
    assert fields(published, {"turns": [], "sample": "a.wav", "more": ["b.wav"]}) == set()


def test_a_time_is_what_python_takes_for_one() -> None:
    class Model(pydantic.BaseModel):
        moment: pydantic.AwareDatetime | pydantic.NaiveDatetime

    published = Published(definition(Model))

    assert fields(published, {"moment": "2026-01-01T00:00:00"}) == set()
    assert fields(published, {"moment": "2026-01-01T00:00:00+02:00"}) == set()
    assert fields(published, {"moment": "yesterday"}) == {"moment"}


async def test_without_a_name_it_is_the_only_pipeline() -> None:
    assert (await catalog(Registry(definition())).get(None)).plan.pipeline == "speak"
    with pytest.raises(InvalidInput, match="other, speak"):
        await catalog(Registry(definition(), definition(name="other"))).get(None)
    with pytest.raises(InvalidInput, match="No pipeline"):
        await catalog(Registry()).get(None)


async def test_a_pipeline_that_is_new_is_found_at_once() -> None:
    registry = Registry(definition())
    found = catalog(registry)
    await found.get("speak")
    with pytest.raises(UnknownPipeline):
        await found.get("new")

    registry.found.append(definition(name="new"))

    assert (await found.get("new")).plan.pipeline == "new"


async def test_what_is_known_is_not_asked_for_again_and_again() -> None:
    registry = Registry(definition())
    found = catalog(registry)

    first = [await found.get("speak") for _ in range(10)]

    assert registry.asked == 1
    assert len({id(each) for each in first}) == 1


async def test_a_pipeline_that_was_changed_is_read_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("packhorse.jobs.catalog.FRESH", 0.0)
    registry = Registry(definition(description="old"))
    found = catalog(registry)
    first = await found.get("speak")
    same = await found.get("speak")

    registry.found[0] = definition(description="new")

    assert same is first
    assert (await found.get("speak")).definition.description == "new"
