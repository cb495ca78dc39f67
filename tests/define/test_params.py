from __future__ import annotations

import enum
from dataclasses import dataclass, field
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any, Literal, TypedDict

import msgspec
import pytest
from msgspec import Meta, Struct

from packhorse.define import File, Params, Schema
from packhorse.errors import DefinitionError, InvalidInput

BINARY = {"type": "string", "format": "binary"}


class Colour(enum.Enum):
    RED = "red"


class Voice(Struct):
    """A voice."""

    name: str


@dataclass
class Turn:
    speaker: str
    voices: list[Voice] = field(default_factory=list)


class Cat(Struct, tag=True):
    lives: int


class Dog(Struct, tag=True):
    lives: int
    tricks: int = 0


class Home(Params):
    pets: list[Cat | Dog]


class Loose(TypedDict):
    a: int


class Convert(Params):
    """Converts a model."""

    ref_images: list[File] = []  # noqa: RUF012
    model: File
    mask: File | None = None
    platform: Literal["520", "720"] = "520"
    gap: Annotated[int, Meta(ge=0, description="In milliseconds")] = 0
    turns: dict[str, Turn] = {}  # noqa: RUF012
    loose: Loose | None = None
    at: datetime | None = None
    price: Decimal = Decimal("1.10")
    colour: Colour = Colour.RED
    anything: Any = None


SCHEMA = Schema(Convert)

NO_SUCH = (
    "Unknown parameter. Parameters: ref_images, model, mask, platform, gap, turns, loose, at, price, colour and 1 more"
)


@pytest.fixture
def files(tmp_path: Path) -> list[File]:
    for name in "abc":
        (tmp_path / name).write_text(name)
    return [File(tmp_path / name) for name in "abc"]


def mistakes(data: str, schema: Schema = SCHEMA, files: list[File] | None = None) -> list[dict[str, str]]:
    with pytest.raises(InvalidInput) as refused:
        schema.decode(data.encode(), files or [])
    assert all(mistake["message"] in refused.value.message for mistake in refused.value.errors)
    return refused.value.errors


def test_parameters_are_keyword_only_frozen_and_in_any_order() -> None:
    with pytest.raises(TypeError):
        Convert([], File("m"))  # type: ignore[call-arg]
    with pytest.raises(AttributeError):
        Convert(model=File("m")).gap = 3  # type: ignore[misc]


def test_the_schema_has_files_as_binary_strings_and_keeps_descriptions() -> None:
    schema = SCHEMA.json_schema()

    assert (schema["title"], schema["type"], schema["description"]) == ("Convert", "object", "Converts a model.")
    assert schema["required"] == ["model"]
    assert schema["properties"]["model"] == BINARY
    assert schema["properties"]["ref_images"] == {"type": "array", "items": BINARY, "default": []}
    assert schema["properties"]["mask"]["anyOf"] == [BINARY, {"type": "null"}]
    assert schema["properties"]["gap"]["description"] == "In milliseconds"
    assert schema["$defs"]["Voice"]["description"] == "A voice."
    assert "Convert" not in schema["$defs"]


def test_the_schema_admits_no_other_names_anywhere() -> None:
    schema = SCHEMA.json_schema()

    assert schema["additionalProperties"] is False
    assert {name: schema["$defs"][name]["additionalProperties"] for name in ("Turn", "Voice", "Loose")} == {
        "Turn": False,
        "Voice": False,
        "Loose": False,
    }


def test_a_parameter_named_like_a_word_of_json_schema_is_just_a_parameter() -> None:
    class Odd(Params):
        properties: dict[str, int]
        items: int = 1

    schema = Schema(Odd).json_schema()

    assert set(schema["properties"]) == {"properties", "items"}
    assert Schema(Odd).decode(b'{"properties": {"a": 1}}', []) == Odd(properties={"a": 1})


def test_it_knows_which_parameters_are_files() -> None:
    class Many(Params):
        pair: tuple[File, ...] = ()
        maybe: list[File] | None = None
        noted: Annotated[File, "a note"]

    assert SCHEMA.files == {"ref_images": "many", "model": "one", "mask": "one"}
    assert Schema(Many).files == {"pair": "many", "maybe": "many", "noted": "one"}


