"""What the page of a job shows: when stages waited and ran, events in words, log lines, usage, commands, files."""

from __future__ import annotations

import json
import shlex
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from math import inf
from typing import Any, NamedTuple

from packhorse.core.models import Artifact
from packhorse.schemas.jobs import artifact_to_json
from packhorse.store.base import Line
from packhorse.web.widgets import formatting, plots

Json = Any
Task = tuple[str, int]

EVENT_TEXTS = {
    "submitted": "Submitted",
    "started": "Run {run} started",
    "stage_started": "{where} started, attempt {attempt}",
    "stage_completed": "{where} completed",
    "stage_failed": "{where} failed permanently",
    "stage_skipped": "{where} was skipped",
    "replaced": "Replaced by job {by}",
    "cancelling": "Cancelling",
    "completed": "Completed",
    "failed": "Failed",
    "cancelled": "Cancelled",
}
RETRY_TEXTS = {
    "retry": "Retry started (run {run})",
    "revive": "Automatic retry started (run {run})",
    "later": "{where} postponed itself",
    "handed_back": "{where} returned to the queue by its worker",
}
LEFT_OUT = "{where} failed permanently and is left out"
TRIED_AGAIN = "Retrying {where}"
AGAIN = ("retry", "revive")  # why a new run begins
ENDS = ("completed", "failed", "cancelled")
MOST = 300  # spans drawn of one stage: a thousand elements look like a bar anyway
LEAST = 0.001
AREA_POINTS = 300  # of what ran at once
ROUND = (0.01, 0.05, 0.1, 0.25, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 1800, 3600, 7200, 21_600, 43_200, 86_400)
"""Seconds between two marks of a timeline."""
LOST = "WORKER_LOST"
POINTS = 120  # of a plot of CPU or memory


class Span(NamedTuple):
    kind: str
    """wait, run, failed or lost (the attempt was), off (it was handed back, or asked to be called later)."""
    x: float
    width: float  # both in seconds, from the begin of the run
    title: str
    is_live: bool = False
    """It continues."""


class Row(NamedTuple):
    spans: list[Span]
    waited: float | None
    """Seconds from when it could begin to its first start, or until now; None if it never could."""
    took: float | None
    """Seconds from the first start to the last end; None if it has not started."""
    start: float | None
    end: float | None  # in shares of the whole
    area: str = ""
    """Of a stage that runs once per element: how many ran at once, as a path that is ten high."""
    peak: int = 0
    """How many that were at most."""


class Timeline(NamedTuple):
    begin: datetime
    seconds: float
    """From the begin of the run to its end, or to now."""
    rows: Mapping[str, Row]
    marks: Sequence[tuple[float, str]]
    """Where a line stands, in percent, and its time."""


def timeline(
    job: Json,
    events: Sequence[Json],
    needs: Mapping[str, Sequence[str]],
    now: datetime,
    many: Mapping[str, Sequence[tuple[float, float | None]]] | None = None,
) -> Timeline:
    """The current run. ``needs`` says what a stage waits for, as far as that is known; ``many`` when each element of a
    stage started and ended, which the newest events need not tell.
    """
    retries = [at for at, event in enumerate(events) if event["type"] == "retrying" and event.get("why") in AGAIN]
    mine = events[retries[-1] :] if retries else events
    is_cut = bool(events) and events[0].get("n", 1) > 1 and not retries
    told = mine[0]["at"] if mine and not is_cut else job["started_at"] if is_cut else job["created_at"]
    begin = formatting.moment(told) or now
    reading = _Reading(begin, needs)
    for event in mine:
        reading.take(event)
    end = formatting.moment(job["completed_at"]) or now
    if job["status"] not in ENDS:
        reading.go_on(job["stages"], end)
    seconds = max((end - begin).total_seconds(), LEAST)
    rows = {}
    for name in job["stages"]:
        row = reading.row(name, end)
        times = [(start - begin.timestamp(), stop) for start, stop in (many or {}).get(name, ())]
        if times:
            ran = [(start, seconds if stop is None else stop - begin.timestamp()) for start, stop in times]
            row = _of_many(row, ran, seconds)
        rows[name] = row
    return Timeline(begin, seconds, rows, _marks(seconds))


def _of_many(row: Row, ran: Sequence[tuple[float, float]], seconds: float) -> Row:
    """The row of a stage with elements: what all of them together have done, and the attempts that came to nothing."""
    first, last = max(0.0, min(start for start, _ in ran)), max(stop for _, stop in ran)
    spans = [span for span in row.spans if span.kind not in ("run", "wait")]
    area, peak = _area(ran, seconds)
    waited = None if row.waited is None else min(row.waited, first)
    return Row(spans, waited, last - first, first / seconds, min(1.0, last / seconds), area, peak)


