from __future__ import annotations

import copy
import pickle
from dataclasses import dataclass
from typing import Any

import msgspec
import pydantic
import pytest

from packhorse import App, Context, Params, Secret
from packhorse.core.redaction import MASK
from packhorse.define import Schema
from packhorse.define.values import encode_result
from packhorse.errors import DefinitionError, InvalidInput

CANARY = "canary-0123456789"


class Account(msgspec.Struct):
    name: str
    password: Secret


class Fetch(Params):
    url: str
    api_key: Secret
    token: Secret | None = None
    headers: dict[str, Secret] = msgspec.field(default_factory=dict)
    accounts: list[Account] = msgspec.field(default_factory=list)


def fetch(**more: Any) -> Fetch:
    return Fetch(url="u", api_key=Secret(CANARY), **more)


def test_a_secret_shows_itself_to_nobody_who_does_not_ask() -> None:
    secret = Secret(CANARY)

    for text in (str(secret), repr(secret), f"{secret}", f"{secret!r}", repr(fetch()), repr([secret])):
        assert CANARY not in text
    assert MASK in repr(fetch())
    assert secret.reveal() == CANARY


def test_secrets_are_equal_if_their_texts_are() -> None:
    assert Secret("a") == Secret("a")
    assert Secret("a") != Secret("b")
    assert Secret("a") != "a"
    assert len({Secret("a"), Secret("a"), Secret("\ud800")}) == 2
    assert Secret("\ud800") != Secret("a")


def test_an_empty_secret_is_none() -> None:
    assert not Secret("")
    assert Secret("x")


def test_a_secret_is_a_text() -> None:
    with pytest.raises(TypeError, match=r"^a Secret is a text$"):
        Secret(12345)  # type: ignore[arg-type]


@pytest.mark.parametrize("way", [pickle.dumps, copy.deepcopy], ids=["pickle", "copy"])
def test_a_secret_is_not_written_down_behind_our_back(way: Any) -> None:
    with pytest.raises(TypeError, match="pickled"):
        way(Secret("x"))


def test_the_schema_says_where_secrets_are() -> None:
    schema = Schema(Fetch)

    assert schema.json_schema()["properties"]["api_key"] == {
        "type": "string",
        "format": "password",
        "writeOnly": True,
    }
    assert schema.secrets == (("accounts", "*", "password"), ("api_key",), ("headers", "*"), ("token",))


def test_the_plan_says_so_too() -> None:
    app = App("a")
    pipeline = app.pipeline("fetch", Fetch)

    @pipeline.stage
    def get(ctx: Context, p: Fetch) -> int:
        return len(p.api_key.reveal())

    assert pipeline.plan().secrets == Schema(Fetch).secrets


def test_parameters_with_secrets_come_back() -> None:
    given = fetch(token=Secret("t"), headers={"A": Secret("h")}, accounts=[Account("ann", Secret("p"))])

    data, _ = Schema(Fetch).encode(given)

    assert Schema(Fetch).decode(data, []) == given


def test_what_is_no_text_is_refused_without_being_repeated() -> None:
    with pytest.raises(InvalidInput) as refused:
        Schema(Fetch).decode(b'{"url": "u", "api_key": 123456789}', [])

    assert [each["field"] for each in refused.value.errors] == ["api_key"]
    assert "123456789" not in str(refused.value) + repr(refused.value.errors)


@dataclass
class Plain:
    key: Secret


class Model(pydantic.BaseModel):
    key: Secret
    other: Secret | None = None


@pytest.mark.parametrize(
    ("type", "value"), [(Plain, Plain(Secret("s"))), (Model, Model(key=Secret("s")))], ids=["dataclass", "pydantic"]
)
def test_other_kinds_of_parameters_may_have_secrets(type: type[Any], value: Any) -> None:
    schema = Schema(type)

    assert ("key",) in schema.secrets
    data, _ = schema.encode(value)
    assert msgspec.json.decode(data)["key"] == "s"
    assert schema.decode(data, []) == value
    assert "'s'" not in repr(value)


class Node(msgspec.Struct):
    key: Secret
    next: Node | None = None


class Chain(Params):
    node: Node


def test_secrets_in_a_type_that_has_itself_are_refused() -> None:
    with pytest.raises(DefinitionError, match="Node contains itself, and a Secret"):
        Schema(Chain)


class Branch(msgspec.Struct):
    leaves: list[Branch] = []


class Tree(Params):
    root: Branch
    key: Secret


def test_a_type_that_has_itself_may_stand_beside_a_secret() -> None:
    assert Schema(Tree).secrets == (("key",),)


class Hidden(pydantic.BaseModel):
    key: pydantic.SecretStr


def test_a_secret_of_pydantics_own_would_arrive_as_asterisks_and_is_refused() -> None:
    with pytest.raises(DefinitionError, match=r"key is a SecretStr.*packhorse\.Secret"):
        Schema(Hidden)


def test_a_stage_that_returns_a_secret_is_told_not_to() -> None:
    with pytest.raises(InvalidInput, match="a Secret cannot be returned") as refused:
        encode_result({"key": Secret(CANARY)})

    assert CANARY not in str(refused.value)


def test_a_secret_is_never_searched_by() -> None:
    with pytest.raises(DefinitionError, match="search= names 'headers', which contains a secret"):
        App("vault").pipeline("fetch", Fetch, search=("headers",))
