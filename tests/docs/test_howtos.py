"""Each how-to does what it says, when somebody pastes it from top to bottom."""

from __future__ import annotations

from pathlib import Path

from tests.docs.running import run


def test_mount_in_fastapi(tmp_path: Path) -> None:
    ran = run("docs/howto/mount-in-fastapi.md", folder=tmp_path)

    assert ran.out.strip().endswith('"Hello Bob!"')


def test_upload_from_a_browser(tmp_path: Path) -> None:
    """The functions of the page run in Node; its form is served."""
    ran = run("docs/howto/upload-from-a-browser.md", folder=tmp_path)

    assert '<input type="file" name="text" required />' in ran.out
    assert ran.out.strip().endswith(" ph_")


def test_progress_in_your_page(tmp_path: Path) -> None:
    ran = run("docs/howto/upload-from-a-browser.md", "docs/howto/progress-in-your-page.md", folder=tmp_path)

    told = [line.split() for line in ran.out.splitlines()]
    seen = [float(line[1]) for line in told if line[:1] == ["progress"]]
    assert ["snapshot", "0"] in told
    assert len(seen) > 2
    assert seen == sorted(seen)
    assert told[-2:] == [["completed"], ["result", "20"]]


def test_test_a_pipeline(tmp_path: Path) -> None:
    ran = run("docs/howto/test-a-pipeline.md", folder=tmp_path)

    assert "8 passed" in ran.out
