"""The README and the tutorials, with packhorse as a newcomer has it: installed from the wheel."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from packhorse.cli.commands.installation import text_of
from tests.deploy.installed import Installed
from tests.docs.blocks import ROOT, blocks
from tests.docs.running import run


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    return Installed(tmp_path_factory.mktemp("installed"))


def test_the_readme(installed: Installed, tmp_path: Path) -> None:
    installed.uninstall()
    installed.offer_build_backend()
    (tmp_path / "packhorse").symlink_to(ROOT)  # the clone, beside the reader's own files

    ran = run("README.md", folder=tmp_path, env=installed.env)

    [code] = [each.code for each in blocks(ROOT / "README.md") if each.file == "words.py"]
    lines = code.splitlines()[1:]
    assert "Successfully installed packhorse" in ran.out
    assert (
        tmp_path / "words-total.txt"
    ).read_text() == f"{len(code.split())} words in {len(code.splitlines())} lines\n"
    assert len([line for line in lines if line.strip()]) == 15


@pytest.mark.release  # installs and runs what the README does
def test_sixty_seconds(installed: Installed, tmp_path: Path) -> None:
    installed.uninstall()
    installed.offer_build_backend()
    (tmp_path / "packhorse").symlink_to(ROOT)  # the clone

    ran = run("docs/tutorial/60-seconds.md", folder=tmp_path, env=installed.env)

    assert " words in " in (tmp_path / "words" / "README-total.txt").read_text()
    assert "Successfully installed packhorse" in ran.out
    assert "completed" in ran.out.splitlines()[-1]


@pytest.mark.release  # each command has tests in tests/cli; the README runs before a merge
def test_five_minutes(installed: Installed, tmp_path: Path) -> None:
    installed.install()

    ran = run("docs/tutorial/5-minutes.md", folder=tmp_path, env=installed.env)

    assert "event: completed" in ran.out
    assert " words in " in (tmp_path / "words" / "total.txt").read_text()
    assert "2 passed" in ran.out
    assert "1 submitted" in ran.out
    assert "exited with status -9" in ran.behind
    assert (tmp_path / "words" / "lines-total.txt").read_text() == "8 words in 8 lines\n"


@pytest.mark.release  # the project of the 5 minutes, by the same commands
def test_the_readme_that_init_writes(installed: Installed, tmp_path: Path) -> None:
    installed.install()
    installed.run("packhorse", "init", "words", cwd=tmp_path)

    ran = run(str(tmp_path / "words" / "README.md"), folder=tmp_path / "words", env=installed.env)

    assert " words in " in (tmp_path / "words" / "README-total.txt").read_text()
    assert "2 passed" in ran.out


def test_the_pipeline_that_is_explained_is_the_one_that_init_writes() -> None:
    [shown] = [each for each in blocks(ROOT / "docs/tutorial/5-minutes.md") if each.file == "pipelines.py"]

    assert shown.code == "# pipelines.py\n" + text_of("pipelines.py", Path("words"))


@pytest.mark.release  # each command has tests in tests/cli
def test_thirty_minutes(installed: Installed, tmp_path: Path) -> None:
    installed.install()

    ran = run("docs/tutorial/30-minutes.md", folder=tmp_path, env=installed.env)

    assert len(json.loads((tmp_path / "index.json").read_text())) == 2
    assert "documents must be .md or .txt" in ran.err
    assert "No such file or directory: 'large.model'" in ran.err
    assert "resolved" in ran.out
    assert "nightly" in ran.out
