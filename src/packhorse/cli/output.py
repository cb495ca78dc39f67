"""Printing: data goes to standard output, messages go to standard error."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime, tzinfo
from functools import cache
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from packhorse.core import json
from packhorse.errors import PackhorseError
from packhorse.log import escape

WIDE = 400  # columns if the output is not a terminal: a piped table must not be cut

NARROW = 24  # minimum width of the last column of a table

STYLES = {"completed": "green", "failed": "red", "cancelled": "yellow", "running": "cyan", "pending": "dim"}
STYLES |= {
    "not started": "dim",
    "alive": "green",
    "draining": "yellow",
    "silent": "red",
    "lost": "red",
    "paused": "yellow",
    "no worker": "red",
    "BAD": "red",
}
ROLES = {"serve": "blue", "worker": "magenta", "dev": "green"}


COLOUR = re.compile(r"(\x1b\[[0-9;:]*m)")
SEQUENCE = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|[\]P^_X][^\x07\x1b]*(?:\x07|\x1b\\)?)")
"""What moves the cursor, and commands with a text."""


@cache
def out() -> Console:
    return _console(None if sys.stdout.isatty() else WIDE)


@cache
def err() -> Console:
    return Console(stderr=True, highlight=False, soft_wrap=True)


def document(value: Any) -> None:
    """One JSON document on one line."""
    sys.stdout.write(json.encode(value).decode() + "\n")
    sys.stdout.flush()


def plain(text: str) -> None:
    out().print(Text(escape(text)))


def table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Wraps only the last column; the others keep their width even if the terminal is narrower."""
    shown = Table(box=None, pad_edge=False, header_style="bold")
    cells = [[cell(value) for value in row] for row in rows]
    width = NARROW
    for i, header in enumerate(columns):
        widest = max([len(header), *(len(row[i]) for row in cells)])
        is_last = i == len(columns) - 1
        shown.add_column(header, no_wrap=not is_last)
        width += 0 if is_last else widest + 2
    for row in cells:
        shown.add_row(*row)
    _console(max(width, out().width)).print(shown)


def facts(pairs: Mapping[str, object]) -> None:
    width = max(map(len, pairs))
    for name, value in pairs.items():
        out().print(Text.assemble((name.ljust(width), "bold"), "  ", cell(value)))


def cell(value: object) -> Text:
    word = "" if value is None else escape(str(value))
    return Text(word, style=STYLES.get(word, ""))


def clock(at: str | None, zone: tzinfo | None = None) -> str:
    """A time to the second, in the local time zone if none is given."""
    if at is None:
        return ""
    found = datetime.fromisoformat(at)
    with suppress(OverflowError):  # the last second of the year 9999, east of Greenwich
        found = found.astimezone(zone)
    return found.strftime("%Y-%m-%d %H:%M:%S")


def prose(text: str) -> str:
    """Remove backticks around names; a single backtick stays."""
    return re.sub(r"`([^`]*)`", r"\1", text)


def message(text: str) -> None:
    err().print(Text(escape(text)))


def report_wait(seconds: float, error: PackhorseError) -> None:
    message(f"{error.message} Waiting {seconds:.0f} s, as the server asks.")


def forward(name: str, text: str) -> None:
    """Print lines of a child process with its name in front."""
    for each in text.splitlines():
        line(name, each)


def line(name: str, text: str) -> None:
    """Print one line. Of a line that overwrites itself, as a progress bar does, print the last state.

    Colours stay. A stage's text can do nothing else to the terminal: move the cursor, set the title, copy.
    """
    text = "".join(
        part if i % 2 else escape(SEQUENCE.sub("", part), keep="\r\t")
        for i, part in enumerate(COLOUR.split(text.removesuffix("\r")))
    )
    out().print(Text.assemble((f"{name:6} ", ROLES.get(name, "cyan")), ("│ ", "dim"), Text.from_ansi(text)))


def _console(width: int | None) -> Console:
    return Console(width=width, highlight=False, soft_wrap=True)
