"""Follows a running job: a bar per stage on a terminal, a line per stage elsewhere; and the exit code."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from packhorse.cli import output
from packhorse.client import Client, Json
from packhorse.log import escape
from packhorse.plurals import counted
from packhorse.web.widgets import formatting

EXIT = {"completed": 0, "failed": 1, "cancelled": 4}
DETACHED = 130
DONE = 100.0

ENDED = ("completed", "failed", "cancelled", "skipped")  # a stage has one of these when it is over
AGAIN = ("retry", "revive")  # why a new run begins


def follow_job(client: Client, job_id: str, *, json: bool = False, is_new: bool = False) -> Json | None:
    """The job once it has ended; None if the user pressed Ctrl-C. A job retried meanwhile is followed further."""
    after = 0
    try:
        if is_new:
            output.message(f"Submitted job {job_id}.")
        with _printer(json) as tell:
            while True:
                events = client.events(job_id, after=after)
                for event in events if after else current_run(events):
                    after = event["n"] or after
                    tell(event)
                job: Json = client.get(job_id)
                if job["status"] in EXIT:
                    if not json:  # the last events do not say how each stage ended
                        tell({"n": None, "type": "snapshot", "data": job})
                    return job
    except KeyboardInterrupt:
        output.message(f"The job continues. Follow it again with: packhorse show {job_id} --follow")
        return None


def current_run(events: Iterator[Json]) -> Iterator[Json]:
    """Leave out what happened in earlier runs. ``events`` are all of a job, after its snapshot."""
    run, last, is_earlier = 1, 0, False
    for event in events:
        data, n = event["data"], event["n"]
        if event["type"] == "snapshot":
            if not last:  # the first of them; there are more after a reconnect
                run, last = data.get("run", 1), data.get("last_event", 0)
                is_earlier = run > 1
        elif n is not None:
            is_start = event["type"] == "retrying" and data.get("why") in AGAIN and data["run"] >= run
            is_earlier = is_earlier and not is_start and n <= last
        if not is_earlier or event["type"] in ("snapshot", "progress"):
            yield event


def report_end(job: Json, *, is_saved: bool = False) -> int:
    """Print how the job ended and what to do next; return the exit code. ``is_saved``: its result is downloaded now."""
    job_id, error = job["job_id"], job["error"] or {}
    match job["status"]:
        case "completed":
            following = "" if is_saved else f" Get the result with: packhorse result {job_id}"
            output.message(f"Job {job_id} completed.{following}")
        case "failed":
            where = f" in {error['stage']}" if error.get("stage") else ""  # a deadline is no stage's
            output.message(f"Job {job_id} failed{where}: {error.get('code')}: {error.get('message')}")
            output.message(f"See its log with: packhorse logs {job_id}. Retry it with: packhorse retry {job_id}")
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
        yield Lines().tell


class Lines:
    """For a log file: a line for each stage when it has ended."""

    def __init__(self) -> None:
        self._run = 0
        self._told: set[str] = set()
        self._starts: dict[str, str] = {}  # when the first task of the stage started; a retried task starts again

    def tell(self, event: Json) -> None:
        data = event["data"]
        if (run := data.get("run", 0)) > self._run:
            self._run, self._told, self._starts = run, set(), {}
        if event["type"] == "stage_started":
            self._starts.setdefault(data["stage"], data["at"])
        for name, stage in (data.get("stages") or {}).items():
            if stage["status"] in ENDED and name not in self._told:
                self._told.add(name)
                output.message(self._line(name, stage))

    def _line(self, name: str, stage: Json) -> str:
        if stage["status"] == "skipped":
            return f"{name} {status(stage)}: {stage['reason']}"
        start = formatting.moment(self._starts.get(name, stage["started_at"]))
        end = formatting.moment(stage["completed_at"])
        took = None if start is None or end is None else formatting.milliseconds(1000 * (end - start).total_seconds())
        said = f"{name} {stage['status']}" + ("" if took is None else f" in {took}")
        elements = stage.get("elements") or {}
        total = elements.get("total")
        facts = [f"{elements['completed']} of {counted(total, 'element')}"] if total else []
        facts += [f"{elements['failed']} failed"] if elements.get("failed") else []
        facts += [counted(stage["attempt"], "attempt")] if stage["attempt"] > 1 else []
        return f"{said}: {', '.join(facts)}" if facts else said


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
        self._run = 0

    def __enter__(self) -> Bars:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def tell(self, event: Json) -> None:
        if (run := event["data"].get("run", 0)) > self._run:
            self._run = run
            for bar in self._bars.values():  # the time of each stage counts from its start in this run
                self._progress.reset(bar, start=False)
        for name, stage in (event["data"].get("stages") or {}).items():
            self._move(name, stage)

    def _move(self, name: str, stage: Json) -> None:
        said = escape(message(stage))
        if name not in self._bars:
            self._bars[name] = self._progress.add_task(name, start=False, total=100.0, message=said, percent="")
        bar = self._bars[name]
        if stage["status"] not in ("pending", "skipped"):
            self._progress.start_task(bar)
        how_far = formatting.percent(stage["progress"])
        self._progress.update(bar, completed=stage["progress"], message=said, percent=how_far)


def status(stage: Json) -> str:
    """The word that is shown for it."""
    is_unstarted = stage["status"] == "skipped" and stage["progress"] < DONE  # skipped on purpose, it counts as done
    return "not started" if is_unstarted else str(stage["status"])


def message(stage: Json) -> str:
    """How many elements are done, what the stage reports, and why it or some elements never started."""
    elements = stage.get("elements") or {}
    parts = [f"{elements['completed']} of {elements['total']}"] if elements.get("total") else []
    parts += [f"{elements['failed']} failed"] if elements.get("failed") else []
    if stage.get("message"):
        parts.append(stage["message"])
    if stage.get("reason"):
        word = status(stage) if stage["status"] == "skipped" else "not started"
        parts.append(f"{elements.get('skipped') or ''} {word}: {stage['reason']}".strip())
    return ", ".join(parts)