def test_a_value_survives_json(files: list[File]) -> None:
    a, b, c = files
    value = Convert(
        ref_images=[a, b],
        model=c,
        turns={"x": Turn("ann", [Voice("v")])},
        loose={"a": 1},
        at=datetime(2024, 1, 1, tzinfo=UTC),
        price=Decimal("3.30"),
        anything={"$file": 7},
    )

    data, listed = SCHEMA.encode(value)

    assert listed == [("ref_images", 0, a), ("ref_images", 1, b), ("model", 0, c)]
    assert msgspec.json.decode(data)["model"] == {"$file": 2}
    assert SCHEMA.decode(data, [file for _, _, file in listed]) == value


def test_one_file_may_be_given_twice(files: list[File]) -> None:
    data, listed = SCHEMA.encode(Convert(model=files[0], mask=files[0]))

    assert [(parameter, index) for parameter, index, _ in listed] == [("model", 0), ("mask", 0)]
    assert msgspec.json.decode(data)["mask"] == {"$file": 1}


def test_renamed_fields_are_known_by_their_name_in_json(files: list[File]) -> None:
    class Camel(Params, rename="camel"):
        big_model: File

    schema = Schema(Camel)
    _, listed = schema.encode(Camel(big_model=files[0]))

    assert schema.files == {"bigModel": "one"}
    assert listed == [("bigModel", 0, files[0])]


@pytest.mark.parametrize(
    ("data", "field", "message"),
    [
        ('{"model": {"$file": 0}, "gap": "x"}', "gap", "Expected `int`, got `str`"),
        ('{"model": {"$file": 0}, "gap": -1}', "gap", "Expected `int` >= 0"),
        ('{"model": {"$file": 0}, "platform": "1"}', "platform", "Invalid enum value '1'"),
        ('{"model": {"$file": 0}, "turns": {"x": {"speaker": 1}}}', "turns[...].speaker", "Expected `str`, got `int`"),
        ('{"model": {"$file": 0}, "ref_images": [{"$file": 0}, 5]}', "ref_images[1]", "Expected a file"),
        ('{"model": {"$file": 1}}', "model", "There is no file number 1"),
        ('{"model": "m.onnx"}', "model", "Expected a file"),
        ("{}", "model", "This is required"),
        ('{"model": {"$file": 0}, "loose": {}}', "loose.a", "This is required"),
        ('{"model": {"$file": 0}, "platfrom": 1}', "platfrom", NO_SUCH),
        ("[]", "", "Expected `object`, got `array`"),
        ('{"model"', "", "Input data was truncated"),
    ],
)
def test_a_mistake_names_its_field(data: str, field: str, message: str) -> None:
    assert mistakes(data, files=[File("m")]) == [{"field": field, "message": message}]


