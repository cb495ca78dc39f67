"""What a child prints, cut into lines: a line is told once, however long it is and however it comes in."""

from __future__ import annotations

from typing import Any, cast

import pytest

from packhorse.child import shared
from packhorse.child.messages import FromChild, Said
from packhorse.engine.process import READ, _Output

LONG = "x" * 100_000


class Ear:
    """Takes the place of a child, or of the loop that carries what is said."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def printed(self, line: str) -> None:
        self.lines.append(line)

    def send(self, message: FromChild) -> None:
        assert isinstance(message, Said)
        self.lines.append(message.text)


@pytest.mark.parametrize("size", [READ, READ + 1, 100_001, 1000])
def test_the_end_of_a_long_line_is_no_line_of_its_own(size: int) -> None:
    ear = Ear()
    output = _Output(cast(Any, ear), -1)
    data = f"{LONG}\nnext\n\nlast\n".encode()

    for start in range(0, len(data), size):
        output._take(data[start : start + size])

    assert "".join(ear.lines[:-3]) == LONG
    assert ear.lines[-3:] == ["next", "", "last"]
    assert "" not in ear.lines[:-3]


@pytest.mark.parametrize("writes", [[LONG, "\n", "next", "\n", "\n"], [f"{LONG}\nnext\n\n"], [LONG, "\nnext\n\n"]])
def test_the_same_holds_where_stages_share_a_process(writes: list[str]) -> None:
    ear = Ear()
    output = shared._Attributed(cast(Any, ear), cast(Any, None))
    token = shared._call.set(7)

    try:
        for text in writes:
            output.write(text)
    finally:
        shared._call.reset(token)

    assert "".join(ear.lines[:-2]) == LONG
    assert ear.lines[-2:] == ["next", ""]
    assert "" not in ear.lines[:-2]
