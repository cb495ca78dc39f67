from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Struct

from packhorse.define import File
from packhorse.define.values import decode_result, element, encode_result
from packhorse.errors import InvalidInput


class Point(NamedTuple):
    x: int
    y: int


@dataclass
class Timing:
    turn: int
    audio: File


class Made(Struct, rename="camel", omit_defaults=True):
    main_file: File
    timings: tuple[Timing, ...] = ()
    at: datetime | None = None
    price: Decimal = Decimal(0)
    point: Point = Point(0, 0)


@pytest.fixture
def files(tmp_path: Path) -> list[File]:
    for name in "abc":
        (tmp_path / name).write_text(name)
    return [File(tmp_path / name) for name in "abc"]


@pytest.mark.parametrize(
    ("value", "hint"),
    [
        (None, None),
        (3, int),
        ("text", str),
        (1.5, float),
        ([1, 2], list[int]),
        ((1, "a"), tuple[int, str]),
        ({1: 2}, dict[int, int]),
        ({"a", "b"}, set[str]),
        (Decimal("1.10"), Decimal),
        (datetime(2024, 1, 1, tzinfo=UTC), datetime),
        (b"bytes", bytes),
        (Point(1, 2), Point),
        (OrderedDict(a=1), Any),
        ({"a": [1, {"b": None}]}, dict[str, object]),
        ([1, "a"], list[object]),
        (2**80, int),
    ],
)
def test_a_value_survives(value: object, hint: Any) -> None:
    data, files = encode_result(value)

    assert decode_result(data, hint, files) == value


def test_files_anywhere_become_numbers(files: list[File]) -> None:
    a, b, c = files
    value = {"made": Made(a, (Timing(0, b),), price=Decimal("1.1"), point=Point(1, 2)), "more": [c, None]}

    data, listed = encode_result(value)

    assert listed == [a, b, c]
    assert msgspec.json.decode(data)["made"]["mainFile"] == {"$file": 0}
    assert decode_result(data, dict[str, Any], listed)["more"] == [c, None]
    assert decode_result(data, dict[str, Made | list[Any]], listed) == value


def test_a_file_alone_is_a_result(files: list[File]) -> None:
    data, listed = encode_result(files[0])

    assert (data, listed) == (b'{"$file":0}', [files[0]])
    assert decode_result(data, File, listed) == files[0]


def test_for_those_who_only_show_a_result_the_files_may_be_anything(files: list[File]) -> None:
    data, _ = encode_result({"audio": files[0]})

    assert decode_result(data, Any, ["/artifacts/say/a.wav"]) == {"audio": "/artifacts/say/a.wav"}


@pytest.mark.parametrize("value", [{"$file": 0}, {"$$file": [{"$file": {"$file": 1}}]}, {"$file": 1, "$$file": 2}])
def test_a_mapping_that_looks_like_a_reference_survives(value: Any, files: list[File]) -> None:
    data, listed = encode_result([value, files[0]])

    assert decode_result(data, Any, listed) == [value, files[0]]
    assert decode_result(data, list[Any], listed) == [value, files[0]]
    assert decode_result(element(data, listed, 0)[0], Any, []) == value


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["$file", "$$file", "file", "$", "$file "]) | st.text(), inner, max_size=3)
    ),
)


@given(JSON)
def test_any_json_survives(value: object) -> None:
    data, files = encode_result(value)

    assert files == []
    assert decode_result(data, Any, files) == value


def test_an_element_of_a_list_keeps_only_its_own_files(files: list[File]) -> None:
    a, b, c = files
    data, listed = encode_result([[a], {"x": b, "y": [c, 1.5]}, 3])

    assert element(data, listed, 1) == (b'{"x":{"$file":0},"y":[{"$file":1},1.5]}', [b, c])
    assert element(data, listed, 2) == (b"3", [])


def test_what_is_not_a_number_becomes_null() -> None:
    assert encode_result([float("nan"), float("inf")])[0] == b"[null,null]"


def cyclic() -> list[Any]:
    found: list[Any] = []
    found.append(found)
    return found


@pytest.mark.parametrize(
    ("value", "sentence"),
    [
        (
            object(),
            "Stage 'a' returned a value of type object that cannot be stored: object is neither JSON nor a File",
        ),
        ([1j], "Stage 'a' returned a value of type list that cannot be stored: complex is neither JSON nor a File"),
        ({"x": Path("y")}, r"returned a value of type dict that cannot be stored: .* return File\(path\)"),
        ({(1, 2): 3}, "cannot be stored"),
        ("\ud800", "cannot be stored"),
        (cyclic(), "cannot be stored"),
        (Timing(1, File("nowhere")), "Stage 'a' returned a File that does not exist: nowhere"),
    ],
)
def test_what_cannot_be_kept_is_refused_in_a_sentence(value: object, sentence: str) -> None:
    with pytest.raises(InvalidInput, match=sentence):
        encode_result(value, "Stage 'a'")


@pytest.mark.parametrize(
    ("data", "hint", "field"),
    [
        (b'{"a": ["x"]}', dict[str, list[int]], "[...][0]"),
        (b'{"turn": 1, "audio": 7}', Timing, "audio"),
        (b'{"$file": 3}', File, ""),
        (b'{"$file": -1}', Any, ""),
        (b'{"$file": 0, "x": 1}', Any, ""),
        (b"{", Any, ""),
    ],
)
def test_what_does_not_fit_its_type_is_refused_with_its_field(data: bytes, hint: Any, field: str) -> None:
    with pytest.raises(InvalidInput, match="The result of onnx does not match its type") as refused:
        decode_result(data, hint, ["a"], "The result of onnx")

    assert [mistake["field"] for mistake in refused.value.errors] == [field]
