"""The examples do what they say: jobs survive a kill -9 of their workers, and every result is checked."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from examples import report_text, worker_crash
from examples.dev_server import Wrong

ROOT = Path(__file__).parents[1]


def run_example(name: str, folder: Path, limit: float) -> str:
    """The output of a checked run, which ends by itself."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("PACKHORSE_")}
    ended = subprocess.run(
        [sys.executable, "-m", f"examples.{name}"],
        cwd=folder,
        env=env | {"CHECK": "1", "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=limit,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


def test_four_apps_do_their_work_on_one_packhorse_though_their_workers_are_killed(tmp_path: Path) -> None:
    output = run_example("four_apps", tmp_path, limit=500)

    assert "killed all 4 workers with kill -9" in output
    for name in ("converter", "speech", "video", "fetch"):
        assert f"{name}: completed, 100 %" in output
    assert "a person, a cup and a cat" in output
    assert "the results are in" not in output  # the temporary folder is deleted at the end
    assert list(tmp_path.iterdir()) == []


@pytest.mark.release  # four apps survive it above
def test_a_job_survives_its_killed_worker_and_has_the_right_result(tmp_path: Path) -> None:
    output = run_example("worker_crash", tmp_path, limit=60)

    assert "kill -9" in output
    assert "sections that were lost and ran again" in output
    assert "http://" not in "".join(line for line in output.splitlines() if line.startswith("example"))
    assert ".json is correct" in output
    assert list(tmp_path.iterdir()) == []


def test_a_wrong_result_is_refused_with_the_field_that_is_wrong() -> None:
    found = report_text.expected()
    found["sections"][3]["words"] += 1

    with pytest.raises(Wrong, match="The result is wrong: sections"):
        worker_crash.compare(found, report_text.expected())
