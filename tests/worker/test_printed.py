"""What a child prints, cut into lines: a line is told once, however long it is and however it comes in."""

from __future__ import annotations

import io
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import pytest

from packhorse.core import json
from packhorse.core.redaction import MASK, redact
from packhorse.define.registry import load
from packhorse.worker.child import serve_async
from packhorse.worker.child.messages import Document, FromChild, Made, Moved, Returned, Run, Said
from packhorse.worker.process import LOG_RATE, READ, Child, _Output
from packhorse.worker.reporter import LINE

LONG = "x" * 100_000
SECRET = "canary-0123456789"
RUN = Run(7, "", "", "", "", 1, 0, "", Document(json.encode({"key": SECRET})), secrets=(("key",),))


class Ear:
    """Takes the place of a child, or of the loop that carries what is said."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.messages = 0

    def secrets(self) -> tuple[str, ...]:
        return (SECRET,)

    def on_printed(self, lines: Sequence[str]) -> None:
        self.lines += lines

    def send(self, message: FromChild) -> None:
        assert isinstance(message, Said)
        self.messages += 1
        self.lines += message.text.split("\n")


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
    output = serve_async._Attributed(cast(Any, ear), io.StringIO())
    token = serve_async._running.set(RUN)

    try:
        for text in writes:
            output.write(text)
    finally:
        serve_async._running.reset(token)

    assert "".join(ear.lines[:-2]) == LONG
    assert ear.lines[-2:] == ["next", ""]
    assert "" not in ear.lines[:-2]


def test_lines_of_one_write_share_messages_where_stages_share_a_process() -> None:
    ear = Ear()
    output = serve_async._Attributed(cast(Any, ear), io.StringIO())
    token = serve_async._running.set(RUN)

    try:
        output.write("\n" * 2 * serve_async.LONGEST)
    finally:
        serve_async._running.reset(token)

    assert ear.lines == [""] * 2 * serve_async.LONGEST
    assert ear.messages <= 3


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
    output = serve_async._Attributed(cast(Any, ear), io.StringIO())
    token = serve_async._running.set(RUN)

    try:
        output.write("x" * (serve_async.LONGEST - at) + f"{SECRET} and on\n")
        output.write(LONG + SECRET[:at])
        output.write(f"{SECRET[at:]} and on\n")
    finally:
        serve_async._running.reset(token)

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

    def on_lines(self, lines: Sequence[str], secrets: Sequence[str] = ()) -> None:
        self.lines += [redact(line, secrets) for line in lines]


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


CHATTY = """
import os
from packhorse import App

os.write(1, b"\\n" * 60_000)
app = App("chatty")

@app.job
def work() -> int:
    return 1
"""


async def test_a_flood_of_newlines_costs_the_supervisor_little_per_line() -> None:
    """Counted in calls of Python functions, which take the time: a read of newlines must not cost one per line."""
    child = Child(cast(Any, None), is_shared=False, log=lambda _line: None)
    output = _Output(child, -1)
    calls = 0

    def count(_frame: object, event: str, _argument: object) -> None:
        nonlocal calls
        calls += event == "call"

    sys.setprofile(count)
    try:
        for _ in range(8):
            output._take(b"\n" * READ)
    finally:
        sys.setprofile(None)

    assert calls < 8 * READ / 20


async def test_what_an_app_prints_while_it_is_loaded_does_not_flood_the_log_of_its_worker(tmp_path: Path) -> None:
    app = tmp_path / "chatty.py"
    app.write_text(CHATTY)
    lines: list[str] = []

    child = await Child.start(str(app), shared=False, log=lines.append)
    await child.end(0)
    assert child._watching is not None
    await child._watching

    assert len(lines) < 2 * LOG_RATE / LINE
    assert lines[-1].endswith("lines held back ...")
