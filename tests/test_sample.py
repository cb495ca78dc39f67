"""The built-in sample, called as plain functions: what newcomers read must be what it says."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest

from examples import report_text
from packhorse import Context, File, Permanent, sample


class Scratch(Context):
    """A context for a call without a worker."""

    def __init__(self, folder: Path) -> None:
        self.scratch = folder
        self.log = logging.getLogger("sample")
        self.artifacts: dict[str, Any] = {}
        self.moves: list[tuple[float, float | None]] = []

    @property
    def cancelled(self) -> bool:
        return False

    def progress(self, current: float, total: float | None = None, message: str = "") -> None:
        self.moves.append((current, total))

    def artifact(self, name: str, content: Path | str | bytes) -> None:
        self.artifacts[name] = content


@pytest.fixture
def ctx(tmp_path: Path) -> Scratch:
    return Scratch(tmp_path)


def asked(folder: Path, text: str, title: str = "Report") -> sample.Report:
    (folder / "in.md").write_text(text)
    return sample.Report(text=File(folder / "in.md"), title=title)


def test_the_report_of_a_known_text_is_known(ctx: Scratch, tmp_path: Path) -> None:
    p = sample.Report(text=File(tmp_path / report_text.NAME), title=report_text.TITLE)
    p.text.path.write_text(report_text.text())

    digests = [sample.digest(ctx, p, section) for section in sample.read(ctx, p)]
    report = sample.render(ctx, p, digests)

    assert json.loads(report.read_text()) == report_text.expected()
    assert ctx.moves[-1] == (report_text.LINES, report_text.LINES)


def test_the_page_shows_every_section_and_runs_nothing_of_the_users(ctx: Scratch, tmp_path: Path) -> None:
    p = asked(tmp_path, "# <script>alert(1)</script>\nhello\n", title="<b>")

    sample.render(ctx, p, [sample.digest(ctx, p, section) for section in sample.read(ctx, p)])

    page = ctx.artifacts["report.html"].decode()
    assert "&lt;script&gt;" in page
    assert "<script" not in page
    assert "<b>" not in page


@pytest.mark.parametrize(
    ("text", "titles"),
    [
        ("hello", ["Start"]),
        ("hello\n# One\nx", ["Start", "One"]),
        ("# One\nx\n#Two", ["One", "Two"]),
        ("\n\n# One\nx", ["One"]),
    ],
)
def test_sections_begin_at_headings(ctx: Scratch, tmp_path: Path, text: str, titles: list[str]) -> None:
    sections = sample.read(ctx, asked(tmp_path, text))

    assert [section.title for section in sections] == titles


def test_an_empty_text_is_not_tried_again(ctx: Scratch, tmp_path: Path) -> None:
    with pytest.raises(Permanent, match=r"in\.md is empty"):
        sample.read(ctx, asked(tmp_path, " \n"))


def test_words_are_counted_most_frequent_first() -> None:
    assert sample.words("b a B c", most=2) == {"b": 2, "a": 1}
