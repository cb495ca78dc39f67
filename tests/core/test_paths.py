from __future__ import annotations

import pytest

from packhorse.core.paths import changed, found

GIVEN = {
    "key": "k1",
    "none": None,
    "headers": {"Authorization": "h1", "X": "h2"},
    "users": [{"name": "ann", "password": "p1"}, {"name": "bob", "password": "p2"}],
}


@pytest.mark.parametrize(
    ("path", "there"),
    [
        (("key",), ["k1"]),
        (("none",), []),
        (("missing",), []),
        (("key", "deeper"), []),
        (("headers", "*"), ["h1", "h2"]),
        (("headers", "X"), ["h2"]),
        (("users", "*", "password"), ["p1", "p2"]),
        (("users", "password"), []),
    ],
)
def test_a_path_leads_to_what_its_names_say(path: tuple[str, ...], there: list[str]) -> None:
    assert found(GIVEN, [path]) == there


def test_what_is_changed_is_a_copy() -> None:
    assert changed(GIVEN, [("key",), ("users", "*", "password")], str.upper) == {
        **GIVEN,
        "key": "K1",
        "users": [{"name": "ann", "password": "P1"}, {"name": "bob", "password": "P2"}],
    }
    assert GIVEN["key"] == "k1"
