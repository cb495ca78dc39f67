"""The children of a worker: one that is still loading belongs to it, too."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import subprocess
import threading
from collections.abc import Sequence
from pathlib import Path

import psutil
import pytest

from packhorse import host
from packhorse.background import alerts
from packhorse.core import json
from packhorse.core.redaction import redact
from packhorse.define.registry import load
from packhorse.errors import DefinitionError
from packhorse.worker.child.messages import Document, Made, Moved, Run
from packhorse.worker.pool import Pool, Room, describe
from packhorse.worker.process import Call, Child
from tests.journey.site import until
from tests.worker.processes import running

SLOW = """
import time
from packhorse import App

time.sleep(0.5)
app = App("slow")

@app.job
def work() -> int:
    return 1
"""


async def test_the_end_of_one_child_leaves_another_that_is_loading_alone(tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text(SLOW)
    told: list[str] = []
    pool = Pool(str(tmp_path / "slow.py"), recycle=10, memory=0, grace=1.0, scratch=tmp_path, log_line=told.append)
    await pool.open()
    try:
        first = await pool.single()
        loading = asyncio.create_task(pool.single())

        async def is_born() -> bool | None:
            return True if len(pool._all) == 2 else None

        await until(is_born, 40, lambda: "the second child was not started")
        await pool.end(first)
        second = await loading

        assert not second.has_ended.is_set()
        assert pool._all == {second}
    finally:
        await pool.close()


async def test_a_child_whose_attempt_is_ended_while_it_is_being_started_is_not_left_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "slow.py").write_text(SLOW)
    pool = Pool(str(tmp_path / "slow.py"), recycle=10, memory=0, grace=1.0, scratch=tmp_path, log_line=print)
    await pool.open()
    try:
        register, registered = pool._register, list[Child]()

        def cancelled(child: Child) -> None:
            register(child)
            registered.append(child)
            starting.cancel()  # the process is there, and the wires to it are not

        monkeypatch.setattr(pool, "_register", cancelled)
        starting = asyncio.create_task(pool.single())
        with pytest.raises(asyncio.CancelledError):
            await starting

        [child] = registered
        assert child.has_ended.is_set()
    finally:
        await pool.close()


async def test_a_child_that_cannot_be_waited_for_in_a_thread_is_ended_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_more(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    (tmp_path / "slow.py").write_text(SLOW)
    pool = Pool(str(tmp_path / "slow.py"), recycle=10, memory=0, grace=1.0, scratch=tmp_path, log_line=print)
    await pool.open()
    try:
        monkeypatch.setattr(threading.Thread, "start", no_more)
        child = await pool.single()
        await pool.end(child)
        monkeypatch.undo()

        assert child.has_ended.is_set()
        assert not psutil.pid_exists(child.pid)
    finally:
        await pool.close()


async def test_a_child_that_has_ended_is_sent_no_signal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "slow.py").write_text(SLOW)
    pool = Pool(str(tmp_path / "slow.py"), recycle=10, memory=0, grace=20.0, scratch=tmp_path, log_line=print)
    sent: list[tuple[int, int]] = []
    kill_group = os.killpg

    def noted(pid: int, number: int) -> None:
        sent.append((number, host.born(pid) is None and not psutil.pid_exists(pid)))
        kill_group(pid, number)

    await pool.open()
    try:
        child = await pool.single()
        monkeypatch.setattr(os, "killpg", noted)
        await pool.end(child)
        await pool.end(child)

        assert sent == [(signal.SIGTERM, False), (signal.SIGKILL, False)]
    finally:
        await pool.close()


async def test_a_system_without_processes_is_tried_again_and_leaves_nothing_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_process(*_: object, **__: object) -> None:
        raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")

    (tmp_path / "slow.py").write_text(SLOW)
    pool = Pool(str(tmp_path / "slow.py"), recycle=10, memory=0, grace=1.0, scratch=tmp_path, log_line=print)
    await pool.open()
    try:
        there = os.listdir("/proc/self/fd")
        with monkeypatch.context() as patch:
            patch.setattr(subprocess, "Popen", no_process)
            with pytest.raises(DefinitionError, match="No process can be started: Resource temporarily unavailable"):
                await pool.single()
            await pool.reload()
            left = os.listdir("/proc/self/fd")
        meanwhile = pool.room()
        await pool.reload()

        assert len(left) == len(there)
        assert meanwhile == Room(0, False)
        assert pool.room() is None
        assert len(pool._all) == 1
    finally:
        await pool.close()


async def test_whoever_loads_the_mended_app_takes_the_place_of_one_that_is_idle(tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text(SLOW)
    pool = Pool(str(tmp_path / "slow.py"), recycle=10, memory=0, grace=1.0, scratch=tmp_path, log_line=print)
    await pool.open()
    try:
        old = await pool.single()
        pool.give_back(old)

        await pool.reload()

        await asyncio.wait_for(old.has_ended.wait(), 40)
        assert await pool.single() is not old
    finally:
        await pool.close()


async def test_those_who_wait_for_the_shared_process_fail_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "slow.py").write_text("oops(")
    pool = Pool(str(tmp_path / "slow.py"), recycle=10, memory=0, grace=1.0, scratch=tmp_path, log_line=print)
    started: list[Child] = []
    register = pool._register

    def counted(child: Child) -> None:
        started.append(child)
        register(child)

    monkeypatch.setattr(pool, "_register", counted)
    await pool.open()
    try:
        errors = await asyncio.gather(*(pool.shared() for _ in range(3)), return_exceptions=True)

        assert [isinstance(error, DefinitionError) for error in errors] == [True] * 3
        assert len(started) == 1
    finally:
        await pool.close()


async def test_a_child_that_has_grown_too_large_is_not_used_again(tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text(SLOW)
    pool = Pool(str(tmp_path / "slow.py"), recycle=10, memory=1000, grace=1.0, scratch=tmp_path, log_line=print)
    await pool.open()
    try:
        child = await pool.single()
        child.memory = 1001

        pool.give_back(child)

        await asyncio.wait_for(child.has_ended.wait(), 40)
        assert await pool.single() is not child
    finally:
        await pool.close()


LEAVING = """
import os
import time
from pathlib import Path
from packhorse import App

