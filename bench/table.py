"""Prints the book: a table per section, then what was expected, with what is behind first."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType

from bench.book import Bound, Row

HEAD = ("", "median", "min - max", "", "compared", "expected", "")


def printed(rows: Sequence[Row], remarks: Mapping[str, Sequence[str]] = MappingProxyType({})) -> str:
    sections: dict[str, list[Row]] = {}
    for row in rows:
        sections.setdefault(row.section, []).append(row)
    parts = [_section(name, group, remarks.get(name, ())) for name, group in sections.items()]
    return "\n\n".join([*parts, _summary(rows)])


def _section(name: str, rows: Sequence[Row], remarks: Sequence[str]) -> str:
    side_by_side = [row for row in rows if row.of]
    lines = _matrix(name, side_by_side) if side_by_side else []
    alone = [row for row in rows if not row.of]
    if alone:
        lines += _aligned([(name.upper(), *HEAD[1:]), *(_cells(row) for row in alone)])
    return "\n".join([*lines, *(f"  {remark}" for remark in remarks)])


def _matrix(name: str, rows: Sequence[Row]) -> list[str]:
    """A line for each of those that are measured side by side, a column for each measure."""
    medians = {(row.of, row.name): _number(statistics.median(row.values)) for row in rows}
    measures = dict.fromkeys((row.name, row.unit) for row in rows)
    head = (name.upper(), *(f"{measure} {unit}" for measure, unit in measures))
    lines = [
        (f"  {of}", *(medians.get((of, measure), "-") for measure, _ in measures))
        for of in dict.fromkeys(row.of for row in rows)
    ]
    return _aligned([head, *lines])


def _summary(rows: Sequence[Row]) -> str:
    judged = sorted((row for row in rows if row.bound is not None), key=lambda row: row.verdict != "BEHIND")
    behind = sum(row.verdict == "BEHIND" for row in judged)
    lines = [f"SUMMARY: {behind} behind, {len(judged) - behind} as expected"]
    cells = [(row.verdict, _named(row), _found(row), _expected(row.bound, row)) for row in judged]
    return "\n".join([*lines, *_aligned(cells)])


def _named(row: Row) -> str:
    return ": ".join(filter(None, (row.section, row.of, row.name)))


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
        return _compared(row)
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