def _area(ran: Sequence[tuple[float, float]], seconds: float) -> tuple[str, int]:
    """How many ran at once, at so many points that a row can show them; and how many that were at most."""
    starts, stops = sorted(start for start, _ in ran), sorted(stop for _, stop in ran)
    width, begun, ended, peak = seconds / AREA_POINTS, 0, 0, 0
    levels: list[int] = []
    for point in range(1, AREA_POINTS + 1):
        most, end = begun - ended, point * width if point < AREA_POINTS else inf
        while begun < len(starts) and starts[begun] <= end:
            ended = bisect_right(stops, starts[begun], ended)
            begun += 1
            most = max(most, begun - ended)
        ended = bisect_right(stops, end, ended)
        levels.append(most)
        peak = max(peak, most)
    path, before = "M0 10", 0
    for point, level in enumerate(levels):
        if level != before:
            path += f"H{_digits(point * width)}V{_digits(10 - 9 * level / max(peak, 1))}"
        before = level
    return f"{path}H{_digits(seconds)}V10Z", peak


def _digits(value: float) -> str:
    return f"{value:.6g}"


def _marks(seconds: float) -> list[tuple[float, str]]:
    """Four to eight round times."""
    step = next((each for each in ROUND if seconds / each <= 8), 10 ** (len(str(int(seconds))) - 1))
    return [(100 * at * step / seconds, formatting.duration(at * step)) for at in range(1, int(seconds / step) + 1)]


class _Reading:
    def __init__(self, begin: datetime, needs: Mapping[str, Sequence[str]]) -> None:
        self._begin = begin
        self._needs = needs
        self._ready: dict[Task, datetime] = {}
        self._running: dict[Task, tuple[datetime, int]] = {}
        self._done: dict[str, datetime] = {}
        self._found: dict[str, list[tuple[str, datetime, datetime, str]]] = {}
        self._started: set[Task] = set()
        self._live: set[str] = set()

    def take(self, event: Json) -> None:
        at = formatting.moment(event["at"])
        assert at is not None
        if event["type"] in ENDS:
            for running in list(self._running):
                self._close(running, "off", at, " was stopped")
        if "stage" not in event:
            return
        task = event["stage"], event.get("element") or 0
        match event["type"]:
            case "stage_started":
                if task not in self._started:  # between two attempts it is not waiting for its turn
                    self._add(task, "wait", self._ready_at(task), at, "waited")
                self._started.add(task)
                self._running[task] = at, event.get("attempt", 1)
            case "stage_completed":
                self._close(task, "run", at, "")
                self._done[task[0]] = at
            case "stage_skipped":
                self._close(task, "off", at, ": skipped")
                self._done[task[0]] = at
            case "stage_failed":
                self._close(task, _kind(event), at, _reason(event))
            case "retrying" if event.get("why") not in AGAIN:
                self._close(task, _kind(event), at, _reason(event))
                self._ready[task] = at

    def go_on(self, stages: Json, now: datetime) -> None:
        """What runs, and what waits for a worker, does so until now."""
        for task in list(self._running):
            self._live.add(task[0])
            self._close(task, "run", now, " so far")
        for name, stage in stages.items():
            needed = self._needs.get(name, ())
            if stage["status"] == "pending" and all(
                stages.get(each, stage)["status"] in ("completed", "skipped") for each in needed
            ):
                self._add((name, 0), "wait", self._ready_at((name, 0)), now, "waits for")

    def row(self, name: str, end: datetime) -> Row:
        whole = max((end - self._begin).total_seconds(), LEAST)
        found = self._found.get(name, [])
        spans = [
            Span(kind, self._at(start), self._at(stop) - self._at(start), title, stop == end and name in self._live)
            for kind, start, stop, title in found[:MOST]
        ]
        waits = [(start, stop) for kind, start, stop, _ in found if kind == "wait"]
        ran = [(start, stop) for kind, start, stop, _ in found if kind != "wait"]
        if not ran:
            return Row(spans, _seconds(*waits[0]) if waits else None, None, None, None)
        first, last = min(start for start, _ in ran), max(stop for _, stop in ran)
        ready = min([first, *(start for start, _ in waits)])
        shares = self._share(first, whole) / 100, self._share(last, whole) / 100
        return Row(spans, _seconds(ready, first), _seconds(first, last), *shares)

    def _share(self, at: datetime, whole: float) -> float:
        return round(min(100.0, max(0.0, 100 * (at - self._begin).total_seconds() / whole)), 2)

    def _at(self, moment: datetime) -> float:
        return max(0.0, round((moment - self._begin).total_seconds(), 3))

    def _ready_at(self, task: Task) -> datetime:
        if task in self._ready:
            return self._ready[task]
        return max([self._begin, *(self._done[name] for name in self._needs.get(task[0], ()) if name in self._done)])

    def _close(self, task: Task, kind: str, at: datetime, how: str) -> None:
        if (begun := self._running.pop(task, None)) is not None:
            start, attempt = begun
            self._add(task, kind, start, at, f"attempt {attempt}{how},")

    def _add(self, task: Task, kind: str, start: datetime, stop: datetime, what: str) -> None:
        if stop > start:
            title = f"{task[0]}: {what} {formatting.duration(_seconds(start, stop))}"
            self._found.setdefault(task[0], []).append((kind, start, stop, title))


