"""SQL files: each statement is found by its name, and every file says what it is for."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from packhorse.store import sql_files

FOLDER = Path(sql_files.__file__).parent
FILES = sorted(FOLDER.glob("*/sql/*.sql"))

TEXT = """\
-- Purpose: an example.

-- name: first
-- Why it is so.
SELECT 1
  -- inside
  FROM jobs;

-- name: second
SELECT 2;
"""


def test_statements_are_found_by_name_without_comments() -> None:
    found = sql_files.parse(TEXT)

    assert found == {"first": "SELECT 1\n  FROM jobs", "second": "SELECT 2"}
    assert found.second == "SELECT 2"


def test_an_unknown_name_is_told() -> None:
    with pytest.raises(AttributeError, match="third"):
        _ = sql_files.parse(TEXT).third


def test_a_name_is_given_once() -> None:
    with pytest.raises(ValueError, match="'first' is defined twice"):
        sql_files.parse(TEXT + TEXT)


@pytest.mark.parametrize("file", FILES, ids=lambda file: f"{file.parts[-3]}-{file.stem}")
def test_every_file_has_a_header_and_every_statement_is_used(file: Path) -> None:
    text = file.read_text()
    header = text.partition("-- name: ")[0]
    for word in ("-- Purpose: ", "-- Callers: ", "-- Tables:"):
        assert word in header
    callers = re.findall(r"(\w+\.py)", header.partition("-- Callers: ")[2].partition("-- Tables:")[0])
    assert [name for name in callers if not (file.parents[1] / name).exists()] == []
    modules = [*file.parents[1].glob("*.py"), FOLDER / "failures.py"]  # which names the conditions of a filter
    code = "".join(module.read_text() for module in modules)
    unused = [name for name in sql_files.parse(text) if not _is_used(name, code)]
    assert unused == []


def _is_used(name: str, code: str) -> bool:
    """As an attribute, or, where it is a part of a statement, as a key; what is counted of it goes with it."""
    part = name.removeprefix("count_").removeprefix("answer_").removeprefix("with_")
    return f".{name}" in code or f'"{part}"' in code or f"{part}=" in code
