"""`packhorse top`: queues, workers, running jobs and failures as they are now, until somebody has seen enough."""

from __future__ import annotations

import contextlib
import os
import select
import sys
import termios
import time
import tty
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from packhorse.cli import output
from packhorse.cli.commands.operations import WORKER_COLUMNS, overview, percentiles, waiting, worker_row
from packhorse.cli.options import Remote
from packhorse.client import Client, Json
from packhorse.errors import Unreachable
from packhorse.log import escape
from packhorse.web.widgets.formatting import percent

PERIOD = 1.0  # seconds between looks
RECENT = "5m"
MOST_JOBS = 15
MOST_FAILURES = 5
LEAVE = {"q", "Q", "\x03", "\x04"}


def top(*, once: bool = False, remote: Remote = Remote()) -> None:
    """Watch queues, workers, running jobs and failures. Press q to quit.

    Args:
        once: Print the current state and exit. Default if the output is not a terminal.
    """
    with Client(remote.url) as client:
        if remote.json:
            output.document(_read(client))
        elif once or not sys.stdout.isatty():
            output.out().print(_page(_read(client)))
        else:
            _watch(client)


def _read(client: Client) -> Json:
    """One look: a few calls, none of which costs more the more jobs there are."""
    return {
        "stats": client.stats(window=RECENT),
        "queues": client.queues(),
        "workers": client.workers(),
        "running": client.list(status="running", limit=MOST_JOBS)["items"],
        "failed": client.list(status="failed", limit=MOST_FAILURES)["items"],
    }


def _watch(client: Client) -> None:
    page: RenderableType = Text("…")
    with _keys() as leaves, Live(page, console=output.out(), screen=True, auto_refresh=False) as live:
        while not leaves(0.0):
            try:
                page = _page(_read(client))
            except Unreachable as error:
                page = Text(f"{escape(error.message)} Retrying.", style="red")
            live.update(page, refresh=True)
            if leaves(PERIOD):
                return


@contextlib.contextmanager
def _keys() -> Iterator[Callable[[float], bool]]:
    """Single keys, without Enter; whether one that leaves was pressed within so many seconds."""
    if not sys.stdin.isatty():
        yield _sleep
        return
    number = sys.stdin.fileno()
    before = termios.tcgetattr(number)
    tty.setcbreak(number)
    try:
        yield lambda wait: _is_pressed(number, wait)
    finally:
        termios.tcsetattr(number, termios.TCSADRAIN, before)


def _sleep(wait: float) -> bool:
    time.sleep(wait)
    return False


def _is_pressed(number: int, wait: float) -> bool:
    until = time.monotonic() + wait
    while select.select([number], [], [], max(0.0, until - time.monotonic()))[0]:
        pressed = os.read(number, 16).decode(errors="ignore")
        if not pressed or LEAVE & set(pressed):
            return True
    return False


# What it looks like.


def _page(found: Json) -> RenderableType:
    stats = found["stats"]
    facts = Text("\n").join(
        Text.assemble((f"{name:8}", "bold"), value) for name, value in (*overview(stats).items(), _rates(stats))
    )
    parts: list[RenderableType] = [Text(f"packhorse  {output.clock(stats['at'])}", style="bold"), facts]
    parts += _section("queues", ("queue", "ready", "oldest", "running", "per minute", "waited", ""), _queues(found))
    parts += _section("workers", WORKER_COLUMNS, map(worker_row, found["workers"]))
    parts += _section("running", ("job", "pipeline", "user", "stage", "", ""), map(_running_row, found["running"]))
    parts += _section("failed last", ("job", "pipeline", "when", "why"), map(_failed_row, found["failed"]))
    return Group(*parts)


def _rates(stats: Json) -> tuple[str, str]:
    window = stats["window"]
    return "rate", f"{window['per_minute']:g} jobs a minute over {RECENT}; took {percentiles(window['run_seconds'])}"


def _section(title: str, columns: Sequence[str], rows: Iterator[Any]) -> list[RenderableType]:
    table = Table(box=None, pad_edge=False, header_style="dim")
    for column in columns:
        table.add_column(column, no_wrap=column != columns[-1])
    for row in rows:
        table.add_row(*(cell if isinstance(cell, ProgressBar) else output.cell(cell) for cell in row))
    shown: RenderableType = table if table.row_count else Text("none", style="dim")
    return [Text(f"\n{title}", style="bold"), shown]


def _queues(found: Json) -> Iterator[Sequence[object]]:
    for each in found["queues"]:
        ready, oldest, waited = waiting(each)
        running = f"{each['running']}/{each['slots']}"
        paused = "paused" if each["paused"] else ""
        yield each["name"], ready, oldest, running, f"{each['per_minute']:g}", waited, paused


def _running_row(job: Json) -> Sequence[object]:
    bar = ProgressBar(total=100.0, completed=job["progress"], width=20)
    return job["job_id"], job["pipeline"], job["user_id"], job["stage"], bar, percent(job["progress"])


def _failed_row(job: Json) -> Sequence[object]:
    error = job["error"] or {}
    ended_at = (job["completed_at"] or "")[11:19]
    return job["job_id"], job["pipeline"], ended_at, f"{error.get('code')}: {error.get('message')}"
