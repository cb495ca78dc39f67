"""A short run of the simulation, with fixed seeds. `make lab` runs it with fresh ones, for as long as you like."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from lab.ledger import Ledger
from lab.model_store import METHODS

from packhorse.core import lifecycle
from tests import layout
from tests.core.plans import NOW, completed

ROOT = Path(__file__).parents[2]
DAY = 86_400.0
LIMIT = 240.0
"""Seconds: a simulation takes one, and waits for nothing."""


def lab(*arguments: str) -> tuple[int, str]:
    """In a process of its own: it replaces clocks and randomness."""
    done = subprocess.run(
        [sys.executable, "-m", "lab", "--processes", "2", *arguments],
        cwd=ROOT,
        env={**os.environ, "PYTHONHASHSEED": "0"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=LIMIT,
        check=False,
    )
    return done.returncode, done.stdout


def test_fixed_seeds_break_no_promise_and_replay_exactly() -> None:
    code, said = lab("--seed", "1", "--count", "6", "--traces")
    _, again = lab("--seed", "3", "--count", "2", "--traces")

    assert code == 0, said
    traces, repeated = (set(re.findall(r"seed \d+  trace \w{16}", text)) for text in (said, again))
    assert len(traces) == 6
    assert len(repeated) == 2
    assert repeated < traces


def test_only_a_job_that_a_caller_deleted_may_be_erased_before_its_time() -> None:
    ended = completed()
    wrong = (ended.purge_at or NOW) + DAY
    deleted, purged = lifecycle.delete(ended, now=wrong), lifecycle.purge(ended, now=wrong)
    assert purged is not None

    for job, broken in ((deleted.after, []), (purged.after, ["I11"]), (ended, ["I11"])):
        ledger = Ledger(10.0, lambda: NOW, lambda _: None, lambda: (0.0, 0.0))
        ledger.jobs[job.id] = job
        ledger.job_erased(job.id, NOW)
        assert [violation.invariant for violation in ledger.violations] == broken


@pytest.mark.parametrize("bug", ["cancel-is-read-only-at-the-start", "slot-is-released-before-the-terminal-write"])
def test_a_bug_that_is_put_back_is_found(bug: str) -> None:
    code, said = lab("--bug", bug, "--seed", "1", "--count", "40", "--findings", "1", "--shrink", "0")

    assert code == 1, said
    assert "LAB:" not in said


@pytest.mark.release  # a tool of the simulation
def test_a_failing_run_is_made_smaller_and_replays() -> None:
    bug = ("--bug", "execute-after-a-failed-claim")

    code, said = lab(*bug, "--seed", "1", "--count", "60", "--findings", "1", "--shrink", "5")

    assert code == 1, said
    [(small, trace)] = re.findall(r"workers, ([\d,]+ steps), trace (\w{16})", said)
    [scenario] = re.findall(r"--replay '(.*)'", said)
    code, again = lab(*bug, "--replay", scenario, "--traces", "--shrink", "0")
    assert code == 1, again
    assert trace in again
    assert small.replace(",", "").removesuffix(" steps") in again


def test_the_model_has_every_method_of_the_contract() -> None:
    contract = layout.measure(layout.SOURCE)["contract"].places

    assert {*METHODS, "wait_for_change", "close", "now"} == {*contract}


def test_a_worker_that_stops_during_the_first_start_of_a_deployment_starts() -> None:
    """It had read that there is no deployment; when it goes on, another process has made one and stored a file."""
    scenario = (
        '{"seed":1794854890,"workers":1,"jobs":[1],"chaos":29.804744235318612,"is_fair":true,'
        '"rates":{"worker.stopped":0.0003},"only":["worker0.1:3"]}'
    )

    code, said = lab("--replay", scenario, "--shrink", "0")

    assert code == 0, said
    assert "1 worker.stopped" in said
