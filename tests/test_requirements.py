"""docs/requirements.md: every line of the four systems is there, and every test it names exists."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs/requirements.md").read_text()
LINES = [f"{part}{n}" for part, count in (("A", 14), ("B", 8), ("C", 9), ("D", 9)) for n in range(1, count + 1)]
NAMED = sorted(set(re.findall(r"`(tests/[\w/]+\.py(?:::\w+)?)`", PAGE)))


@pytest.mark.parametrize("line", LINES)
def test_every_line_is_shown_by_a_test(line: str) -> None:
    rows = [row for row in PAGE.splitlines() if row.startswith(f"| {line} |")]

    assert len(rows) == 1
    assert re.search(r"`tests/[\w/]+\.py", rows[0])


@pytest.mark.parametrize("named", NAMED)
def test_every_test_that_is_named_exists(named: str) -> None:
    path, _, name = named.partition("::")
    found = {
        each.name
        for each in ast.walk(ast.parse((ROOT / path).read_text()))
        if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)
    }

    assert name in found if name else found
