from __future__ import annotations

import html
import json
from base64 import b64encode, urlsafe_b64encode
from collections.abc import Callable
from typing import Any
from urllib.parse import quote

import pytest

from packhorse.core import json as wire
from packhorse.core.redaction import MASK, mask, redact, redact_json, restore_masked, secret_forms


def test_a_secret_of_any_sort_is_shown_as_the_same_dots() -> None:
    value = {"a": "short", "b": {"$secret": "1.ab.cd"}, "c": None, "d": "seen"}

    assert mask(value, [("a",), ("b",), ("c",)]) == {"a": MASK, "b": MASK, "c": None, "d": "seen"}


@pytest.mark.parametrize(
    ("sent", "before", "after"),
    [
        ({"key": MASK}, {"key": "old"}, {"key": "old"}),
        ({"key": "new"}, {"key": "old"}, {"key": "new"}),
        ({"key": None}, {"key": "old"}, {"key": None}),
        ({"key": MASK}, {}, {"key": MASK}),
        ({}, {"key": "old"}, {}),
        ({"h": {"a": MASK, "b": "new"}}, {"h": {"a": "old", "c": "x"}}, {"h": {"a": "old", "b": "new"}}),
        ({"l": [MASK, "new"]}, {"l": ["one", "two"]}, {"l": ["one", "new"]}),
        ({"l": [MASK, MASK]}, {"l": ["one"]}, {"l": [MASK, MASK]}),
        ({"l": [MASK]}, {"l": ["one", "two"]}, {"l": [MASK]}),
    ],
)
def test_dots_that_are_sent_back_leave_the_secret_as_it_was(sent: Any, before: Any, after: Any) -> None:
    assert restore_masked(sent, before, [("key",), ("h", "*"), ("l", "*")]) == after


def account(host: str, password: Any, **more: Any) -> dict[str, Any]:
    return {"host": host, "password": password, **more}


A, B = account("a", "A's"), account("b", "B's")


@pytest.mark.parametrize(
    ("sent", "after"),
    [
        ([account("a", MASK), account("b", MASK)], [A, B]),
        ([account("a", MASK), account("b", "new")], [A, account("b", "new")]),
        ([account("a", MASK), account("b", None)], [A, account("b", None)]),
        ([account("b", MASK)], [account("b", MASK)]),
        ([account("b", MASK), account("a", MASK)], [account("b", MASK), account("a", MASK)]),
        ([account("c", MASK), account("b", MASK)], [account("c", MASK), account("b", MASK)]),
        ([account("a", MASK, port=1), account("b", "new")], [account("a", MASK, port=1), account("b", "new")]),
        ([account("a", MASK), account("b", MASK), account("c", "C's")],) * 2,
    ],
    ids=["unchanged", "another", "none", "dropped", "moved", "renamed", "more said", "added"],
)
def test_in_a_list_dots_stand_for_a_secret_only_where_all_is_where_it_was(sent: Any, after: Any) -> None:
    paths = [("accounts", "*", "password"), ("accounts", "*", "token")]

    assert restore_masked({"accounts": sent}, {"accounts": [A, B]}, paths) == {"accounts": after}


def test_a_list_within_a_list_is_held_to_the_same() -> None:
    before = [{"name": "n", "keys": [{"id": 1, "key": "one"}, {"id": 2, "key": "two"}]}]
    paths = [("*", "keys", "*", "key")]

    same = restore_masked(mask(before, paths), before, paths)
    dropped = [{"name": "n", "keys": [{"id": 2, "key": MASK}]}]

    assert same == before
    assert restore_masked(dropped, before, paths) == dropped


def test_a_secret_is_taken_out_of_texts() -> None:
    assert redact("a hunter22 b hunter2", ["hunter22", "hunter2"]) == f"a {MASK} b {MASK}"


def test_a_secret_is_taken_out_of_every_text_in_a_value_and_out_of_nothing_else() -> None:
    value = {"n": 1234, "x1234": ["1234", {"y": "a1234b"}], "z": None, "t": True}

    assert redact_json(value, ["1234"]) == {"n": 1234, f"x{MASK}": [MASK, {"y": f"a{MASK}b"}], "z": None, "t": True}


SECRETS = (("key",), ("headers", "*"))


