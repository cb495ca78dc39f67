"""The crash lab finds the stage that is not safe to repeat, and only that one."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from packhorse.testing import CrashLab, CrashReport, CrashRun
from tests.testing.crashing import Order, once, order


@pytest.fixture
def lab() -> Iterator[CrashLab]:
    with CrashLab() as lab:
        yield lab


@pytest.fixture(autouse=True)
def ledger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LEDGER", str(tmp_path))
    return tmp_path


def test_an_effect_that_a_kill_repeats_is_named_with_its_stage_and_point(lab: CrashLab, ledger: Path) -> None:
    report = lab.run(
        order,
        Order(list=lab.file("list.txt", "tea")),
        effects=lambda: [each.read_text() for each in ledger.iterdir()],
        points=["published", "committed"],
    )

    [harmed] = [run for run in report.runs if not run.is_clean]
    assert harmed == CrashRun("charge", "published", "completed", 2, repeated=("charge 3 for JOB",))
    assert str(report) == (
        "3 of 4 kills did no harm\n  charge, killed when published: happened more than once: charge 3 for JOB"
    )
    assert [(run.stage, run.point, run.attempts) for run in report.runs if run.is_clean] == [
        ("charge", "committed", 1),
        ("bill", "published", 2),
        ("bill", "committed", 1),
    ]


def test_a_stage_without_retries_fails_its_job_and_the_report_says_so(lab: CrashLab) -> None:
    report = lab.run(once, Order(list=lab.file("list.txt")), points=["running"])

    assert not report.is_clean
    assert "print_label, killed when running: the job failed: WORKER_LOST" in str(report)


def test_an_effect_that_a_kill_prevents_is_named() -> None:
    report = CrashReport([CrashRun("bill", "returned", "completed", 1, missing=("bill for JOB",))])

    assert not report.is_clean
    assert str(report).endswith("bill, killed when returned: did not happen: bill for JOB")


def test_a_pipeline_that_goes_wrong_without_a_kill_is_not_examined(
    lab: CrashLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("LEDGER")

    with pytest.raises(AssertionError, match="Without any kill, order goes wrong: the job failed"):
        lab.run(order, Order(list=lab.file("list.txt", "tea")))


def test_a_point_that_does_not_exist_is_refused(lab: CrashLab) -> None:
    with pytest.raises(ValueError, match="Unknown points: finished"):
        lab.run(order, Order(list=lab.file("list.txt", "tea")), points=["finished"])


def test_without_the_option_its_tests_are_skipped_and_say_why(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text("def test_it(crash_lab):\n    assert crash_lab.file('a').path.exists()\n")
    command = [sys.executable, "-m", "pytest", "-rs", "-p", "no:cacheprovider", "-p", "no:schemathesis", "test_it.py"]

    without, given = (
        subprocess.run([*command, *words], cwd=tmp_path, capture_output=True, text=True, check=False)
        for words in ([], ["--crash-lab"])
    )

    assert "1 skipped" in without.stdout
    assert "run pytest --crash-lab" in without.stdout
    assert "1 passed" in given.stdout
