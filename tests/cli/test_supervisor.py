"""A kept process: started again when it dies, never twice at a time, and gone when it is ended."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import psutil
import pytest

from packhorse.cli import supervisor
from packhorse.cli.options import SAMPLE
from packhorse.cli.supervisor import Kept
from tests.cli.house import LONGEST, words


class Heard:
    def __init__(self) -> None:
        self.lines: list[str] = []
        self._more = asyncio.Event()

    def __call__(self, _name: str, text: str) -> None:
        self.lines.append(text)
        self._more.set()

    async def until(self, text: str, times: int = 1) -> None:
        async with asyncio.timeout(LONGEST):
            while sum(text in line for line in self.lines) < times:
                self._more.clear()
                await self._more.wait()


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def workers() -> list[psutil.Process]:
    return [each for each in psutil.Process().children() if "packhorse.cli" in words(each)]


async def test_a_start_during_a_start_leaves_one_process() -> None:
    heard = Heard()
    kept = Kept("worker", ["worker", SAMPLE], heard)

    kept.start()
    await asyncio.sleep(0)  # the first is being started, and nobody knows its pid
    kept.start()
    await heard.until("serves default")
    left = workers()
    await kept.end()

    assert len(left) == 1
    assert workers() == []


async def test_what_ends_is_started_again_later_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "SETTLED", 600.0)  # on a busy machine the command takes longer than ten seconds
    heard = Heard()
    kept = Kept("config", ["config", "--json"], heard)

    kept.start()
    await heard.until("restarting", times=3)
    await kept.end()

    again = [line.rpartition(" in ")[2] for line in heard.lines if "restarting" in line]
    assert again[:3] == ["0.1 s", "0.2 s", "0.4 s"]


async def test_what_refuses_to_run_is_not_started_again() -> None:
    heard = Heard()
    kept = Kept("worker", ["worker", "nowhere.py"], heard)

    kept.start()
    await asyncio.wait_for(kept.refused.wait(), LONGEST)
    await kept.end()

    assert heard.lines == ["There is no file nowhere.py."]


STAY = """
import os, signal, sys, time
asked = 0
def say(what):  # not by print, which a signal must not interrupt
    os.write(1, f"{sys.argv[-1]} {what}\\n".encode())
def stop(*_):
    global asked
    asked += 1
    say(f"was asked {asked} times")
signal.signal(signal.SIGTERM, stop)
say("has started")
while asked < 2:
    time.sleep(0.02)
"""


class Stubborn(Kept):
    """Its processes end when they are asked for the second time, as a worker does that runs a stage."""

    def __init__(self, heard: Heard) -> None:
        super().__init__("worker", [], heard)
        self._names = iter("abc")

    async def _start(self, output: int) -> asyncio.subprocess.Process:
        return await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", STAY, next(self._names)), stdout=output, process_group=0
        )


async def test_a_second_start_leaves_a_process_alone_that_is_finishing_its_work() -> None:
    heard = Heard()
    kept = Stubborn(heard)

    kept.start()
    await heard.until("a has started")
    kept.start()
    await heard.until("b has started")
    await heard.until("a was asked 1 times")
    kept.start()
    await heard.until("c has started")
    await heard.until("b was asked 1 times")

    assert not any("2 times" in line for line in heard.lines)
    await kept.end()
    assert {"a was asked 2 times", "b was asked 2 times", "c was asked 2 times"} <= {*heard.lines}