def test_words_are_the_secrets_in_all_the_ways_they_are_written_the_longest_first() -> None:
    found = secret_forms(wire.encode({"key": 'a b/"ü', "headers": {"A": "abc", "B": "abcd"}}), SECRETS)

    assert {'a b/"ü', 'a b/\\"ü', "a%20b%2F%22%C3%BC", "a%20b/%22%C3%BC", "a+b%2F%22%C3%BC", "abcd"} <= set(found)
    assert 'a b/\\"\\u00fc' in found, "as json.dumps has it"
    assert "abc" not in found
    assert list(found) == sorted(found, key=len, reverse=True)
    assert secret_forms(wire.encode({"key": "canary"}), ()) == ()


def test_each_line_of_a_secret_is_a_word_of_its_own() -> None:
    found = secret_forms(
        wire.encode({"key": "-----BEGIN KEY-----\nMIIEowIBAAKC\r\nab\n", "headers": {"A": "password\n"}}), SECRETS
    )

    assert {"-----BEGIN KEY-----", "MIIEowIBAAKC", "password"} <= set(found)
    assert "ab" not in found
    assert "" not in found


def test_the_bytes_of_a_secret_are_known_as_python_shows_them() -> None:
    found = secret_forms(wire.encode({"key": "schlüssel"}), SECRETS)

    assert redact(repr("mein schlüssel".encode()), found) == f"b'mein {MASK}'"


def in_more(text: str) -> str:
    """Python quotes a text by what else is in it."""
    return f"""it's "{text}" """


WRITTEN: dict[str, Callable[[str], str]] = {
    "python": repr,
    "python, within both quotes": lambda text: repr(in_more(text)),
    "python, ascii": lambda text: ascii(in_more(text)),
    "bytes, within both quotes": lambda text: repr(in_more(text).encode()),
    "an error": lambda text: repr(ValueError(f"no {text}")),
    "json": lambda text: json.dumps(in_more(text)),
    "json, not ascii": lambda text: json.dumps(text, ensure_ascii=False),
    "python in json": lambda text: json.dumps(repr({"key": text})),
    "python in python": lambda text: repr(repr(in_more(text))),
    "json in python": lambda text: repr(json.dumps(text)),
    "json in json": lambda text: json.dumps(json.dumps(text)),
    "url": quote,
    "url, small digits": lambda text: quote(text, safe="").lower(),
    "page": html.escape,
    "page, quotes left": lambda text: html.escape(text, quote=False),
}


@pytest.mark.parametrize("way", WRITTEN)
@pytest.mark.parametrize(
    "secret",
    [
        "first\nlast",
        "it's first, last",
        'first"last',
        'it\'s "first" last',
        "first\\last\t",
        "firstä€😀last",
        "first/ä<last>",
    ],
    ids=["line", "quote", "quotes", "both", "backslash", "letters", "signs"],
)
def test_a_secret_is_known_however_it_is_escaped(secret: str, way: str) -> None:
    said = redact(f"x {WRITTEN[way](secret)} y", secret_forms(wire.encode({"key": secret}), SECRETS))

    assert MASK in said
    assert "first" not in said
    assert "last" not in said


def test_a_secret_without_anything_to_escape_is_looked_for_in_few_ways() -> None:
    """Every line that is printed is searched for each."""
    assert len(secret_forms(wire.encode({"key": "hunter2hunter2"}), SECRETS)) < 10


@pytest.mark.parametrize("before", ["", "a", "ab", "abc", "user:"])
@pytest.mark.parametrize("after", ["", "z", "zz", "zzz"])
@pytest.mark.parametrize("encode", [b64encode, urlsafe_b64encode], ids=["standard", "urlsafe"])
@pytest.mark.parametrize("encoding", ["utf-8", "latin-1"])
def test_a_secret_is_known_in_base64_whatever_stands_around_it(
    before: str, after: str, encode: Callable[[bytes], bytes], encoding: str
) -> None:
    secret = "hunter?>ÿ~~2"
    text = encode(f"{before}{secret}{after}".encode(encoding)).decode()

    said = redact(f"Basic {text}", secret_forms(wire.encode({"key": secret}), SECRETS))

    assert MASK in said
    kept = said.removeprefix("Basic ").replace(MASK, "").rstrip("=")
    assert len(kept) <= len(encode((before + after).encode())) + 2, "at most a character at either end"


def test_a_short_text_in_base64_is_not_looked_for() -> None:
    assert not [
        word for word in secret_forms(wire.encode({"key": "abcd"}), SECRETS) if "YWJj" in word and "=" not in word
    ]
