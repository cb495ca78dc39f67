"""The stages of a job as people see them: a graph, a grid of elements, words; and what of that has changed."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from packhorse.core.models import Job, Task
from packhorse.core.plan import Plan, TaskStatus
from packhorse.web.widgets import formatting

Json = Any

LETTERS = {
    "c": "completed",
    "f": "failed",
    "r": "running",
    "a": "waiting for its retry",
    "p": "pending",
    "x": "cancelled",
    "s": "not started",
}
"""How a page writes the state of an element, in the order of its key."""
LETTER_OF = {
    TaskStatus.COMPLETED: "c",
    TaskStatus.FAILED: "f",
    TaskStatus.RUNNING: "r",
    TaskStatus.PENDING: "p",
    TaskStatus.CANCELLED: "x",
    TaskStatus.SKIPPED: "s",
}
PITCH, CELL = 10, 8  # of the grid: from one cell to the next, and its size
WIDE = ((60, 30), (400, 50), (2000, 80))
"""Up to so many elements, so many cells in a row."""
WIDEST = 125

# The graph. Every number is a pixel.
NODE_WIDTH, NODE_HEIGHT, ACROSS, DOWN, MARGIN = 196, 58, 52, 18, 6
NAME = 22  # characters of a stage's name that fit into its node
SWEEPS = 4  # over the columns, to put each node beside those it is joined with
MOST_NODES = 80  # more are shown as the table only


def letters(tasks: Sequence[Task]) -> str:
    """One letter for each element."""
    return "".join(
        "a" if task.attempt and task.status is TaskStatus.PENDING else LETTER_OF[task.status] for task in tasks
    )


def cells(job: Job) -> dict[str, str]:
    """Of each stage that runs once per element."""
    return {
        plan.name: letters(stage.tasks or ())
        for plan, stage in zip(job.plan.stages, job.stages, strict=True)
        if plan.over is not None
    }


def pack(text: str) -> str:
    """Runs of a letter as their length and the letter: 180c2r18p."""
    return "".join(f"{len(list(run))}{letter}" for letter, run in itertools.groupby(text))


DONE = 100.0


class Grid(NamedTuple):
    stage: str
    letters: str
    columns: int
    width: int
    height: int
    paths: list[tuple[str, str]]
    """A letter, and the path through all cells that have it: drawn with dashes, each of which is a cell."""
    counts: Mapping[str, int]
    """By letter."""


def grid(stage: str, text: str) -> Grid:
    columns = min(max(len(text), 1), next((wide for most, wide in WIDE if len(text) <= most), WIDEST))
    rows = -(-len(text) // columns)
    counts = Counter(text)
    return Grid(
        stage,
        text,
        columns,
        columns * PITCH,
        max(rows, 1) * PITCH,
        [(letter, _path(text, letter, columns)) for letter in LETTERS if counts[letter]],
        counts,
    )


def _path(text: str, letter: str, columns: int) -> str:
    parts = []
    for row in range(0, len(text), columns):
        at = 0
        for found, run in itertools.groupby(text[row : row + columns]):
            width = len(list(run))
            if found == letter:
                parts.append(f"M{at * PITCH + 1} {row // columns * PITCH + PITCH // 2}h{width * PITCH - 2}")
            at += width
    return "".join(parts)


def element_counts(text: str) -> str:
    """For those who cannot see the grid: 180 completed, 2 running."""
    counted = Counter(text)
    return ", ".join(f"{counted[letter]:,} {word}" for letter, word in LETTERS.items() if counted[letter])


def stage_text(stage: Json) -> str:
    """How far a stage is, in words."""
    parts, elements = [], stage.get("elements")
    if elements and elements["total"]:
        failed = f", {elements['failed']:,} failed" if elements["failed"] else ""
        parts.append(f"{elements['completed']:,} of {elements['total']:,}{failed}")
    elif stage["total"] is not None and stage["current"] is not None:
        parts.append(f"{formatting.number(stage['current'])} of {formatting.number(stage['total'])}")
    if stage["message"]:
        parts.append(stage["message"])
    if "reason" in stage:
        whole = skip_text(stage).capitalize()
        some = f"{elements['skipped']:,} not started" if elements and elements["skipped"] else whole
        parts.append(f"{'· ' if parts else ''}{some}: {stage['reason']}")
    return " ".join(parts)


def node_text(stage: Json) -> str:
    """What fits under the name of a node."""
    elements = stage.get("elements")
    if elements and elements["total"]:
        failed = f" · {elements['failed']:,} failed" if elements["failed"] else ""
        return f"{elements['completed']:,} of {elements['total']:,}{failed}"
    if stage["status"] == "running":
        return f"running · {formatting.percent(stage['progress'])}" if stage["progress"] else "running"
    return skip_text(stage) if stage["status"] == "skipped" else str(stage["status"])


def skip_text(stage: Json) -> str:
    """The status of a skipped stage: one that was skipped on purpose counts as done."""
    return "skipped" if stage["progress"] == DONE else "not started"


def shape(job: Json) -> str:
    """Changes when more of the page changes than its numbers: a viewer then asks for the page again."""
    return f"{job['run']}.{job['status']}.{job['stopping'] or ''}." + "".join(
        LETTER_OF[TaskStatus(each["status"])] + ("" if "elements" not in each else str(each["elements"]["total"]))
        for each in job["stages"].values()
    )


class Node(NamedTuple):
    name: str
    label: str
    x: int
    y: int
    is_many: bool


class Graph(NamedTuple):
    width: int
    height: int
    nodes: list[Node]
    edges: list[tuple[str, str, str]]
    """From, to, and the path between them."""


def graph(plan: Plan) -> Graph | None:
    """Columns from left to right: a stage stands after all it needs. None for one stage, and for too many."""
    if not 1 < len(plan.stages) <= MOST_NODES:
        return None
    columns, edges = _columns(plan)
    _sort(columns, edges)
    places: dict[str, tuple[int, int]] = {}
    tallest = max(len(column) for column in columns)
    for x, column in enumerate(columns):
        top = MARGIN + (tallest - len(column)) * (NODE_HEIGHT + DOWN) // 2
        for y, name in enumerate(column):
            places[name] = MARGIN + x * (NODE_WIDTH + ACROSS), top + y * (NODE_HEIGHT + DOWN)
    many = {each.name for each in plan.stages if each.over is not None}
    nodes = [Node(each.name, _short(each.name), *places[each.name], each.name in many) for each in plan.stages]
    return Graph(
        len(columns) * (NODE_WIDTH + ACROSS) - ACROSS + 2 * MARGIN,
        tallest * (NODE_HEIGHT + DOWN) - DOWN + 2 * MARGIN + 8,
        nodes,
        [(chain[0], chain[-1], _line([places[name] for name in chain])) for chain in edges],
    )


def _columns(plan: Plan) -> tuple[list[list[str]], list[list[str]]]:
    """The names in each column, and each edge as the names it passes: one in each column between its ends."""
    depth: dict[str, int] = {}
    for stage in plan.stages:
        depth[stage.name] = 1 + max((depth[need.stage] for need in stage.needs), default=-1)
    columns: list[list[str]] = [[] for _ in range(max(depth.values()) + 1)]
    for name, at in depth.items():
        columns[at].append(name)
    edges = []
    for stage in plan.stages:
        for source in dict.fromkeys(need.stage for need in stage.needs):
            between = [f"{source}>{stage.name}>{at}" for at in range(depth[source] + 1, depth[stage.name])]
            for at, name in enumerate(between, depth[source] + 1):
                columns[at].append(name)
            edges.append([source, *between, stage.name])
    return columns, edges


def _sort(columns: list[list[str]], edges: Iterable[Sequence[str]]) -> None:
    """Each column by where the neighbours stand, so that few edges cross."""
    before: dict[str, list[str]] = {}
    after: dict[str, list[str]] = {}
    for chain in edges:
        for left, right in itertools.pairwise(chain):
            before.setdefault(right, []).append(left)
            after.setdefault(left, []).append(right)
    for sweep in range(SWEEPS):
        beside, order = (after, list(reversed(columns))) if sweep % 2 else (before, columns)
        for fixed, column in itertools.pairwise(order):
            _sort_column(column, beside, {name: at / len(fixed) for at, name in enumerate(fixed)})


def _sort_column(column: list[str], beside: Mapping[str, list[str]], at: Mapping[str, float]) -> None:
    own = {name: n / len(column) for n, name in enumerate(column)}

    def middle(name: str) -> float:
        near = [at[each] for each in beside.get(name, ()) if each in at]
        return sum(near) / len(near) if near else own[name]

    column.sort(key=middle)


def _line(places: Sequence[tuple[int, int]]) -> str:
    """From the right side of the first to the left side of the last, straight through the places between."""
    half, bend = NODE_HEIGHT // 2, ACROSS // 2
    x, y = places[0][0] + NODE_WIDTH, places[0][1] + half
    path = f"M{x} {y}"
    for number, (left, top) in enumerate(places[1:], 2):
        to = top + half
        path += f"C{x + bend} {y} {left - bend} {to} {left} {to}"
        x, y = left, to
        if number < len(places):
            x += NODE_WIDTH
            path += f"H{x}"
    return path


def _short(name: str) -> str:
    return name if len(name) <= NAME else f"{name[: NAME - 1]}…"
