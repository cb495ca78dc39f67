"""`name=value` words become what the pipeline's schema says they are."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import pytest
from cyclopts import CycloptsError

from packhorse import File, Params
from packhorse.cli.commands.submit import MOST, group_words, parameters_from
from packhorse.define import Schema
from packhorse.errors import InvalidInput


class Inner(Params):
    x: int


class Everything(Params):
    text: str = ""
    number: int = 0
    share: float = 0
    is_fast: bool = False
    maybe: int | None = None
    maybe_text: str | None = None
    platform: Literal["520", "720"] = "520"
    level: Literal[1, 2] = 1
    tags: list[str] = []  # noqa: RUF012
    sizes: list[int] = []  # noqa: RUF012
    inner: Inner | None = None
    inners: list[Inner] = []  # noqa: RUF012
    free: Any = None
    model: File | None = None
    images: list[File] = []  # noqa: RUF012


SCHEMA = Schema(Everything).json_schema()


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (["text=12"], {"text": "12"}),
        (["text=a=b"], {"text": "a=b"}),
        (["text=@@ann"], {"text": "@ann"}),
        (["text=a@b"], {"text": "a@b"}),
        (["text="], {"text": ""}),
        (["number=12"], {"number": 12}),
        (["number=-1"], {"number": -1}),
        (["share=0.5"], {"share": 0.5}),
        (["is_fast=true"], {"is_fast": True}),
        (["is_fast=False"], {"is_fast": False}),
        (["maybe=null"], {"maybe": None}),
        (["maybe=3"], {"maybe": 3}),
        (["maybe_text=null"], {"maybe_text": "null"}),
        (["platform=720"], {"platform": "720"}),
        (["level=2"], {"level": 2}),
        (["tags=a"], {"tags": ["a"]}),
        (["tags=1", "tags=2"], {"tags": ["1", "2"]}),
        (['tags=["a","b"]'], {"tags": ["a", "b"]}),
        (["tags=[]"], {"tags": []}),
        (["tags=[draft"], {"tags": ["[draft"]}),
        (["sizes=1", "sizes=2"], {"sizes": [1, 2]}),
        (['inner={"x":1}'], {"inner": {"x": 1}}),
        (['inners={"x":1}', 'inners={"x":2}'], {"inners": [{"x": 1}, {"x": 2}]}),
        (["free=text"], {"free": "text"}),
        (["unknown=1"], {"unknown": "1"}),
        (["number=many"], {"number": "many"}),
    ],
)
def test_a_value_is_what_the_schema_says(words: list[str], found: dict[str, Any]) -> None:
    assert parameters_from(group_words(words), SCHEMA) == (found, {})


def test_a_file_is_named_by_its_path() -> None:
    words = ["model=@m.onnx", "images=@a.png", "images=@b.png"]

    values, files = parameters_from(group_words(words), SCHEMA)

    assert values == {}
    assert files == {"model": Path("m.onnx"), "images": [Path("a.png"), Path("b.png")]}


def test_a_file_may_be_named_without_the_sign() -> None:
    words = ["model=m.onnx", "images=a.png", "images=@b.png"]

    assert parameters_from(group_words(words), SCHEMA)[1] == {
        "model": Path("m.onnx"),
        "images": [Path("a.png"), Path("b.png")],
    }


def test_for_any_other_parameter_a_file_is_what_it_says(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("first\n")
    (tmp_path / "b.json").write_text('{"x": 1}')
    (tmp_path / "c.json").write_text('["a", "b"]')
    named = {"text": "a.txt", "inner": "b.json", "inners": "b.json", "tags": "c.json", "free": "a.txt"}

    values, files = parameters_from({name: [f"@{tmp_path / file}"] for name, file in named.items()}, SCHEMA)

    assert files == {}
    assert values == {
        "text": "first\n",
        "inner": {"x": 1},
        "inners": [{"x": 1}],
        "tags": ["a", "b"],
        "free": "first\n",
    }


def test_a_file_that_says_nothing_is_refused(tmp_path: Path) -> None:
    (tmp_path / "bytes").write_bytes(b"\xff")
    with (tmp_path / "film").open("wb") as film:
        film.truncate(MOST + 1)

    for name, reason in (
        (
            "bytes",
            r"text takes a text, but .*bytes is not a text file. Parameters that take a file: model \(file\), images",
        ),
        ("film", "too large"),
        ("", "text: .* cannot be read: Is a directory"),
    ):
        with pytest.raises(InvalidInput, match=reason):
            parameters_from({"text": [f"@{tmp_path / name}"]}, SCHEMA)
    with pytest.raises(InvalidInput, match=r"There is no file ann\. To send the text itself, write text=@@ann"):
        parameters_from({"text": ["@ann"]}, SCHEMA)


def test_a_mistyped_file_parameter_is_named_with_those_that_take_files(tmp_path: Path) -> None:
    (tmp_path / "good.zip").write_bytes(b"PK\x03\x04\xff")
    kinds = {"type": "array", "items": {"type": "string", "format": "binary", "x-accept": [".zip", "image/*"]}}
    schema = {"properties": {"images": kinds, "size": {"type": "integer"}}, "additionalProperties": False}

    with pytest.raises(InvalidInput) as refused:
        parameters_from({"image": [f"@{tmp_path / 'good.zip'}"]}, schema)

    assert refused.value.message == "There is no parameter 'image'. Parameters: images (file: .zip or image/*), size."
    assert refused.value.errors[0]["field"] == "image"


def test_one_file_for_a_list_is_a_list_of_one() -> None:
    assert parameters_from(group_words(["images=@a.png"]), SCHEMA)[1] == {"images": [Path("a.png")]}


def test_a_second_value_for_what_takes_one_is_refused() -> None:
    with pytest.raises(InvalidInput, match="number takes one value, but was given 2 times"):
        parameters_from(group_words(["number=1", "number=2"]), SCHEMA)


@pytest.mark.parametrize("word", ["text", "=1", ""])
def test_a_word_without_a_name_is_a_mistake_in_usage(word: str) -> None:
    with pytest.raises(CycloptsError, match="is not NAME=VALUE"):
        group_words([word])