def _kind(event: Json) -> str:
    """Of an attempt that came to nothing."""
    return "lost" if event.get("code") == LOST else "failed" if event.get("code") else "off"


def _reason(event: Json) -> str:
    if event.get("code") == LOST:
        return f" was lost ({event.get('message') or 'its worker is gone'})"
    return f": {event.get('code') or event.get('why')}"


def _seconds(start: datetime, stop: datetime) -> float:
    return (stop - start).total_seconds()


def partial_text(partial: Any) -> str:
    """How many elements were left out; empty if none."""
    return "" if partial is None else f"{partial['failed']:,} of {partial['of']:,} elements failed and were left out"


def line_parts(line: Line) -> list[Any]:
    """A line of a log for the script of the page: number, time, stage, element, level, and its text with its styles."""
    at = datetime.fromtimestamp(line.at, UTC).strftime("%H:%M:%S")
    return [line.n, at, *line.task, formatting.level(line.text), formatting.styled(line.text)]


def event_text(event: Any) -> dict[str, Any]:
    """What happened and, if it is said, why."""
    what = EVENT_TEXTS.get(event["type"], event["type"])
    if event.get("tolerated"):
        what = LEFT_OUT
    if event["type"] == "retrying":
        what = RETRY_TEXTS.get(event.get("why", ""), TRIED_AGAIN)
    facts = {"run": event.get("run", ""), "attempt": event.get("attempt", ""), "where": _where(event)}
    why = ": ".join(str(event[name]) for name in ("code", "message", "reason") if event.get(name))
    return {
        "n": event["n"],
        "at": event["at"],
        "what": what.format(**facts),
        "why": why,
        "worker": event.get("worker", ""),
        "not_before": event.get("not_before") if event["type"] == "retrying" else None,
    }


def _where(event: Any) -> str:
    element = event.get("element")
    return f"{event.get('stage') or 'the job'}" + (f"[{element}]" if element is not None else "")


def usage_plots(
    series: Sequence[Any], rows: Mapping[str, Row], begin: str | None, end: str | None
) -> dict[str, plots.Plot]:
    """What all tasks of the run used together, from its begin to its end, or to now; with the stages behind it."""
    first, last = formatting.moment(begin), formatting.moment(end) or datetime.now(UTC)
    if first is None or not series:
        return {}
    step = max((last - first).total_seconds(), 0.001) / (POINTS - 1)
    tasks = [[(_seconds(first, datetime.fromisoformat(each["at"])), each) for each in one["samples"]] for one in series]
    at = [step * number for number in range(POINTS)]
    times = [datetime.fromtimestamp(first.timestamp() + each, UTC).strftime("%H:%M:%S") for each in at]
    bands = [(name, row.start, row.end) for name, row in rows.items() if row.start is not None and row.end is not None]

    def drawn(what: str, say: Any, least: float) -> plots.Plot:
        values = {what: [_together(tasks, each, what) for each in at]}
        return plots.lines(values, times, say, bands=bands, least=least)

    return {"cpu": drawn("cpu", lambda cores: f"{cores:g}", 0.1), "memory": drawn("memory_bytes", formatting.size, 1.0)}


def _together(tasks: Sequence[Sequence[tuple[float, Any]]], at: float, what: str) -> float | None:
    """Of all tasks that were being measured then; None if there was none."""
    measured = [samples for samples in tasks if samples and samples[0][0] <= at <= samples[-1][0]]
    latest = [next(sample[what] for when, sample in reversed(samples) if when <= at) for samples in measured]
    return sum(latest) if latest else None