def test_bytes_that_are_no_text_and_endless_nesting_are_refused_too() -> None:
    with pytest.raises(InvalidInput):
        SCHEMA.decode(b'{"platform": "\xff"}', [])
    with pytest.raises(InvalidInput, match="nested too deeply"):
        SCHEMA.decode(b'{"anything": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", [])


def test_names_that_no_type_has_are_all_refused_however_deep() -> None:
    data = """{"model": {"$file": 0}, "a": 1, "loose": {"a": 1, "b": 2},
               "turns": {"x": {"speaker": "s", "voices": [{"name": "n"}, {"name": "n", "nmae": "n"}], "volume": 3}}}"""

    found = [mistake["field"] for mistake in mistakes(data, files=[File("m")])]

    assert sorted(found) == ["a", "loose.b", "turns.x.voices[1].nmae", "turns.x.volume"]


def test_however_much_nonsense_is_sent_the_answer_is_short() -> None:
    many = msgspec.json.encode({f"p{n}": n for n in range(10_000)})
    long = msgspec.json.encode({"model": {"$file": 0}, "platform": "x" * 1_000_000})

    assert len(mistakes(long.decode(), files=[File("m")])[0]["message"]) == 300
    with pytest.raises(InvalidInput) as refused:
        SCHEMA.decode(many, [])
    assert len(refused.value.errors) == 50
    assert len(refused.value.message) < 1000


def test_a_tag_says_which_names_are_known() -> None:
    schema = Schema(Home)

    assert mistakes('{"pets": [{"type": "Cat", "lives": 9, "tricks": 1}]}', schema)[0]["field"] == "pets[0].tricks"
    assert schema.decode(b'{"pets": [{"type": "Dog", "lives": 1, "tricks": 1}]}', []) == Home(pets=[Dog(1, 1)])


def test_a_check_of_the_users_own_is_a_mistake_like_others() -> None:
    class Checked(Params):
        low: int
        high: int

        def __post_init__(self) -> None:
            if self.low > self.high:
                raise ValueError("low is above high")

    assert mistakes('{"low": 2, "high": 1}', Schema(Checked)) == [{"field": "", "message": "low is above high"}]


def test_encoding_refuses_what_decoding_would(files: list[File]) -> None:
    with pytest.raises(InvalidInput) as refused:
        SCHEMA.encode(Convert(model=files[0], platform="999"))  # type: ignore[arg-type]
    assert refused.value.errors[0]["field"] == "platform"
    with pytest.raises(InvalidInput, match="Expected Convert, got dict"):
        SCHEMA.encode({"model": files[0]})
    with pytest.raises(InvalidInput, match="complex cannot be a parameter"):
        SCHEMA.encode(Convert(model=files[0], anything=1j))


def test_a_file_where_the_type_says_none_is_refused(files: list[File]) -> None:
    with pytest.raises(InvalidInput, match="only possible where the type says File"):
        SCHEMA.encode(Convert(model=files[0], anything=[files[1]]))


def test_a_file_that_is_not_there_is_refused_by_its_parameter(files: list[File]) -> None:
    with pytest.raises(InvalidInput) as refused:
        SCHEMA.encode(Convert(model=File("nowhere"), ref_images=[files[0], File("nothing")]))

    assert refused.value.errors == [
        {"field": "ref_images[1]", "message": "There is no file nothing"},
        {"field": "model", "message": "There is no file nowhere"},
    ]


def test_a_dataclass_will_do(files: list[File]) -> None:
    @dataclass
    class Speak:
        text: str
        sample: File
        turns: list[Turn] = field(default_factory=list)

    schema = Schema(Speak)
    value = Speak("hi", files[0], [Turn("ann")])
    data, listed = schema.encode(value)

    assert schema.json_schema()["additionalProperties"] is False
    assert schema.decode(data, [file for _, _, file in listed]) == value
    assert mistakes('{"text": "hi", "sample": {"$file": 0}, "txet": 1}', schema, files)[0]["field"] == "txet"


class Holder(Struct):
    file: File


@dataclass
class Nested:
    holders: dict[str, list[Holder]]


@pytest.mark.parametrize(
    "hint", [Holder, Nested, dict[str, File], list[list[File]], tuple[File, File], File | int, set[File]]
)
def test_files_hidden_deeper_are_a_mistake_of_the_definition(hint: Any) -> None:
    params = msgspec.defstruct("Deep", [("deep", hint)])

    with pytest.raises(DefinitionError, match="Deep cannot be the parameters of a job: files must be parameters of"):
        Schema(params)


@pytest.mark.parametrize(
    ("hint", "reason"),
    [(Path, "Path .* use File"), (complex, "complex"), (Voice | Turn, "union"), ("Nowhere", "Nowhere")],
)
def test_a_type_that_json_cannot_carry_is_a_mistake_of_the_definition(hint: Any, reason: str) -> None:
    params = msgspec.defstruct("Bad", [("bad", hint)])

    with pytest.raises(DefinitionError, match=f"Bad cannot be the parameters of a job: .*{reason}"):
        Schema(params)


def test_a_file_cannot_be_a_default() -> None:
    class Bad(Params):
        model: File = File("m.onnx")

    with pytest.raises(DefinitionError, match="a File cannot be a default"):
        Schema(Bad)


@pytest.mark.parametrize("params", [int, dict, Loose, msgspec.defstruct("Row", [("a", int)], array_like=True)])
def test_what_has_no_named_fields_cannot_be_parameters(params: Any) -> None:
    with pytest.raises(DefinitionError, match="cannot be the parameters of a job"):
        Schema(params)


def test_a_type_that_contains_itself_keeps_its_definition() -> None:
    schema = Schema(Tree).json_schema()

    assert schema["properties"]["branches"]["items"] == {"$ref": "#/$defs/Tree"}
    assert schema["$defs"]["Tree"]["additionalProperties"] is False
    assert mistakes('{"branches": [{"branches": [{"laef": 1}]}]}', Schema(Tree)) == [
        {"field": "branches[0].branches[0].laef", "message": "Unknown parameter. Parameters: branches"}
    ]


class Tree(Params):
    branches: list[Tree] = []  # noqa: RUF012
