"""What a child prints, cut into lines: a line is told once, however long it is and however it comes in."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest

from packhorse.core import json
from packhorse.core.redaction import MASK, redact
from packhorse.define.registry import load
from packhorse.worker.child import serve
from packhorse.worker.child.messages import Document, FromChild, Made, Moved, Returned, Run, Said
from packhorse.worker.process import READ, Child, _Output

LONG = "x" * 100_000
SECRET = "canary-0123456789"
RUN = Run(7, "", "", "", "", 1, 0, "", Document(json.encode({"key": SECRET})), secrets=(("key",),))


class Ear:
    """Takes the place of a child, or of the loop that carries what is said."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def secrets(self) -> tuple[str, ...]:
        return (SECRET,)

    def on_printed(self, line: str) -> None:
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
    output = serve._Attributed(cast(Any, ear), cast(Any, None))
    token = serve._running.set(RUN)

    try:
        for text in writes:
            output.write(text)
    finally:
        serve._running.reset(token)

    assert "".join(ear.lines[:-2]) == LONG
    assert ear.lines[-2:] == ["next", ""]
    assert "" not in ear.lines[:-2]


@pytest.mark.parametrize("at", range(len(SECRET) + 1))
def test_a_line_is_not_cut_within_a_secret(at: int) -> None:
    ear = Ear()
    output = _Output(cast(Any, ear), -1)

    output._take(f"{LONG}{SECRET[:at]}".encode())
    output._take(f"{SECRET[at:]} and on\n".encode())

    assert MASK in redact("".join(ear.lines), [SECRET])
    assert not any(half in line for line in ear.lines for half in (SECRET[:4], SECRET[-4:]) if line != ear.lines[-1])
    assert redact(ear.lines[-1], [SECRET]).removeprefix(MASK) == " and on"


@pytest.mark.parametrize("at", range(len(SECRET) + 1))
def test_nor_is_it_where_stages_share_a_process(at: int) -> None:
    ear = Ear()
    output = serve._Attributed(cast(Any, ear), cast(Any, None))
    token = serve._running.set(RUN)

    try:
        output.write("x" * (serve.LONGEST - at) + f"{SECRET} and on\n")
        output.write(LONG + SECRET[:at])
        output.write(f"{SECRET[at:]} and on\n")
    finally:
        serve._running.reset(token)

    said = [redact(line, [SECRET]) for line in ear.lines]
    assert "".join(said).count(MASK) == 2
    assert not any(half in line for line in said for half in (SECRET[:4], SECRET[-4:]))


GOSSIP = """
import subprocess
import sys
from packhorse import App

app = App("gossip")
left = []

@app.job
def leave() -> None:
    left.append(subprocess.Popen([sys.executable, "-c", "input(); print('heard of canary-0123456789')"], stdin=-1))

@app.job
def go_on() -> None:
    left[0].communicate(b"now")
"""


class Attempt:
    """One that only listens."""

    def __init__(self, *secrets: str) -> None:
        self.secrets = secrets
        self.lines: list[str] = []

    def on_progress(self, message: Moved) -> None: ...

    def on_artifact(self, message: Made) -> None: ...

    def on_line(self, text: str) -> None:
        self.lines.append(text)


async def test_what_an_earlier_stage_has_left_running_tells_the_next_none_of_its_secrets(tmp_path: Path) -> None:
    app = tmp_path / "gossip.py"
    app.write_text(GOSSIP)
    leave, go_on = load(str(app)).by_kind
    first, second = Attempt(SECRET), Attempt()
    child = await Child.start(str(app), shared=False, log=print)
    try:
        for kind, attempt in ((leave, first), (go_on, second)):
            run = Run(child.number(), kind, "j", "u", "t", 1, 0, str(tmp_path), Document(b"{}"))
            assert isinstance(await child.run(run, attempt).outcome, Returned)
    finally:
        await child.end(0)

    assert second.lines == [f"heard of {MASK}"]
