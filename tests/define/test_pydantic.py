"""Pydantic models in the places where a Params class or a dataclass may be."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest
from pydantic import BaseModel, ConfigDict, Field, ValidationError, computed_field, field_validator

from packhorse.define import File, Params, Schema
from packhorse.define.values import decode_result, encode_result
from packhorse.errors import DefinitionError, InvalidInput

BINARY = {"type": "string", "format": "binary"}


class Turn(BaseModel):
    speaker: str
    gap: int = Field(default=0, ge=0, description="In milliseconds")

    @field_validator("speaker")
    @classmethod
    def _known(cls, value: str) -> str:
        if value == "nobody":
            raise ValueError("nobody cannot speak")
        return value


class Speak(BaseModel):
    """Speaks."""

    turns: list[Turn]
    sample: File | None = Field(None, alias="voiceSample")
    more: list[File] = []
    at: datetime | None = None

    @computed_field  # type: ignore[prop-decorator]
    @property
    def count(self) -> int:
        return len(self.turns)


SCHEMA = Schema(Speak)


@pytest.fixture
def files(tmp_path: Path) -> list[File]:
    for name in "ab":
        (tmp_path / name).write_text(name)
    return [File(tmp_path / name) for name in "ab"]


def mistakes(data: str, schema: Schema = SCHEMA) -> dict[str, str]:
    with pytest.raises(InvalidInput) as refused:
        schema.decode(data.encode(), [])
    return {mistake["field"]: mistake["message"] for mistake in refused.value.errors}


def test_the_schema_is_pydantics_with_files_and_no_other_names() -> None:
    schema = SCHEMA.json_schema()

    assert schema["description"] == "Speaks."
    assert schema["additionalProperties"] is False
    assert schema["$defs"]["Turn"]["additionalProperties"] is False
    assert schema["$defs"]["Turn"]["properties"]["gap"]["description"] == "In milliseconds"
    assert schema["properties"]["voiceSample"]["anyOf"][0] == BINARY
    assert schema["properties"]["more"]["items"] == BINARY
    assert SCHEMA.files == {"voiceSample": "one", "more": "many"}


def test_a_model_survives_json(files: list[File]) -> None:
    value = Speak(turns=[Turn(speaker="ann")], voiceSample=files[0], more=[files[1]], at=datetime.now(UTC))

    data, listed = SCHEMA.encode(value)

    assert listed == [("voiceSample", 0, files[0]), ("more", 0, files[1])]
    assert msgspec.json.decode(data)["voiceSample"] == {"$file": 0}
    assert SCHEMA.decode(data, files) == value


def test_all_mistakes_are_told_with_their_fields() -> None:
    found = mistakes('{"turns": [{"speaker": "nobody"}, {"gap": -1}], "voiceSample": {"$file": 3}}')

    assert found == {
        "turns[0].speaker": "Value error, nobody cannot speak",
        "turns[1].speaker": "Field required",
        "turns[1].gap": "Input should be greater than or equal to 0",
        "voiceSample": "Value error, There is no file number 3",
    }


def test_names_the_model_does_not_have_are_refused_unless_it_allows_them() -> None:
    class Open(BaseModel):
        model_config = ConfigDict(extra="allow")

    assert set(mistakes('{"turns": [{"speaker": "a", "volume": 1}], "x": 1}')) == {"turns[0].volume", "x"}
    assert Schema(Open).decode(b'{"x": 1}', []) == Open(x=1)  # type: ignore[call-arg]


def test_a_strict_model_stays_strict_about_what_clients_send() -> None:
    class Strict(BaseModel):
        model_config = ConfigDict(strict=True)
        n: int
        at: datetime

    schema = Schema(Strict)

    assert set(mistakes('{"n": "1", "at": "2024-01-01T00:00:00Z"}', schema)) == {"n"}
    assert schema.decode(b'{"n": 1, "at": "2024-01-01T00:00:00Z"}', []) == Strict(
        n=1, at=datetime(2024, 1, 1, 0, 0, tzinfo=UTC)
    )


class Mixed(Params):
    turn: Turn
    note: str = ""


def test_a_model_may_be_a_parameter_among_others() -> None:
    schema = Schema(Mixed)
    value = Mixed(turn=Turn(speaker="ann"))

    assert schema.decode(schema.encode(value)[0], []) == value
    assert mistakes('{"turn": {"gap": -1}}', schema) == {
        "turn.speaker": "Field required",
        "turn.gap": "Input should be greater than or equal to 0",
    }
    assert set(mistakes('{"turn": {"speaker": "ann", "volume": 1}}', schema)) == {"turn.volume"}


def test_files_hidden_in_a_model_are_a_mistake_of_the_definition() -> None:
    class Inner(BaseModel):
        file: File

    class Outer(BaseModel):
        inner: list[Inner]

    with pytest.raises(DefinitionError, match="files must be parameters of their own"):
        Schema(Outer)


def test_outside_packhorse_a_model_takes_files_and_nothing_else() -> None:
    assert Speak(turns=[], voiceSample=File("a")).sample == File("a")

    with pytest.raises(ValidationError, match="Expected a file"):
        Speak(turns=[], voiceSample="a")  # type: ignore[arg-type]


class Made(BaseModel):
    model_config = ConfigDict(strict=True)
    audio: File
    others: dict[str, Any]
    at: datetime


def test_a_model_may_be_a_result_with_files_anywhere_in_it(files: list[File]) -> None:
    value = {"made": [Made(audio=files[0], others={"x": files[1], "$file": 1}, at=datetime.now(UTC))]}

    data, listed = encode_result(value)

    assert listed == files
    assert decode_result(data, dict[str, list[Made]], files) == value
