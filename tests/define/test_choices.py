from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Annotated, Any

import msgspec
import pytest
from pydantic import BaseModel

from packhorse import App, Choices
from packhorse.core import json
from packhorse.core.plan import Definition
from packhorse.define import Params, Schema
from packhorse.errors import DefinitionError, InvalidInput

asked: list[str] = []


def voices() -> list[str]:
    asked.append("voices")
    return ["amy", "bob"]


class Speak(Params):
    text: str
    voice: Annotated[str, Choices(voices)] = "nobody"
    second: Annotated[str, Choices(voices)] | None = None
    chorus: list[Annotated[str, Choices(voices)]] = []  # noqa: RUF012 (msgspec copies it)


class Model(BaseModel):
    voice: Annotated[str, Choices(voices)]


def properties(type: type[Any]) -> dict[str, Any]:
    found: dict[str, Any] = Schema(type).published_schema()["properties"]
    return found


def test_what_is_published_has_the_choices_wherever_they_are_annotated() -> None:
    found = properties(Speak)

    assert found["voice"] == {"type": "string", "enum": ["amy", "bob"], "default": "nobody"}
    assert found["second"]["anyOf"] == [{"type": "string", "enum": ["amy", "bob"]}, {"type": "null"}]
    assert found["chorus"]["items"] == {"type": "string", "enum": ["amy", "bob"]}
    assert "enum" not in found["text"]
    assert properties(Model)["voice"]["enum"] == ["amy", "bob"]


class Assignment(msgspec.Struct):
    speaker: str
    voice: Annotated[str, Choices(voices)]
    under: list[Assignment] = []


class Dialogue(Params):
    assignments: list[Assignment] = []  # noqa: RUF012 (msgspec copies it)
    first: Assignment | None = None
    named: dict[str, Annotated[str, Choices(voices)]] = {}  # noqa: RUF012 (msgspec copies it)


def test_a_field_of_a_type_that_a_parameter_has_may_have_choices() -> None:
    schema = Schema(Dialogue).published_schema()

    assert schema["$defs"]["Assignment"]["properties"]["voice"] == {"type": "string", "enum": ["amy", "bob"]}
    assert schema["properties"]["named"]["additionalProperties"] == {"type": "string", "enum": ["amy", "bob"]}
    assert "enum" not in schema["$defs"]["Assignment"]["properties"]["speaker"]


@pytest.mark.parametrize(
    ("given", "where"),
    [
        ({"assignments": [{"speaker": "a", "voice": "amy"}, {"speaker": "b", "voice": "carl"}]}, "assignments[].voice"),
        ({"first": {"speaker": "a", "voice": "carl"}}, "first.voice"),
        ({"named": {"a": "amy", "b": "carl"}}, "named[]"),
    ],
    ids=["list", "optional", "mapping"],
)
def test_a_worker_looks_at_those_too(given: Any, where: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        Schema(Dialogue).decode(json.encode(given), [], is_worker=True)

    assert [each["field"] for each in refused.value.errors] == [where]


def unknown() -> list[str]:
    raise OSError("there are no voices on this machine")


class Elsewhere(Params):
    voice: Annotated[str, Choices(unknown)]


def test_who_only_submits_never_asks() -> None:
    data, _ = Schema(Elsewhere).encode(Elsewhere(voice="carl"))

    assert data == b'{"voice":"carl"}'


@pytest.mark.parametrize(
    "given", ['"voice":"carl"', '"second":"carl"', '"chorus":["amy","carl"]'], ids=["one", "optional", "list"]
)
def test_a_worker_refuses_what_it_does_not_have(given: str) -> None:
    with pytest.raises(InvalidInput, match="It must be one of amy, bob"):
        Schema(Speak).decode(f'{{"text":"hi",{given}}}'.encode(), [], is_worker=True)


def test_a_worker_takes_what_it_has_and_any_default() -> None:
    schema = Schema(Speak)

    assert schema.decode(b'{"text":"hi"}', [], is_worker=True) == Speak(text="hi")
    assert schema.decode(b'{"text":"hi","voice":"bob","second":null}', [], is_worker=True) == Speak(
        text="hi", voice="bob"
    )


class Grid(Params):
    rows: list[list[Annotated[str, Choices(voices)]]]


def test_elements_of_elements_have_choices_too() -> None:
    schema = Schema(Grid)

    assert properties(Grid)["rows"]["items"]["items"] == {"type": "string", "enum": ["amy", "bob"]}
    assert schema.decode(b'{"rows":[["amy"],[]]}', [], is_worker=True) == Grid(rows=[["amy"], []])
    with pytest.raises(InvalidInput, match="It must be one of amy, bob"):
        schema.decode(b'{"rows":[["amy"],["carl"]]}', [], is_worker=True)


def test_choices_for_a_text_or_a_number_are_for_both() -> None:
    class Either(Params):
        voice: Annotated[str | int, Choices(lambda: ["amy", 7])]

    assert Schema(Either).decode(b'{"voice":7}', [], is_worker=True) == Either(voice=7)
    with pytest.raises(InvalidInput, match="It must be one of amy, 7"):
        Schema(Either).decode(b'{"voice":8}', [], is_worker=True)


@pytest.mark.parametrize(
    "hint",
    [
        Annotated[str, Choices(voices)] | int,
        list[Annotated[str, Choices(voices)] | int],
        Annotated[str, Choices(voices)] | list[Annotated[str, Choices(voices)]],
    ],
)
def test_choices_cannot_be_for_one_alternative_of_several(hint: Any) -> None:
    with pytest.raises(DefinitionError, match="choices cannot be for one alternative of several"):
        definition_with(hint)


def definition_with(hint: Any) -> Definition:
    """Of a job whose only parameter has that type."""
    app = App("speech")

    @app.job
    def speak(voice: hint) -> str:
        return str(voice)

    [definition] = app.code.definitions()
    return definition


def test_a_job_that_is_a_function_has_them_too_and_asks_once_per_process() -> None:
    asked.clear()
    choices = Choices(voices)

    first, second = (definition_with(Annotated[str, choices]) for _ in range(2))

    assert json.decode(first.schema)["properties"]["voice"]["enum"] == ["amy", "bob"]
    assert first.fingerprint == second.fingerprint
    assert asked == ["voices"]


def test_other_choices_are_another_definition_that_the_same_workers_can_run() -> None:
    some, others = (definition_with(Annotated[str, Choices(find)]) for find in (voices, lambda: ["carl"]))

    assert some.fingerprint != others.fingerprint
    assert some.plan == others.plan


@pytest.mark.parametrize(
    ("find", "reason"),
    [(unknown, "no voices on this machine"), (list, "at least one"), (lambda: [1.5], "texts or numbers")],
    ids=["raises", "none", "odd"],
)
def test_choices_that_cannot_be_had_are_told_with_parameter_and_place(
    find: Callable[[], Iterable[Any]], reason: str
) -> None:
    with pytest.raises(DefinitionError, match=rf"'speak': the choices of 'voice'.*{reason}.*test_choices.py:\d+$"):
        definition_with(Annotated[str, Choices(find)])


def test_choices_have_no_place_in_an_object() -> None:
    with pytest.raises(DefinitionError, match="choices are for texts and whole numbers"):
        definition_with(Annotated[dict[str, int], Choices(voices)])


def test_choices_have_no_place_in_a_row_of_different_things() -> None:
    with pytest.raises(DefinitionError, match="choices are for texts and whole numbers"):
        definition_with(tuple[Annotated[str, Choices(voices)], int])
