"""A real child at the other end of its socket: it answers every call, and goes when its supervisor does."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from packhorse.worker.child.messages import (
    Broken,
    Document,
    Frames,
    FromChild,
    Moved,
    Raised,
    Ready,
    Returned,
    Run,
    Said,
    Stop,
    from_child,
    to_frame,
)
from tests.worker import child_app

LIMIT = 30.0
ROOT = Path(__file__).parents[2]


class Child:
    """The supervisor's end of the wire."""

    def __init__(self, mode: str, app: str = child_app.__file__) -> None:
        self.mode = mode
        self.link, theirs = socket.socketpair()
        self.link.settimeout(LIMIT)
        self.process = subprocess.Popen(
            [sys.executable, "-m", "packhorse.worker.child", str(theirs.fileno()), mode, app],
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env={name: value for name, value in os.environ.items() if not name.startswith("PACKHORSE_")},
            cwd=ROOT,
        )
        theirs.close()
        self._frames = Frames()
        self._dispatch: list[FromChild] = []

    def hear(self) -> FromChild:
        while not self._dispatch:
            data = self.link.recv(65536)
            assert data, "the child has hung up"
            self._dispatch += [from_child(body) for body in self._frames.feed(data)]
        return self._dispatch.pop(0)

    def run(self, stage: str, word: str = "", call: int = 1) -> None:
        self.link.sendall(to_frame(self.message(stage, word, call)))

    def message(self, stage: str, word: str = "", call: int = 1) -> Run:
        pipeline = "plain" if self.mode == "single" else "aside"
        kinds = [kind for kind in child_app.app.code.by_kind if kind.startswith(f"{pipeline}/{stage}#")]
        parameters = Document(f'{{"word":"{word}"}}'.encode())
        kind = kinds[0] if kinds else stage
        return Run(call, kind, "job", "ann", "trace", 1, 0, "/nowhere", parameters)

    def outcome(self) -> tuple[Returned | Raised, list[FromChild]]:
        """How a call ended, and what came before."""
        before: list[FromChild] = []
        while not isinstance(message := self.hear(), Returned | Raised):
            before.append(message)
        return message, before

    def close(self) -> None:
        self.link.close()
        self.process.kill()
        self.process.communicate()


@pytest.fixture(params=["single", "shared"])
def child(request: pytest.FixtureRequest) -> Iterator[Child]:
    child = Child(request.param)
    assert isinstance(child.hear(), Ready)
    yield child
    child.close()


def test_a_child_runs_stage_after_stage_and_the_last_report_arrives(child: Child) -> None:
    for call, word in enumerate(("one", "two"), start=1):
        child.run("echo", word, call)

        outcome, before = child.outcome()

        assert outcome == Returned(call, Document(f'"{word}"'.encode()), None)
        moved = [message for message in before if isinstance(message, Moved)]
        assert (moved[0].message, moved[-1].message) == ("halfway", "there")
        if child.mode == "shared":
            assert Said(call, f"printed {word}") in before


@pytest.mark.parametrize(
    ("stage", "message"),
    [("breaks", "ValueError: caf\\udce9"), ("leaves", "The stage called exit(3)."), ("unheard-of", "unheard-of")],
)
def test_a_call_that_goes_wrong_is_answered_and_the_child_goes_on(child: Child, stage: str, message: str) -> None:
    child.run(stage)
    outcome, _ = child.outcome()
    child.run("echo", "next", call=2)
    following, _ = child.outcome()

    assert isinstance(outcome, Raised)
    assert message in outcome.message
    assert following == Returned(2, Document(b'"next"'), None)


@pytest.mark.parametrize(("word", "code"), [("returns", 0), ("raises", 1), ("publishes", 1)])
def test_a_process_that_a_stage_forks_does_not_answer_for_it(child: Child, word: str, code: int) -> None:
    child.run("forks", word)
    outcome, before = child.outcome()
    child.run("echo", "next", call=2)
    following, _ = child.outcome()

    assert outcome == Returned(1, Document(f'"the fork ended with {code}"'.encode()), None)
    assert not [message for message in before if not isinstance(message, Said)]
    assert following == Returned(2, Document(b'"next"'), None)


def test_a_fork_of_a_fork_prints_no_error() -> None:
    child = Child("single")
    child.hear()
    child.run("forks", "forks")
    outcome, _ = child.outcome()
    child.link.close()
    printed, _ = child.process.communicate(timeout=LIMIT)

    assert outcome == Returned(1, Document(b'"the fork ended with 0"'), None)
    assert printed == b""


def test_a_stop_ends_one_call_of_a_shared_child_and_not_its_neighbours() -> None:
    child = Child("shared")
    child.hear()
    try:
        child.run("stays", call=1)
        child.run("stays", call=2)
        child.hear(), child.hear()

        child.link.sendall(to_frame(Stop(1)))
        outcome, _ = child.outcome()
        child.run("echo", "next", call=3)
        following, _ = child.outcome()

        assert isinstance(outcome, Raised)
        assert (outcome.call, outcome.code) == (1, "STOPPED")
        assert following == Returned(3, Document(b'"next"'), None)
    finally:
        child.close()


def test_a_line_without_an_end_is_heard_too() -> None:
    child = Child("shared")
    child.hear()
    try:
        child.run("halves", call=1)
        _, before = child.outcome()
        child.run("echo", call=2)
        _, after = child.outcome()

        assert before == [Said(1, "a line"), Said(1, "half a line")]
        assert [message for message in after if isinstance(message, Said)] == [Said(2, "printed ")]
    finally:
        child.close()


def test_a_call_that_is_stopped_before_it_has_begun_is_answered() -> None:
    child = Child("shared")
    child.hear()
    try:
        child.link.sendall(to_frame(child.message("stays")) + to_frame(Stop(1)))

        outcome, _ = child.outcome()

        assert isinstance(outcome, Raised)
        assert (outcome.call, outcome.code) == (1, "STOPPED")
    finally:
        child.close()


def test_a_child_goes_when_its_supervisor_does(child: Child) -> None:
    child.run("stays")
    assert isinstance(child.hear(), Moved)

    child.link.close()

    assert child.process.wait(LIMIT) == -signal.SIGKILL


def test_a_child_asked_to_end_ends(child: Child) -> None:
    child.run("stays")
    assert isinstance(child.hear(), Moved)

    child.process.terminate()

    assert child.process.wait(LIMIT) == 0


def test_a_child_whose_app_cannot_be_loaded_says_why(tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text("import no_such_module")
    child = Child("single", str(tmp_path / "broken.py"))

    said = child.hear()

    child.close()
    assert isinstance(said, Broken)
    assert "no_such_module" in said.message
    assert "broken.py:1" in said.message