app = App("leaving")

def daemon(note: Path) -> None:
    if os.fork() == 0:
        os.setsid()
        pid = os.fork()
        if pid == 0 and "wiped" in note.name:
            os.execve("/bin/sleep", ["sleep", "600"], {"PATH": "/bin"})
        if pid == 0:
            time.sleep(600)
        note.with_suffix(".new").write_text(str(pid))
        note.with_suffix(".new").rename(note)
        os._exit(0)
    os.wait()

@app.job
def leave(note: str, flag: str) -> int:
    daemon(Path(note))
    while flag and not Path(flag).exists():
        time.sleep(0.01)
    return 1
"""


class Deaf:
    secrets: tuple[str, ...] = ()

    def on_progress(self, message: Moved) -> None: ...

    def on_artifact(self, message: Made) -> None: ...

    def on_lines(self, lines: Sequence[str], secrets: Sequence[str] = ()) -> None: ...


async def test_a_daemon_goes_with_its_stage_and_its_warm_child_stays(tmp_path: Path) -> None:
    (tmp_path / "leaving.py").write_text(LEAVING)
    pool = Pool(str(tmp_path / "leaving.py"), recycle=10, memory=0, grace=1.0, scratch=tmp_path, log_line=print)
    [kind] = load(str(tmp_path / "leaving.py")).by_kind

    async def daemon(child: Child, name: str, flag: str = "") -> tuple[int, Call]:
        parameters = Document(json.encode({"note": str(tmp_path / name), "flag": flag}))
        call = child.run(Run(child.number(), kind, "j", "u", "t", 1, 0, str(tmp_path), parameters), Deaf())

        async def is_noted() -> bool | None:
            return (tmp_path / name).exists() or None

        await until(is_noted, 40, lambda: f"{name} was not started")
        return int((tmp_path / name).read_text()), call

    await pool.open()
    try:
        first, second = await pool.single(), await pool.single()
        in_use, under_way = await daemon(first, "in-use", str(tmp_path / "flag"))
        left, through = await daemon(second, "left")
        await through.outcome
        pool.give_back(second)
        await gone(left)
        spared = host.born(in_use)
        (tmp_path / "flag").touch()
        await under_way.outcome
        pool.give_back(first)
        await gone(in_use)

        assert spared is not None
        assert not first.has_ended.is_set()
        assert not second.has_ended.is_set()
    finally:
        await pool.close()


async def test_only_what_a_stage_has_started_is_ended(tmp_path: Path) -> None:
    (tmp_path / "leaving.py").write_text(LEAVING)
    pool = Pool(str(tmp_path / "leaving.py"), recycle=10, memory=0, grace=1.0, scratch=tmp_path, log_line=print)
    [kind] = load(str(tmp_path / "leaving.py")).by_kind
    wiped = {"PATH": os.environ["PATH"]}
    with running(new_session=True, env=wiped) as before:
        await pool.open()
        with running(new_session=True) as beside, running(new_session=True, env={host.MARK: "another's"}) as anothers:
            try:
                child = await pool.single()
                parameters = Document(json.encode({"note": str(tmp_path / "wiped"), "flag": ""}))
                call = child.run(Run(child.number(), kind, "j", "u", "t", 1, 0, str(tmp_path), parameters), Deaf())
                await call.outcome
                pool.give_back(child)
                await gone(int((tmp_path / "wiped").read_text()))

                assert not await pool._end_orphans()
                assert [host.born(each.pid) is None for each in (before, beside, anothers)] == [False] * 3
            finally:
                await pool.close()


async def test_a_worker_spares_its_own_alert_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PACKHORSE_STORE", "redis://elsewhere")
    monkeypatch.setattr(host, "STARTED_WITH", frozenset(os.environ))
    pool = Pool("app.py", recycle=10, memory=0, grace=1.0, scratch=tmp_path, log_line=print)
    note = tmp_path / "note"
    waits = f"echo > {note}; while [ ! -e {tmp_path}/flag ]; do sleep 0.01; done"
    await pool.open()
    try:
        command = asyncio.create_task(alerts.run(["/bin/sh", "-c", waits], b""))

        async def has_begun() -> bool | None:
            return note.exists() or None

        await until(has_begun, 40, lambda: "the command was not started")

        assert not await pool._end_orphans()
        (tmp_path / "flag").touch()
        assert await command is None
    finally:
        await pool.close()


async def gone(pid: int) -> None:
    """Ended and reaped."""

    async def is_gone() -> bool | None:
        return not psutil.pid_exists(pid) or None

    await until(is_gone, 40, lambda: f"{pid} is still there")


QUIET = """
import os
import time
from pathlib import Path
from packhorse import App

