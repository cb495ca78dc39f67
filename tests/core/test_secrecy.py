from __future__ import annotations

from typing import Any

import pytest

from packhorse.core.secrecy import MASK, masked, merged, redacted, redacted_in


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
        ({"l": [MASK, MASK]}, {"l": ["one"]}, {"l": ["one", MASK]}),
    ],
)
def test_dots_that_are_sent_back_leave_the_secret_as_it_was(sent: Any, before: Any, after: Any) -> None:
    assert merged(sent, before, [("key",), ("h", "*"), ("l", "*")]) == after


def test_a_secret_is_taken_out_of_texts() -> None:
    assert redacted("a hunter22 b hunter2", ["hunter22", "hunter2"]) == f"a {MASK} b {MASK}"


def test_a_secret_is_taken_out_of_every_text_in_a_value_and_out_of_nothing_else() -> None:
    value = {"n": 1234, "x1234": ["1234", {"y": "a1234b"}], "z": None, "t": True}

    assert redacted_in(value, ["1234"]) == {"n": 1234, f"x{MASK}": [MASK, {"y": f"a{MASK}b"}], "z": None, "t": True}
