"""What is looked for when a secret must not be told."""

from __future__ import annotations

import html
import json
from base64 import b64encode, urlsafe_b64encode
from collections.abc import Callable
from urllib.parse import quote

import pytest

from packhorse.core import json as wire
from packhorse.core.redaction import MASK, redacted
from packhorse.core.secret_forms import words

SECRETS = (("key",), ("headers", "*"))


def test_words_are_the_secrets_in_all_the_ways_they_are_written_the_longest_first() -> None:
    found = words(wire.encode({"key": 'a b/"ü', "headers": {"A": "abc", "B": "abcd"}}), SECRETS)

    assert {'a b/"ü', 'a b/\\"ü', "a%20b%2F%22%C3%BC", "a%20b/%22%C3%BC", "a+b%2F%22%C3%BC", "abcd"} <= set(found)
    assert 'a b/\\"\\u00fc' in found, "as json.dumps has it"
    assert "abc" not in found
    assert list(found) == sorted(found, key=len, reverse=True)
    assert words(wire.encode({"key": "canary"}), ()) == ()


def test_each_line_of_a_secret_is_a_word_of_its_own() -> None:
    found = words(
        wire.encode({"key": "-----BEGIN KEY-----\nMIIEowIBAAKC\r\nab\n", "headers": {"A": "password\n"}}), SECRETS
    )

    assert {"-----BEGIN KEY-----", "MIIEowIBAAKC", "password"} <= set(found)
    assert "ab" not in found
    assert "" not in found


def test_the_bytes_of_a_secret_are_known_as_python_shows_them() -> None:
    found = words(wire.encode({"key": "schlüssel"}), SECRETS)

    assert redacted(repr("mein schlüssel".encode()), found) == f"b'mein {MASK}'"


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
    said = redacted(f"x {WRITTEN[way](secret)} y", words(wire.encode({"key": secret}), SECRETS))

    assert MASK in said
    assert "first" not in said
    assert "last" not in said


def test_a_secret_without_anything_to_escape_is_looked_for_in_few_ways() -> None:
    """Every line that is printed is searched for each."""
    assert len(words(wire.encode({"key": "hunter2hunter2"}), SECRETS)) < 10


@pytest.mark.parametrize("before", ["", "a", "ab", "abc", "user:"])
@pytest.mark.parametrize("after", ["", "z", "zz", "zzz"])
@pytest.mark.parametrize("encode", [b64encode, urlsafe_b64encode], ids=["standard", "urlsafe"])
@pytest.mark.parametrize("encoding", ["utf-8", "latin-1"])
def test_a_secret_is_known_in_base64_whatever_stands_around_it(
    before: str, after: str, encode: Callable[[bytes], bytes], encoding: str
) -> None:
    secret = "hunter?>ÿ~~2"
    text = encode(f"{before}{secret}{after}".encode(encoding)).decode()

    said = redacted(f"Basic {text}", words(wire.encode({"key": secret}), SECRETS))

    assert MASK in said
    kept = said.removeprefix("Basic ").replace(MASK, "").rstrip("=")
    assert len(kept) <= len(encode((before + after).encode())) + 2, "at most a character at either end"


def test_a_short_text_in_base64_is_not_looked_for() -> None:
    assert not [word for word in words(wire.encode({"key": "abcd"}), SECRETS) if "YWJj" in word and "=" not in word]