app = App("quiet")

@app.job
def hush(flag: str) -> int:
    os.close(1)
    os.close(2)
    while not Path(flag).exists():
        time.sleep(0.01)
    return 1
"""


class Listening(Deaf):
    def __init__(self) -> None:
        self.lines: list[str] = []

    def on_lines(self, lines: Sequence[str], secrets: Sequence[str] = ()) -> None:
        self.lines += [redact(line, secrets) for line in lines]


async def test_a_stage_that_closes_its_output_does_not_hear_who_gets_the_number_next(tmp_path: Path) -> None:
    (tmp_path / "quiet.py").write_text(QUIET)
    pool = Pool(str(tmp_path / "quiet.py"), recycle=10, memory=0, grace=1.0, scratch=tmp_path, log_line=print)
    [kind] = load(str(tmp_path / "quiet.py")).by_kind
    reading, writing = os.pipe()
    os.set_blocking(reading, False)
    await pool.open()
    try:
        child = await pool.single()
        assert child._output is not None
        number = child._output._fd
        ears = Listening()
        parameters = Document(json.encode({"flag": str(tmp_path / "flag")}))
        call = child.run(Run(child.number(), kind, "j", "u", "t", 1, 0, str(tmp_path), parameters), ears)

        async def is_closed() -> bool | None:
            return (not Path(f"/proc/self/fd/{number}").exists()) or None

        await until(is_closed, 40, lambda: "the pipe is still open")
        os.dup2(reading, number)
        os.write(writing, b"another job's secret\n")
        (tmp_path / "flag").touch()
        await call.outcome

        assert os.read(reading, 100) == b"another job's secret\n"
        assert ears.lines == []
        for each in (reading, writing, number):
            os.close(each)
    finally:
        await pool.close()


async def test_an_app_without_a_pipeline_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "empty.py").write_text('from packhorse import App\napp = App("empty")\n')

    with pytest.raises(DefinitionError, match=r"empty.py defines no pipeline"):
        await describe(str(tmp_path / "empty.py"))
