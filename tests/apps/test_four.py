"""What `make run` shows is true: four apps at once, their workers killed, and every result as it should be."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

FOUR = Path(__file__).parents[2] / "apps/four.py"
FOR_LONG = 500.0


def test_four_apps_do_their_work_on_one_packhorse_though_their_workers_are_killed(tmp_path: Path) -> None:
    ended = subprocess.run(
        [sys.executable, str(FOUR)],
        cwd=tmp_path,
        env=os.environ | {"CHECK": "1"},
        capture_output=True,
        text=True,
        timeout=FOR_LONG,
    )

    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "kill -9 of 4 workers" in ended.stdout
    for name in ("converter", "speech", "video", "fetch"):
        assert f"{name}: completed, 100 %" in ended.stdout
    assert "a person, a cup and a cat" in ended.stdout
    assert "the results are in" in ended.stdout
    assert list(tmp_path.iterdir()) == []
