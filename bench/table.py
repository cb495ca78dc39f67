"""Prints the book: a table per section, then what was expected, with what is behind first."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from itertools import groupby

from bench.book import Bound, Row

HEAD = ("", "median", "min - max", "", "compared", "expected", "")


def printed(rows: Sequence[Row]) -> str:
    parts = [_section(name, list(group)) for name, group in groupby(rows, key=lambda row: row.section)]
    return "\n\n".join([*parts, _summary(rows)])


def _section(name: str, rows: Sequence[Row]) -> str:
    return "\n".join(_aligned([(name.upper(), *HEAD[1:]), *(_cells(row) for row in rows)]))


def _summary(rows: Sequence[Row]) -> str:
    judged = sorted((row for row in rows if row.bound is not None), key=lambda row: row.verdict != "BEHIND")
    behind = sum(row.verdict == "BEHIND" for row in judged)
    lines = [f"SUMMARY: {behind} behind, {len(judged) - behind} as expected"]
    cells = [(row.verdict, f"{row.section}: {row.name}", _found(row), _expected(row.bound, row)) for row in judged]
    return "\n".join([*lines, *_aligned(cells)])


def _cells(row: Row) -> tuple[str, ...]:
    spread = f"{_number(min(row.values))} - {_number(max(row.values))}" if len(row.values) > 1 else ""
    median = _number(statistics.median(row.values))
    return (f"  {row.name}", median, spread, row.unit, _compared(row), _expected(row.bound, row), row.verdict)


def _compared(row: Row) -> str:
    if not row.ratios:
        return ""
    spread = f" ({min(row.ratios):.2f} - {max(row.ratios):.2f})" if len(row.ratios) > 1 else ""
    return f"{statistics.median(row.ratios):.2f} {row.to}{spread}"


def _found(row: Row) -> str:
    if row.bound is not None and row.bound.of_ratio:
        return f"{statistics.median(row.ratios):.2f} {row.to}"
    return f"{_number(statistics.median(row.values))} {row.unit}"


def _expected(bound: Bound | None, row: Row) -> str:
    if bound is None:
        return ""
    return f"{bound.kind} {bound.limit:g} {row.to if bound.of_ratio else row.unit}"


def _number(value: float) -> str:
    if value == int(value) or abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"


def _aligned(cells: Iterable[tuple[str, ...]]) -> list[str]:
    """Columns as wide as their widest cell; numbers end where their column ends, words begin where it begins."""
    lines = list(cells)
    widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))] if lines else []
    return ["  ".join(_put(cell, width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines]


def _put(cell: str, width: int) -> str:
    return (
        cell.rjust(width)
        if cell[:1].isdigit() and cell.replace(",", "").replace(".", "").isdigit()
        else cell.ljust(width)
    )
