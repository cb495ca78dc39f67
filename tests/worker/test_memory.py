"""The kernel limits the memory of a stage, and libraries that reserve much and use little still run."""

from __future__ import annotations

import asyncio
import os
import resource
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from packhorse.define.registry import load
from packhorse.worker.cgroups import MIN_MARGIN, MemoryGroups
from packhorse.worker.child.messages import Document, Raised, Returned, Run
from packhorse.worker.process import Child, ChildDied, OverMemory
from tests.worker.test_pool import Deaf

MIB = 1024**2
APP = """
import asyncio
import mmap
import subprocess
import sys
from packhorse import App

app = App("hungry")

@app.job
def at_once() -> int:
    return len(bytearray(3 << 30))

@app.job
async def at_once_aside() -> int:
    await asyncio.sleep(0)
    return len(bytearray(3 << 30))

@app.job
def by_mapping() -> int:
    return len(mmap.mmap(-1, 3 << 30, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))

@app.job
def in_a_library() -> int:
    raise RuntimeError("[ONNXRuntimeError] : 1 : FAIL : Failed to allocate memory for requested buffer of size 8")

@app.job
def in_another_process() -> int:
    return subprocess.run([sys.executable, "-c", "bytearray(3 << 30)"], stderr=subprocess.DEVNULL).returncode

@app.job
def libraries() -> list[float]:
    import numpy
    import onnx
    import onnxruntime

    return numpy.dot(numpy.ones((500, 500)), numpy.ones((500, 500)))[0, :2].tolist()

@app.job
async def waits() -> None:
    await asyncio.sleep(600)

@app.job
def reserves() -> int:
    return len(mmap.mmap(-1, 3 << 30, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))
"""


@pytest.fixture
async def child(tmp_path: Path) -> AsyncIterator[Child]:
    app = tmp_path / "hungry.py"
    app.write_text(APP)
    child = await Child.start(str(app), shared=False, log=print)
    yield child
    await child.end(0)


async def outcome(child: Child, folder: Path, stage: str, memory: int | None) -> object:
    [kind] = [kind for kind in load(str(folder / "hungry.py")).by_kind if kind.startswith(f"{stage}/")]
    run = Run(child.number(), kind, "j", "u", "t", 1, 0, str(folder / "scratch"), Document(b"{}"), memory=memory)
    return await child.run(run, Deaf()).outcome


@pytest.mark.parametrize("stage", ["at_once", "at_once_aside", "by_mapping", "in_a_library"])
async def test_a_stage_that_allocates_far_beyond_its_memory_fails_and_its_child_goes_on(
    child: Child, tmp_path: Path, stage: str
) -> None:
    ended = await outcome(child, tmp_path, stage, 64 * MIB)
    after = await outcome(child, tmp_path, "reserves", None)

    assert isinstance(ended, Raised)
    assert ended.code == "OUT_OF_MEMORY"
    assert ended.message.startswith("The stage needed more than its 64 MiB of memory.")
    assert isinstance(after, Returned)  # the next stage has a limit of its own


async def test_a_process_that_the_stage_starts_has_the_limit_too(child: Child, tmp_path: Path) -> None:
    ended = await outcome(child, tmp_path, "in_another_process", 64 * MIB)

    assert isinstance(ended, Returned)
    assert ended.result.value == b"1"


async def test_large_libraries_run_within_a_small_limit(child: Child, tmp_path: Path) -> None:
    ended = await outcome(child, tmp_path, "libraries", 128 * MIB)

    assert isinstance(ended, Returned), ended
    assert ended.result.value == b"[500.0,500.0]"


def test_the_limit_of_this_process_is_as_before() -> None:
    from packhorse.worker.child.memory import limit_memory

    before = resource.getrlimit(resource.RLIMIT_DATA)
    with limit_memory(64 * MIB):
        within = resource.getrlimit(resource.RLIMIT_DATA)

    assert before != within
    assert resource.getrlimit(resource.RLIMIT_DATA) == before


# Cgroups, as files in a folder: what is written where.


def group(folder: Path, *, controllers: str = "cpu memory", enabled: str = "", processes: str = "") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "cgroup.controllers").write_text(controllers)
    (folder / "cgroup.subtree_control").write_text(enabled)
    (folder / "cgroup.procs").write_text(processes)
    return folder


def test_a_cgroup_that_is_ours_is_divided_and_the_supervisor_moves_into_a_part_of_it(tmp_path: Path) -> None:
    own = group(tmp_path / "unit", processes=f"{os.getpid()}\n")

    assert MemoryGroups.open(own) is not None

    assert (own / f"packhorse-{os.getpid()}" / "cgroup.procs").read_text() == str(os.getpid())
    assert (own / "cgroup.subtree_control").read_text() == "+memory"