# Commands that would submit the job again. There is no key in any of them: people have it in ``PACKHORSE_KEY``.


def commands(job: Json, at: str, *, has_keys: bool) -> dict[str, str]:
    """By the name that a person chooses from. ``at`` is where the server is."""
    return {"curl": _curl(job, at, has_keys), "Python": _python(job, at), "CLI": _cli(job, at)}


def _curl(job: Json, at: str, has_keys: bool) -> str:
    words = ["curl"]
    if has_keys:
        words.append('-H "Authorization: Bearer $PACKHORSE_KEY"')
    values, files = _divided(job)
    if files:
        words += [f"--form-string {shlex.quote(f'{name}={job[name]}')}" for name in ("pipeline", "user_id")]
        words += [f"--form-string {shlex.quote(f'parameters={_json(values)}')}"] if values else []
        words += [f"-F {shlex.quote(f'{name}=@{_escaped(each)}')}" for name, each in files]
    else:
        asked = {"pipeline": job["pipeline"], "user_id": job["user_id"], "parameters": values}
        words += ["-H 'Content-Type: application/json'", f"-d {shlex.quote(_json(asked))}"]
    return " \\\n  ".join([*words, shlex.quote(f"{at}/api/v1/jobs")])


def _python(job: Json, at: str) -> str:
    values, files = _divided(job)
    given = [repr(job["pipeline"]), repr(values)]
    if files:
        named = {name: job["parameters"][name] for name, _ in files}
        given.append(f"files={named!r}")
    given.append(f"user={job['user_id']!r}")
    return (
        "from packhorse.client import Client\n\n"
        f"with Client({at!r}) as client:\n"
        f"    job = client.submit({', '.join(given)})\n"
        '    print(client.wait(job["job_id"])["result"])\n'
    )


def _cli(job: Json, at: str) -> str:
    values, files = _divided(job)
    words = [f"PACKHORSE_URL={shlex.quote(at)} packhorse submit {shlex.quote(job['pipeline'])}"]
    words.append(shlex.quote(f"--user={job['user_id']}"))
    words += [shlex.quote(f"{name}=@{each}") for name, each in files]
    words += [shlex.quote(f"{name}={_word(value)}") for name, value in values.items() if value is not None]
    return " \\\n  ".join([*words, "--wait"])


def _divided(job: Json) -> tuple[dict[str, Any], list[tuple[str, str]]]:
    """The values, and the files by the names they came with."""
    files = [(each["parameter"], each["filename"]) for each in job["inputs"]]
    names = {name for name, _ in files}
    return {name: value for name, value in job["parameters"].items() if name not in names}, files


def _word(value: Any) -> str:
    if not isinstance(value, str):
        return _json(value)
    return f"@{value}" if value.startswith("@") else value


def _escaped(name: str) -> str:
    """A name for curl, to which a comma and a semicolon would mean something."""
    return '"' + name.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


# Files and values.

TEXT = 65_536  # characters of a value that are shown; a result may be four times as large
LARGEST_IMAGE = 20 * 1024**2  # bytes of an image that a browser is made to load at once

KINDS = {
    "image/gif": "image",
    "image/jpeg": "image",
    "image/png": "image",
    "image/webp": "image",
    "text/csv": "table",
    "text/tab-separated-values": "table",
    "application/json": "json",
    "application/xml": "text",
    "application/javascript": "text",
    "application/x-yaml": "text",
    "application/yaml": "text",
    "image/svg+xml": "text",
}
"""How a file is shown: what could carry a script, as the text it is."""
PLAYED = ("audio/flac", "audio/mpeg", "audio/ogg", "audio/wav", "audio/x-wav", "video/mp4", "video/webm")


def file_preview(artifact: Artifact) -> dict[str, Any]:
    """A file with ``kind``: how a browser can show it, None if it cannot."""
    document = artifact_to_json(artifact)
    return {**document, "kind": _preview_kind(document["content_type"], document["size_bytes"])}


def _preview_kind(content_type: str, size: int) -> str | None:
    named = content_type.partition(";")[0].strip().lower()
    if named in PLAYED:
        return named.partition("/")[0]
    found = KINDS.get(named) or ("text" if named.startswith("text/") else None)
    return None if found == "image" and size > LARGEST_IMAGE else found


def readable(value: Any) -> dict[str, Any]:
    """JSON for the eyes, and whether that is all of it."""
    text = json.dumps(value, indent=2, ensure_ascii=False)
    return {"text": text[:TEXT], "is_cut": len(text) > TEXT}
