"""The benchmark runs and says what it found. How fast anything is, no test can say."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from random import Random

import pytest
from bench.estimates import kept

ROOT = Path(__file__).parents[1]

ROWS = [
    "raw append 4 KiB + fdatasync",
    "adds, 1 caller",
    "adds, 16 callers",
    "commits, 1 caller",
    "commits, 16 callers",
    "claim+finish, 1 caller",
    "claim+finish, 16 callers",
    "claim+finish, 100 at a time",
]


def test_the_benchmark_prints_every_row_and_judges_what_was_expected(tmp_path: Path) -> None:
    told = tmp_path / "told.json"
    command = [sys.executable, "-m", "bench", "store", "--quick", "--rounds", "1", "--json", str(told)]

    ran = subprocess.run(
        [*command, "--folder", str(tmp_path / "bench")], cwd=ROOT, capture_output=True, text=True, timeout=120
    )

    assert ran.returncode == 0, ran.stderr
    table, _, summary = ran.stdout.partition("SUMMARY")
    assert [name for name in ROWS if f"  {name}  " not in table] == []
    verdicts = [line.split()[0] for line in summary.splitlines() if line.startswith(("OK", "BEHIND"))]
    assert len(verdicts) == 3
    assert verdicts == sorted(verdicts)  # BEHIND comes before OK
    rows = json.loads(told.read_text())["rows"]
    assert [row["name"] for row in rows] == ROWS
    assert all(len(row["values"]) == 1 and row["values"][0] >= 0 for row in rows)  # 0 on a machine with no time at all
    assert max(row["values"][0] for row in rows) > 0


def test_the_benchmark_refuses_a_section_it_does_not_have() -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "bench", "stroe"], cwd=ROOT, capture_output=True, text=True, timeout=180
    )

    assert ran.returncode == 2
    assert "there is no section 'stroe'" in ran.stderr


def test_estimates_of_one_stage_hold_for_about_nine_of_ten_jobs() -> None:
    share = kept({"b": ()}, Random(1))

    assert 0.87 < share < 0.96


@pytest.mark.release
def test_groups_of_failures_are_listed_without_reading_them(tmp_path: Path) -> None:
    told = tmp_path / "told.json"
    command = [sys.executable, "-m", "bench", "failures", "--quick", "--rounds", "1", "--json", str(told)]

    ran = subprocess.run(
        [*command, "--folder", str(tmp_path / "bench")], cwd=ROOT, capture_output=True, text=True, timeout=200
    )

    assert ran.returncode == 0, ran.stderr
    rows = [row for row in json.loads(told.read_text())["rows"] if row["name"].endswith("read for it")]
    assert [(row["of"], row["verdict"]) for row in rows] == [("sqlite", "OK"), ("postgresql", "OK"), ("redis", "OK")]


HTTP_ROWS = [
    "constant answers, 16 connections",
    "submits, 16 connections",
    "raw stream to disk of 8 MiB",
    "upload of 8 MiB",
    "upload of 8 MiB, memory it added",
    "constant stream of 8 MiB",
    "download of 8 MiB",
    "an event to 50 watchers, p50",
    "an event to 50 watchers, p99",
]


@pytest.mark.release
def test_the_http_interface_is_measured_beside_a_server_with_nothing_behind_it(tmp_path: Path) -> None:
    told = tmp_path / "told.json"
    command = [sys.executable, "-m", "bench", "http", "--quick", "--rounds", "1", "--json", str(told)]

    ran = subprocess.run(
        [*command, "--folder", str(tmp_path / "bench")], cwd=ROOT, capture_output=True, text=True, timeout=200
    )

    assert ran.returncode == 0, ran.stderr
    rows = {row["name"]: row for row in json.loads(told.read_text())["rows"]}
    assert list(rows) == HTTP_ROWS
    assert [name for name, row in rows.items() if row["verdict"]] == [HTTP_ROWS[i] for i in (1, 3, 4, 6)]