def test_groups_are_made_only_below_the_cgroup_of_the_worker(tmp_path: Path) -> None:
    group(tmp_path / "slice", enabled="memory")
    own = group(tmp_path / "slice" / "unit", controllers="memory", processes=f"1\n{os.getpid()}\n")

    assert MemoryGroups.open(own) is None  # another process of the unit keeps it from being divided

    (own / "cgroup.procs").write_text(f"{os.getpid()}\n")
    groups = MemoryGroups.open(own)
    assert groups is not None
    added = groups.add(4711)
    assert added is not None
    assert (added._folder.parent, (added._folder / "cgroup.procs").read_text()) == (own, "4711")


def test_groups_of_workers_that_were_killed_are_removed(tmp_path: Path) -> None:
    own = group(tmp_path / "unit", enabled="memory")
    ended = subprocess.Popen(["true"])
    ended.wait()
    stale = [own / f"packhorse-{ended.pid}", own / f"packhorse-{ended.pid}-7", own / f"packhorse-{os.getpid()}-9"]
    others = [own / f"packhorse-{os.getppid()}-1", own / "packhorse-web"]
    for folder in (*stale, *others):
        folder.mkdir()

    assert MemoryGroups.open(own) is not None

    assert not any(folder.exists() for folder in stale)
    assert all(folder.exists() for folder in others)


def test_a_group_whose_processes_have_not_ended_yet_is_removed_later(tmp_path: Path) -> None:
    groups = MemoryGroups(tmp_path)
    first, second = groups.add(4711), groups.add(4712)
    assert first is not None
    assert second is not None

    first.remove()  # fails: the folder has files in it
    second.remove()
    for added in (first, second):
        assert added._folder.exists()
        for file in added._folder.iterdir():
            file.unlink()
    groups.add(4713)

    assert not first._folder.exists()
    assert not second._folder.exists()


def test_without_the_memory_controller_there_are_no_groups(tmp_path: Path) -> None:
    group(tmp_path / "unit", controllers="cpu")
    own = group(tmp_path / "unit" / "leaf", controllers="cpu")

    assert MemoryGroups.open(own) is None
    assert MemoryGroups.open(tmp_path / "nowhere") is None


def test_a_cgroup_with_processes_of_others_is_left_alone(tmp_path: Path) -> None:
    group(tmp_path / "slice", controllers="cpu")
    own = group(tmp_path / "slice" / "unit", processes=f"1\n{os.getpid()}\n")

    assert MemoryGroups.open(own) is None
    assert (own / "cgroup.subtree_control").read_text() == ""


def test_a_group_has_the_limit_of_the_stage_that_runs_and_tells_of_a_kill(tmp_path: Path) -> None:
    added = MemoryGroups(tmp_path).add(4711)
    assert added is not None
    folder = added._folder

    added.limit(64 * MIB)
    limited = (folder / "memory.max").read_text()
    (folder / "memory.events").write_text("low 0\nhigh 0\nmax 9\noom 1\noom_kill 2\n")
    is_over = added.is_over()
    added.limit(64 * MIB)
    is_next_over = added.is_over()
    added.limit(None)

    assert limited == str(64 * MIB + MIN_MARGIN)
    assert is_over
    assert not is_next_over  # the kills were those of the stage before
    assert (folder / "memory.max").read_text() == "max"


@pytest.mark.parametrize(
    ("memory", "local", "is_over"),
    [
        (64 * MIB, "oom 1\noom_kill 1\n", True),
        (64 * MIB, "oom 0\noom_kill 1\n", False),  # by the OOM killer of the host, or of a group above
        (64 * MIB, "oom 1\noom_kill 0\n", False),
        (None, "oom 0\noom_kill 1\n", False),
        (None, "oom 1\noom_kill 1\n", False),
    ],
)
async def test_only_a_kill_by_the_limit_of_the_stage_is_over_memory(
    child: Child, tmp_path: Path, memory: int | None, local: str, is_over: bool
) -> None:
    child.group = MemoryGroups(tmp_path).add(4711)
    assert child.group is not None
    folder = child.group._folder
    (folder / "memory.events").write_text("oom 0\noom_kill 0\n")
    (folder / "memory.events.local").write_text("oom 0\noom_kill 0\n")
    ended = asyncio.create_task(outcome(child, tmp_path, "waits", memory))
    await asyncio.sleep(0)

    (folder / "memory.events").write_text("oom 5\noom_kill 5\n")
    (folder / "memory.events.local").write_text(local)
    child.process.kill()

    with pytest.raises(ChildDied) as died:
        await ended
    assert isinstance(died.value, OverMemory) == is_over
