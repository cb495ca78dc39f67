"""Keys as text."""

from __future__ import annotations

import re

import pytest

from packhorse.auth import keys
from packhorse.errors import InvalidInput
from packhorse.store.collections.keys import Key

NOW = 1_800_000_000.0


def made(**how: object) -> tuple[Key, str]:
    return keys.mint("acme", ["submit", "read"], now=NOW, by="cli", **how)  # type: ignore[arg-type]


def test_a_key_is_read_as_the_one_that_was_made() -> None:
    key, text = made()

    presented = keys.read(text)

    assert presented is not None
    assert presented.id == key.id
    assert keys.is_digest(key.digest, presented)


def test_a_key_has_at_least_128_bits_that_are_secret() -> None:
    _, text = made()

    assert re.fullmatch(r"ph_[0-9a-f]{20}[0-9a-z]{32}[0-9a-f]{8}", text)
    assert len(keys.LETTERS) ** keys.SECRET >= 2**128


def test_nothing_that_is_kept_tells_the_secret() -> None:
    key, text = made()
    secret = text[23:55]

    assert secret not in repr(key)


def test_two_keys_of_one_moment_differ() -> None:
    assert len({made()[1] for _ in range(1000)}) == 1000


def test_keys_sort_by_the_time_they_were_made() -> None:
    first, _ = keys.mint("acme", ["read"], now=NOW, by="cli")
    second, _ = keys.mint("acme", ["read"], now=NOW + 0.001, by="cli")

    assert first.id < second.id


def test_the_secret_of_another_key_is_not_the_same() -> None:
    key, _ = made()
    other = keys.read(made()[1])

    assert other is not None
    assert not keys.is_digest(key.digest, other)


@pytest.mark.parametrize("place", range(3, 63))
def test_a_character_that_was_mistyped_is_noticed(place: int) -> None:
    _, text = made()
    wrong = text[:place] + ("a" if text[place] != "a" else "b") + text[place + 1 :]

    assert keys.read(wrong) is None


@pytest.mark.parametrize("text", ["", "ph_", "ph_" + "0" * 60, "PH_" + "0" * 60, "ph_é", "ph_\x00", "x" * 10_000])
def test_what_is_no_key_is_none(text: str) -> None:
    assert keys.read(text) is None


def test_a_key_with_something_behind_it_is_none() -> None:
    assert keys.read(made()[1] + "\n") is None
    assert keys.read(" " + made()[1]) is None


@pytest.mark.parametrize(
    ("asked", "field"),
    [
        ({"tenant": "acme", "scopes": []}, "scopes"),
        ({"tenant": "acme", "scopes": ["root"]}, "scopes"),
        ({"tenant": "acme", "scopes": ["cancel"]}, "scopes"),
        ({"tenant": "", "scopes": ["read"]}, "tenant_id"),
        ({"tenant": "a\0", "scopes": ["read"]}, "tenant_id"),
        ({"tenant": "acme", "scopes": ["read"], "user": ""}, "user_id"),
        ({"tenant": "acme", "scopes": ["read"], "name": "x" * 256}, "name"),
    ],
)
def test_what_a_key_cannot_have_is_named(asked: dict[str, object], field: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        keys.check(**asked)  # type: ignore[arg-type]

    assert [each["field"] for each in refused.value.errors] == [field]


def test_a_fingerprint_does_not_tell_what_was_sent() -> None:
    _, text = made()

    assert keys.fingerprint(text) not in text
    assert keys.fingerprint(text) == keys.fingerprint(text)
