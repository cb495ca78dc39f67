"""Draws the samples of a soak: a small plot per column, with one line per store, as SVG."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path

PANELS = {
    "worker_mib": "Memory of a worker, MiB",
    "server_mib": "Memory of the server, MiB",
    "worker_fds": "Open files of a worker",
    "rows": "Rows or keys in the store",
    "files": "Files in the object store",
    "ended": "Stages that ended",
}
COLOURS = {"sqlite": "#0f766e", "postgresql": "#1d4ed8", "redis": "#b91c1c"}
WIDTH, HEIGHT, LEFT, TOP = 340, 180, 56, 34
ACROSS = 2


def draw(paths: Sequence[Path]) -> str:
    """Of files named soak-STORE.csv."""
    samples = {path.stem.removeprefix("soak-"): _read(path) for path in paths}
    down = -(-len(PANELS) // ACROSS)
    width, height = ACROSS * (WIDTH + LEFT) + 20, down * (HEIGHT + TOP + 24) + 30
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}"',
        ' font-family="sans-serif" font-size="11">',
        f'<rect width="{width}" height="{height}" fill="white"/>',
    ]
    for number, (store, colour) in enumerate(COLOURS.items()):
        if store in samples:
            parts.append(f'<text x="{LEFT + 110 * number}" y="18" fill="{colour}">{store}</text>')
    for number, (column, title) in enumerate(PANELS.items()):
        x = LEFT + (number % ACROSS) * (WIDTH + LEFT)
        y = 30 + TOP + (number // ACROSS) * (HEIGHT + TOP + 24)
        parts += _panel(x, y, column, title, samples)
    return "\n".join([*parts, "</svg>", ""])


def _panel(x: int, y: int, column: str, title: str, samples: dict[str, list[dict[str, float]]]) -> list[str]:
    most = max((row[column] for rows in samples.values() for row in rows), default=0.0) * 1.1 or 1.0
    long = max((row["seconds"] for rows in samples.values() for row in rows), default=0.0) or 1.0
    parts = [f'<text x="{x}" y="{y - 8}" font-weight="bold">{title}</text>']
    for step in range(3):
        value, at = most * step / 2, y + HEIGHT - HEIGHT * step / 2
        parts.append(f'<path d="M{x} {at:.0f}h{WIDTH}" stroke="#ddd"/>')
        parts.append(f'<text x="{x - 6}" y="{at + 4:.0f}" text-anchor="end" fill="#555">{value:,.0f}</text>')
    for minutes in range(0, int(long / 60) + 1, 10):
        at = x + WIDTH * minutes * 60 / long
        parts.append(f'<text x="{at:.0f}" y="{y + HEIGHT + 14}" text-anchor="middle" fill="#555">{minutes} min</text>')
    for store, rows in samples.items():
        points = (f"{x + WIDTH * r['seconds'] / long:.1f},{y + HEIGHT * (1 - r[column] / most):.1f}" for r in rows)
        colour = COLOURS.get(store, "#555")
        parts.append(f'<polyline points="{" ".join(points)}" fill="none" stroke="{colour}" stroke-width="1.3"/>')
    return parts


def _read(path: Path) -> list[dict[str, float]]:
    with path.open(newline="") as file:
        return [{name: float(value) for name, value in row.items()} for row in csv.DictReader(file)]
