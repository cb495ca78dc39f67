"""What is printed: text of users and stages cannot move the cursor, set a title or forge a line."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from typing import Any

import pytest

from packhorse import log
from packhorse.cli import _report, output
from packhorse.cli.follow import Bars, report_end

HOSTILE = "a\x1b[2J\x1b]0;owned\x07\r\nb\x9b31m\u202ec"
SHOWN = "a\\x1b[2J\\x1b]0;owned\\x07\\r\\nb\\x9b31m\\u202ec"


@pytest.fixture(autouse=True)
def consoles() -> Iterator[None]:
    """Made for the streams of this test."""
    for each in (output.out, output.err):
        each.cache_clear()
    yield
    for each in (output.out, output.err):
        each.cache_clear()


def is_harmless(text: str) -> bool:
    return not log.CONTROLS.search(text.replace("\n", "").replace("\t", ""))


def test_control_characters_are_shown_as_such(capsys: pytest.CaptureFixture[str]) -> None:
    output.plain(HOSTILE)
    output.table(("user", "message"), [(HOSTILE, HOSTILE)])
    output.facts({"user": HOSTILE})
    output.message(HOSTILE)

    printed = capsys.readouterr()
    assert printed.out.count(SHOWN) == 4
    assert printed.err == f"{SHOWN}\n"
    assert is_harmless(printed.out)


def test_the_error_of_a_stage_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    error = {"code": "BROKEN", "message": HOSTILE, "stage": "only"}

    report_end({"job_id": "j", "status": "failed", "error": error})

    first, *rest = capsys.readouterr().err.splitlines()
    assert first == f"Job j failed in only: BROKEN: {SHOWN}"
    assert len(rest) == 1


def test_an_error_of_the_server_is_harmless(capsys: pytest.CaptureFixture[str]) -> None:
    _report([], 3, "invalid-input", "Invalid input", HOSTILE, "Try\nagain.", [{"field": "x", "message": HOSTILE + "!"}])

    printed = capsys.readouterr().err
    assert is_harmless(printed)
    assert printed.endswith("Try\nagain.\n")


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b[31mred\x1b[0m", "red"),
        ("up\x1b[A\x1b[2K again", "up again"),
        ("\x1b]52;c;cm0gLXJm\x07copied", "copied"),
        ("\x1b]0;title\x1b\\text", "text"),
        ("\x9b2J", "\\x9b2J"),
        ("lone \x1b", "lone \\x1b"),
        ("10 %\r20 %\r", "20 %"),
        ("\x1bP+q544e\x1b\\x", "x"),
    ],
)
def test_of_a_line_of_log_only_colours_reach_the_terminal(
    capsys: pytest.CaptureFixture[str], text: str, shown: str
) -> None:
    output.line("only", text)

    printed = capsys.readouterr().out
    assert printed == f"only   │ {shown}\n"


def test_the_message_of_a_bar_is_neither_markup_nor_control() -> None:
    bars = Bars()
    stage = {"status": "running", "progress": 1.0, "message": "[link=http://x]\x1b[2J"}

    bars.tell({"type": "snapshot", "data": {"stages": {"only": stage}}})

    [task] = bars._progress.tasks
    assert task.fields["message"] == "[link=http://x]\\x1b[2J"
    assert [str(column.render(task)) for column in bars._progress.columns[4:]] == ["[link=http://x]\\x1b[2J"]  # type: ignore[union-attr]


def formatted(message: str, error: Any = None) -> str:
    info = (type(error), error, None) if error else None
    record = logging.LogRecord("packhorse", logging.ERROR, "", 0, message, None, info)
    return log.TextLines(log.TEXT).format(record)


def test_no_text_forges_a_line_of_the_log() -> None:
    forged = "x\r\n2026-01-01 00:00:00,000 INFO key ph_1 was revoked\x1b[1A"

    lines = formatted(forged, ValueError(forged)).split("\n")

    assert lines[0].endswith("ERROR x\\r")
    assert all(each.startswith("  | ") for each in lines[1:])
    assert lines[1] == "  | 2026-01-01 00:00:00,000 INFO key ph_1 was revoked\\x1b[1A"
    assert is_harmless("".join(lines))


def test_the_last_time_there_is_can_be_shown_in_every_zone(monkeypatch: pytest.MonkeyPatch) -> None:
    for zone in ("XXX-9", "UTC", "XXX9"):
        monkeypatch.setenv("TZ", zone)
        time.tzset()

        assert output.clock("9999-12-31T23:59:59Z").startswith("9999-12-31 ")
    monkeypatch.undo()
    time.tzset()
