"""What `make run` shows is true: the job survives the kill, and its result is checked."""

from __future__ import annotations

import subprocess
import sys

import pytest

from packhorse.cli import demo_text
from packhorse.cli.commands import demo
from packhorse.errors import PackhorseError
from tests.cli.house import House


def test_a_checked_run_ends_by_itself_with_a_killed_worker_and_the_right_result(house: House) -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "packhorse.cli.commands.demo"],
        cwd=house.folder,
        env=house.env | {"CHECK": "1"},
        capture_output=True,
        text=True,
        timeout=60,
    )

    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "kill -9" in ended.stdout
    assert "sections were lost and done again" in ended.stdout
    assert "http://" not in "".join(line for line in ended.stdout.splitlines() if line.startswith("demo"))
    assert ".json is what it should be" in ended.stdout
    assert list(house.folder.iterdir()) == []


def test_a_wrong_result_is_told_by_what_is_wrong() -> None:
    found = demo_text.expected()
    found["sections"][3]["words"] += 1

    with pytest.raises(PackhorseError, match="The result is wrong: sections"):
        demo._compare(found, demo_text.expected())
