"""`packhorse worker` as a process: how it is told to stop."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from pathlib import Path

from packhorse.core.models import Job
from packhorse.factory import open_store
from packhorse.store.base import Filter
from tests.cli.house import FLOW, LONGEST, House, until

SUBMIT = "import sys; from flow import wait; wait.submit(sys.argv[1])"


def submitted(house: House, flag: Path) -> None:
    """A job that waits for the flag, and runs."""
    (house.folder / "flow.py").write_text(FLOW.read_text())
    subprocess.run([sys.executable, "-c", SUBMIT, str(flag)], cwd=house.folder, env=house.env, check=True)
    until(Path(f"{flag}.awaited").exists)


def job_of(house: House) -> Job:
    async def look() -> Job:
        store = await open_store(f"sqlite://{house.folder}/.packhorse/packhorse.db")
        try:
            [job] = await store.find(Filter())
            return job
        finally:
            await store.close()

    return asyncio.run(look())


def test_the_first_signal_lets_a_stage_finish(house: House, tmp_path: Path) -> None:
    worker = house.start("worker", str(FLOW))
    submitted(house, tmp_path / "flag")

    worker.send_signal(signal.SIGTERM)
    until(lambda: house.said("stopping: no new tasks"))
    (tmp_path / "flag").touch()
    code = worker.wait(LONGEST)

    assert code == 0
    assert job_of(house).status == "completed"


def test_the_second_signal_hands_it_back_uncounted(house: House, tmp_path: Path) -> None:
    worker = house.start("worker", str(FLOW), "--drain", "1h")
    submitted(house, tmp_path / "flag")

    worker.send_signal(signal.SIGTERM)
    until(lambda: house.said("stopping: no new tasks"))
    worker.send_signal(signal.SIGTERM)
    code = worker.wait(LONGEST)

    [task] = job_of(house).stages[0].tasks or ()
    assert code == 0
    assert (job_of(house).status, task.status, task.attempt) == ("running", "pending", 0)


def test_queues_and_slots_are_as_the_flags_say(house: House) -> None:
    (house.folder / "queues.py").write_text(QUEUES)

    house.start("worker", "queues.py", "--queue", "onnx=2,bie=1", "--queue", "nef")

    until(lambda: house.said("serves onnx=2, bie=1, nef=1"))


def test_a_queue_that_no_stage_uses_is_refused(house: House) -> None:
    (house.folder / "queues.py").write_text(QUEUES)

    said = house.run("worker", "queues.py", "--queue", "onxn=2")

    assert said.code == 2
    assert "they use bie, nef, onnx" in said.err


QUEUES = """
from packhorse import App

app = App("queues")

@app.job(queue="onnx")
def one() -> int:
    return 1

@app.job(queue="bie")
def two() -> int:
    return 2

@app.job(queue="nef")
def three() -> int:
    return 3
"""


def test_without_an_app_it_says_what_it_needs_and_starts_nothing(house: House) -> None:
    said = house.run("worker")

    assert said.code == 2
    assert said.err.startswith("No app is given: a worker needs to know which pipelines it runs.")
    assert "packhorse worker pipelines.py" in said.last_line
    assert "PACKHORSE_APP" in said.last_line
    assert list(house.folder.iterdir()) == []


def test_without_a_file_it_takes_the_one_in_the_settings(house: House) -> None:
    (house.folder / "flow.py").write_text("raise SystemExit('taken')")
    (house.folder / "pyproject.toml").write_text('[tool.packhorse]\napp = "flow.py"\n')

    said = house.run("worker")

    assert said.code == 2
    assert "taken" in said.err
