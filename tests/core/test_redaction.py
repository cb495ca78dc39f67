from __future__ import annotations

from typing import Any

import pytest

from packhorse.core.redaction import MASK, masked, merged, redacted, redacted_in


def test_a_secret_of_any_sort_is_shown_as_the_same_dots() -> None:
    value = {"a": "short", "b": {"$secret": "1.ab.cd"}, "c": None, "d": "seen"}

    assert masked(value, [("a",), ("b",), ("c",)]) == {"a": MASK, "b": MASK, "c": None, "d": "seen"}


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
    assert merged(sent, before, [("key",), ("h", "*"), ("l", "*")]) == after


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

    assert merged({"accounts": sent}, {"accounts": [A, B]}, paths) == {"accounts": after}


def test_a_list_within_a_list_is_held_to_the_same() -> None:
    before = [{"name": "n", "keys": [{"id": 1, "key": "one"}, {"id": 2, "key": "two"}]}]
    paths = [("*", "keys", "*", "key")]

    same = merged(masked(before, paths), before, paths)
    dropped = [{"name": "n", "keys": [{"id": 2, "key": MASK}]}]

    assert same == before
    assert merged(dropped, before, paths) == dropped


def test_a_secret_is_taken_out_of_texts() -> None:
    assert redacted("a hunter22 b hunter2", ["hunter22", "hunter2"]) == f"a {MASK} b {MASK}"


def test_a_secret_is_taken_out_of_every_text_in_a_value_and_out_of_nothing_else() -> None:
    value = {"n": 1234, "x1234": ["1234", {"y": "a1234b"}], "z": None, "t": True}

    assert redacted_in(value, ["1234"]) == {"n": 1234, f"x{MASK}": [MASK, {"y": f"a{MASK}b"}], "z": None, "t": True}
