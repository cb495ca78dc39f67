"""Draws the samples of a soak: a small plot per column, with one line per store, as SVG."""

from __future__ import annotations

import csv
import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path

Samples = list[dict[str, float]]

PANELS = {
    "worker_mib": "Memory of the worker that is never killed, MiB",
    "server_mib": "Memory of the server, MiB",
    "worker_fds": "Open files of that worker",
    "rows": "Rows or keys in the store",
    "files": "Files in the object store",
    "ended": "Stages that have run",
}
STORES = {"sqlite": "SQLite", "postgresql": "PostgreSQL", "redis": "Redis"}
WIDTH, HEIGHT, LEFT, TOP = 330, 120, 50, 40
ACROSS = 2
POINTS = 90
"""Points per line at most: each is the median of the samples around it."""
STYLE = """  <style>
    text { font: 12px system-ui, sans-serif; fill: #59616b; }
    .name { font-weight: 600; fill: #1d2126; }
    .end { text-anchor: end; }
    .middle { text-anchor: middle; }
    .grid { stroke: #dfe2e6; }
    polyline { fill: none; stroke-width: 1.5; }
    .sqlite { stroke: #0f766e; }
    .postgresql { stroke: #1d4ed8; }
    .redis { stroke: #b91c1c; }
    @media (prefers-color-scheme: dark) {
      text { fill: #a3abb5; }
      .name { fill: #e6e8eb; }
      .grid { stroke: #3a4048; }
      .sqlite { stroke: #2dd4bf; }
      .postgresql { stroke: #82aaff; }
      .redis { stroke: #ff8080; }
    }
  </style>"""


def draw(paths: Sequence[Path]) -> str:
    """Of files named soak-STORE.csv."""
    samples = {path.stem.removeprefix("soak-"): _thin(_read(path)) for path in paths}
    down = -(-len(PANELS) // ACROSS)
    width, height = ACROSS * (WIDTH + LEFT) + 20, down * (HEIGHT + TOP + 20) + 36
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" aria-labelledby="t">',
        '  <title id="t">Memory, open files, rows and files under load with a fault every 15 seconds</title>',
        STYLE,
    ]
    for number, (store, name) in enumerate(each for each in STORES.items() if each[0] in samples):
        x = LEFT + 110 * number
        parts.append(
            f'  <polyline class="{store}" points="{x},16 {x + 20},16"/><text x="{x + 26}" y="20">{name}</text>'
        )
    for number, (column, title) in enumerate(PANELS.items()):
        x = LEFT + (number % ACROSS) * (WIDTH + LEFT)
        y = 26 + TOP + (number // ACROSS) * (HEIGHT + TOP + 20)
        parts += _panel(x, y, column, title, samples)
    return "\n".join([*parts, "</svg>", ""])


def _panel(x: int, y: int, column: str, title: str, samples: dict[str, Samples]) -> Iterator[str]:
    most = max((row[column] for rows in samples.values() for row in rows), default=0.0) * 1.1 or 1.0
    long = max((row["seconds"] for rows in samples.values() for row in rows), default=0.0) or 1.0
    yield f'  <text class="name" x="{x}" y="{y - 10}">{title}</text>'
    for step in range(3):
        value, at = most * step / 2, y + HEIGHT - HEIGHT * step / 2
        yield f'  <path class="grid" d="M{x} {at:.0f}h{WIDTH}"/>'
        yield f'  <text class="end" x="{x - 6}" y="{at + 4:.0f}">{value:,.0f}</text>'
    for minutes in range(0, int(long / 60) + 1, 10):
        at = x + WIDTH * minutes * 60 / long
        yield f'  <text class="middle" x="{at:.0f}" y="{y + HEIGHT + 15}">{minutes} min</text>'
    for store, rows in samples.items():
        points = (f"{x + WIDTH * r['seconds'] / long:.0f},{y + HEIGHT * (1 - r[column] / most):.1f}" for r in rows)
        yield f'  <polyline class="{store}" points="{" ".join(points)}"/>'


def _thin(rows: Samples) -> Samples:
    step = -(-len(rows) // POINTS) or 1
    groups = [rows[at : at + step] for at in range(0, len(rows), step)]
    return [{name: statistics.median(row[name] for row in group) for name in group[0]} for group in groups]


def _read(path: Path) -> Samples:
    with path.open(newline="") as file:
        return [{name: float(value) for name, value in row.items()} for row in csv.DictReader(file)]
