"""The check of language finds phrases where people read them, and nowhere else."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.phrases import ROOT, check, surfaces


@pytest.mark.parametrize(
    ("name", "text", "line"),
    [
        ("page.md", "# Title\n\nA stage is tried again.\n", 3),
        ("page.md", "A stage is tried\nagain.\n", 1),
        ("module.py", "x = 1\ny = f'{x} cron line'\n", 2),
        ("module.py", "x = 1  # whoever asks\n", 1),
        ("module.py", '"""First.\n\nThe run before is over.\n"""\n', 3),
        ("page.html", "<p>\nUploads under way: {{ count }}</p>\n", 2),
        ("page.js", "// look at it\n", 1),
        ("module.py", '"""A list of which nothing is known."""\n', 1),
        ("page.md", "A model goes in; a packed model comes out.\n", 1),
        ("module.py", "x = 'the file is declared as a feed and is none'\n", 1),
    ],
)
def test_a_phrase_is_found_with_its_line(tmp_path: Path, name: str, text: str, line: int) -> None:
    (tmp_path / name).write_text(text)

    [found] = check(tmp_path / name, tmp_path)

    assert (found.file, found.line) == (name, line)
    assert str(found).startswith(f"{name}:{line}: {found.phrase!r}: ")
    assert found.plain


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("page.md", "Retries work. `tests/test_x.py::test_whoever_asks is told` is a name.\n"),
        ("page.md", "```sh\necho whoever asks is told\n```\n"),
        ("module.py", "whoever = 1\nx = 'whoever'\n"),
        ("page.html", "{% set whoever = 1 %}{{ whoever }}\n"),
    ],
)
def test_code_and_names_are_not_read(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text)

    assert list(check(tmp_path / name, tmp_path)) == []


def test_every_surface_is_in_plain_english() -> None:
    paths = list(surfaces())

    assert len(paths) > 200
    assert {"src", "apps", "examples", "docs"} <= {path.relative_to(ROOT).parts[0] for path in paths}
    assert [str(found) for path in paths for found in check(path)] == []
