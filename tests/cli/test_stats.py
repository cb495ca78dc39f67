"""The commands that look on, against a real server and a real worker: top, stats, workers, queues and doctor."""

from __future__ import annotations

import json
import os
import pty
import select
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Tell
from tests.cli.house import LONGEST, PACKHORSE, Dev, until


@pytest.fixture
def ask(tell: Tell, shared: Dev, monkeypatch: pytest.MonkeyPatch) -> Tell:
    monkeypatch.setenv("PACKHORSE_URL", shared.url)
    return tell


@contextmanager
def running(dev: Dev, flag: Path) -> Iterator[str]:
    """A job that has got halfway, and ends afterwards."""
    job_id = str(dev.client.submit("halfway", {"flag": str(flag)})["job_id"])
    until(lambda: dev.client.get(job_id)["progress"] == 50.0)
    try:
        yield job_id
    finally:
        flag.touch()
        dev.client.wait(job_id, LONGEST)


def in_hand(dev: Dev) -> list[str]:
    """What the worker says it has in hand: a sign of life comes every few seconds."""
    return [work["job_id"] for each in dev.client.workers() for work in each["work"]]


def failed(dev: Dev) -> str:
    job_id = str(dev.client.submit("fail", {"why": "not today"})["job_id"])
    assert dev.client.wait(job_id, LONGEST)["status"] == "failed"
    return job_id


# top


def test_top_shows_everything_at_once_as_json(ask: Tell, shared: Dev, tmp_path: Path) -> None:
    broken = failed(shared)
    with running(shared, tmp_path / "flag") as job_id:
        until(lambda: job_id in in_hand(shared))

        said = ask("top", "--once", "--json")

    found = said.json
    [worker] = [each for each in found["workers"] if each["state"] == "alive"]
    assert said.code == 0
    assert [(each["job_id"], each["progress"]) for each in found["running"]] == [(job_id, 50.0)]
    assert broken in [each["job_id"] for each in found["failed"]]
    assert [(work["job_id"], work["stage"]) for work in worker["work"]] == [(job_id, "halfway")]
    assert worker["machine"]["is_fresh"]
    assert [each["name"] for each in found["queues"]] == ["default"]
    assert (found["stats"]["running"], found["stats"]["workers"]) == (1, 1)


def test_top_without_a_terminal_prints_one_page(ask: Tell, shared: Dev, tmp_path: Path) -> None:
    broken = failed(shared)
    with running(shared, tmp_path / "flag") as job_id:
        said = ask("top")

    assert said.code == 0
    assert all(title in said.out for title in ("queues", "workers", "running", "failed last"))
    assert {job_id, broken} <= set(said.out.split())
    assert "ASKED_FOR: not today" in said.out
    assert " 50" in said.out


def test_top_on_a_terminal_goes_on_until_q_is_pressed(shared: Dev) -> None:
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [*PACKHORSE, "top", "--url", shared.url], stdin=theirs, stdout=theirs, stderr=theirs, env=shared.env
    )
    os.close(theirs)
    try:
        page = read(ours, until_seen=b"failed last")
        is_there = process.poll() is None
        os.write(ours, b"q")
        read(ours)  # what it still has to say, or it cannot leave
        code = process.wait(LONGEST)
    finally:
        process.kill()
        process.wait()
        os.close(ours)

    assert is_there
    assert b"queues" in page
    assert code == 0


def read(terminal: int, until_seen: bytes | None = None) -> bytes:
    """What is written to the terminal, until something is seen or nobody has it open any more."""
    found = b""
    while until_seen is None or until_seen not in found:
        assert select.select([terminal], [], [], LONGEST)[0], f"nothing more was shown after {found[-500:]!r}"
        try:
            found += os.read(terminal, 65_536)
        except OSError:  # the other end is closed
            break
    return found


# stats, workers, queues


def test_what_has_ended_is_counted(ask: Tell, shared: Dev) -> None:
    for _ in range(3):
        shared.client.wait(shared.client.submit("greet", {"name": "ann"})["job_id"], LONGEST)

    def counted() -> Any:
        window = ask("stats", "--pipeline", "greet", "--json").json["window"]
        return window if window["outcomes"].get("completed", 0) >= 3 else None

    window = until(counted)
    said = ask("stats")

    assert window["wait_seconds"]["p50"] > 0
    assert window["run_seconds"]["p99"] > 0
    assert "ended since midnight UTC" in said.out
    assert "a minute" in said.out


def test_a_window_that_cannot_be_is_refused(ask: Tell) -> None:
    said = ask("stats", "--window", "soon")

    assert said.code == 3
    assert "is not a duration" in said.err


def test_queues_say_how_they_go(ask: Tell, shared: Dev) -> None:
    shared.client.wait(shared.client.submit("greet", {"name": "ann"})["job_id"], LONGEST)
    until(lambda: ask("queues", "--json").json["items"][0]["per_minute"] > 0)

    said = ask("queues")

    assert said.code == 0
    assert "per minute" in said.out
    assert "p50" in said.out


def test_a_killed_worker_is_listed_as_lost_with_what_became_of_its_jobs(dev: Dev, tmp_path: Path) -> None:
    with running(dev, tmp_path / "flag") as job_id:
        worker = dev.child("worker")
        assert worker is not None
        worker.send_signal(signal.SIGKILL)

        def lost() -> Any:
            found = [each for each in dev.client.workers() if each["state"] == "lost" and each["lost"]["tasks"]]
            return found[0] if found else None

        found = until(lost)
    then = until(lost)
    said = dev.ask("workers")

    assert (found["pid"], found["lost"]["tasks"]) == (worker.pid, 1)
    assert [(work["job_id"], work["stage"]) for work in found["lost"]["work"]] == [(job_id, "halfway")]
    assert [work["status"] for work in then["lost"]["work"]] == ["completed"]
    assert found["lost"]["noticed_by"] in {each["worker_id"] for each in dev.client.workers()}
    assert "1 task returned to the queue" in said.out
    assert f"{job_id} halfway (completed)" in said.out


# doctor


def test_doctor_sees_what_runs_with_its_duties_and_how_fresh_that_is(shared: Dev) -> None:
    def examined() -> Any:
        found = {each["name"]: each for each in shared.run("doctor", "--json").json}
        return found if "background task reaper" in found and "files, from a worker" in found else None

    found = until(examined)
    said = shared.run("doctor", "--json")

    assert {each["part"] for each in found.values()} >= {"store", "files", "workers", "background tasks", "host"}
    assert (found["background task reaper"]["state"], found["background task stats counter"]["state"]) == ("ok", "ok")
    assert found["files, from a worker"]["measured_at"] > 0
    assert said.code == (0 if all(each["is_ok"] for each in json.loads(said.out)) else 1)
