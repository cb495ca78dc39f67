"""Follows a running job: a bar per stage on a terminal, a line per step elsewhere; and the exit code."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from packhorse.cli import output
from packhorse.client import Client, Json
from packhorse.log import escape
from packhorse.web.widgets.formatting import percent

EXIT = {"completed": 0, "failed": 1, "cancelled": 4}
DETACHED = 130

STEPS = {
    "started": "run {run} started",
    "stage_started": "{where} started",
    "stage_completed": "{where} completed",
    "stage_failed": "{where} failed: {why}",
    "retrying": "retrying {where}: {why}",
}


def follow_job(client: Client, job_id: str, *, json: bool = False) -> Json | None:
    """The job once it has ended; None if the user pressed Ctrl-C. A job retried meanwhile is followed further."""
    after = 0
    try:
        with _printer(json) as tell:
            while True:
                for event in client.events(job_id, after=after):
                    after = event["n"] or after
                    tell(event)
                job: Json = client.get(job_id)
                if job["status"] in EXIT:
                    return job
    except KeyboardInterrupt:
        output.message(f"The job continues. Follow it again with: packhorse show {job_id} --follow")
        return None


def report_end(job: Json) -> int:
    """Print how the job ended and what to do next; return the exit code."""
    job_id, error = job["job_id"], job["error"] or {}
    match job["status"]:
        case "completed":
            output.message(f"Job {job_id} is completed. Its result: packhorse result {job_id}")
        case "failed":
            where = f" in {error['stage']}" if error.get("stage") else ""  # a deadline is no stage's
            output.message(f"Job {job_id} failed{where}: {error.get('code')}: {error.get('message')}")
            output.message(f"See what it printed: packhorse logs {job_id}; then: packhorse retry {job_id}")
        case "cancelled":
            output.message(f"Job {job_id} was cancelled. Start it again with: packhorse retry {job_id}")
    return EXIT[job["status"]]


def place(data: Json) -> str:
    """The stage that an event or a line of log is about, with its element if it has several."""
    element = f"[{data['element']}]" if data.get("element") is not None else ""
    return f"{data.get('stage') or 'all'}{element}"


@contextmanager
def _printer(json: bool) -> Iterator[Callable[[Json], None]]:
    if json:
        yield output.document
    elif sys.stderr.isatty():
        with Bars() as bars:
            yield bars.tell
    else:
        yield _print_step


def _print_step(event: Json) -> None:
    """For a log file: events, no progress."""
    if event["type"] in STEPS:
        data = event["data"]
        why = data.get("message") or data.get("why")
        output.message(STEPS[event["type"]].format(where=place(data), why=why, run=data.get("run")))


class Bars:
    def __init__(self) -> None:
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.fields[percent]:>5}"),
            TimeElapsedColumn(),
            TextColumn("{task.fields[message]}", style="dim", markup=False),
            console=output.err(),
        )
        self._bars: dict[str, TaskID] = {}

    def __enter__(self) -> Bars:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def tell(self, event: Json) -> None:
        """Events with the state of the stages move the bars. The last event has none, so completion fills every bar."""
        for name, stage in (event["data"].get("stages") or {}).items():
            self._move(name, stage)
        if event["type"] == "completed":
            for name in self._bars:
                self._move(name, {"status": "completed", "progress": 100.0})

    def _move(self, name: str, stage: Json) -> None:
        message = _message(stage)
        if name not in self._bars:
            self._bars[name] = self._progress.add_task(name, start=False, total=100.0, message=message, percent="")
        bar = self._bars[name]
        if stage["status"] not in ("pending", "skipped"):
            self._progress.start_task(bar)
        how_far = percent(stage["progress"])
        self._progress.update(bar, completed=stage["progress"], message=message, percent=how_far)


def _message(stage: Json) -> str:
    elements = stage.get("elements")
    count = f"{elements['completed']} of {elements['total']} " if elements and elements["total"] else ""
    return count + escape(stage.get("message") or "")
