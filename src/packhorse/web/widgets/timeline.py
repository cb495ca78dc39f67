"""When each stage of a run waited and ran, read from the events of its job: spans in shares of the time it took."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from packhorse.web.widgets import formatting

Json = Any
Task = tuple[str, int]

AGAIN = ("retry", "revive")
"""Why a new run begins."""
ENDS = ("completed", "failed", "cancelled")
MOST = 300
"""Spans drawn of one stage: a thousand elements are a bar all the same."""
LEAST = 0.001


class Span(NamedTuple):
    kind: str
    """wait, run, failed (the attempt was), off (it was handed back, or asked to be called later)."""
    x: float
    width: float
    """Both in percent of the whole."""
    title: str


class Row(NamedTuple):
    spans: list[Span]
    waited: float | None
    """Seconds from when it could begin to its first start, or until now; None if it never could."""
    took: float | None
    """Seconds from the first start to the last end, by the clock; None if it has not begun."""
    start: float | None
    end: float | None
    """In shares of the whole."""


def rows(job: Json, events: Sequence[Json], needs: Mapping[str, Sequence[str]], now: datetime) -> dict[str, Row]:
    """For each stage of the current run. ``needs`` says what a stage waits for, as far as that is known."""
    mine = _of_this_run(events)
    begin = formatting.moment(mine[0]["at"] if mine else job["created_at"]) or now
    reading = _Reading(begin, needs)
    for event in mine:
        reading.take(event)
    end = formatting.moment(job["completed_at"]) or now
    if job["status"] not in ENDS:
        reading.go_on(job["stages"], end)
    return {name: reading.row(name, end) for name in job["stages"]}


def _of_this_run(events: Sequence[Json]) -> Sequence[Json]:
    begins = [at for at, event in enumerate(events) if event["type"] == "retrying" and event.get("why") in AGAIN]
    return events[begins[-1] :] if begins else events


class _Reading:
    def __init__(self, begin: datetime, needs: Mapping[str, Sequence[str]]) -> None:
        self._begin = begin
        self._needs = needs
        self._ready: dict[Task, datetime] = {}
        self._running: dict[Task, tuple[datetime, int]] = {}
        self._done: dict[str, datetime] = {}
        self._found: dict[str, list[tuple[str, datetime, datetime, str]]] = {}

    def take(self, event: Json) -> None:
        at = formatting.moment(event["at"])
        assert at is not None
        if "stage" not in event or event["type"] not in (
            "stage_started",
            "stage_completed",
            "stage_failed",
            "retrying",
        ):
            if event["type"] in ENDS:
                self._stop(at)
            return
        task = event["stage"], event.get("element") or 0
        match event["type"]:
            case "stage_started":
                self._add(task, "wait", self._ready_at(task), at, "waited")
                self._running[task] = at, event.get("attempt", 1)
            case "stage_completed":
                self._close(task, "run", at, "")
                self._done[task[0]] = at
            case "stage_failed":
                self._close(task, "failed", at, f": {event.get('code')}")
            case "retrying" if event.get("why") not in AGAIN:
                self._close(
                    task, "failed" if event.get("code") else "off", at, f": {event.get('code') or event['why']}"
                )
                self._ready[task] = at

    def go_on(self, stages: Json, now: datetime) -> None:
        """What runs, and what waits for a worker, does so until now."""
        for task in list(self._running):
            self._close(task, "run", now, " so far")
        for name, stage in stages.items():
            needed = self._needs.get(name, ())
            if stage["status"] == "pending" and all(
                stages.get(each, stage)["status"] == "completed" for each in needed
            ):
                self._add((name, 0), "wait", self._ready_at((name, 0)), now, "waits for")

    def row(self, name: str, end: datetime) -> Row:
        whole = max((end - self._begin).total_seconds(), LEAST)
        found = self._found.get(name, [])
        spans = [
            Span(kind, self._share(start, whole), self._share(stop, whole) - self._share(start, whole), title)
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

    def _ready_at(self, task: Task) -> datetime:
        if task in self._ready:
            return self._ready[task]
        return max([self._begin, *(self._done[name] for name in self._needs.get(task[0], ()) if name in self._done)])

    def _close(self, task: Task, kind: str, at: datetime, how: str) -> None:
        if (begun := self._running.pop(task, None)) is not None:
            start, attempt = begun
            self._add(task, kind, start, at, f"attempt {attempt}{how},")

    def _stop(self, at: datetime) -> None:
        for task in list(self._running):
            self._close(task, "off", at, " was stopped")

    def _add(self, task: Task, kind: str, start: datetime, stop: datetime, what: str) -> None:
        if stop > start:
            title = f"{task[0]}: {what} {formatting.duration(_seconds(start, stop))}"
            self._found.setdefault(task[0], []).append((kind, start, stop, title))


def _seconds(start: datetime, stop: datetime) -> float:
    return (stop - start).total_seconds()
