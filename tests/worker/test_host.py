"""Whether a process is still the one it was."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import psutil
import pytest

from packhorse import host
from tests.worker.processes import born, dead, running, wait_without_reaping


def test_a_running_process_is_alive() -> None:
    with running() as process:
        assert host.is_alive(process.pid, born(process.pid))


def test_a_process_that_has_exited_is_dead() -> None:
    pid, born_at = dead()

    assert host.born(pid) is None
    assert not host.is_alive(pid, born_at)


def test_a_process_whose_status_nobody_has_asked_for_is_dead() -> None:
    with running() as process:
        born_at = born(process.pid)
        process.kill()
        wait_without_reaping(process.pid)

        assert not host.is_alive(process.pid, born_at)


@pytest.mark.parametrize("seconds", [-100.0, -0.1, 0.1, 100.0])
def test_a_pid_with_another_start_time_is_another_process(seconds: float) -> None:
    assert not host.is_alive(os.getpid(), born(os.getpid()) + seconds)


def test_a_process_is_the_same_after_the_clock_of_the_machine_has_jumped(monkeypatch: pytest.MonkeyPatch) -> None:
    born_at = born(os.getpid())
    platform = psutil._psplatform  # type: ignore[attr-defined]
    booted = platform.boot_time()

    monkeypatch.setattr(platform, "boot_time", lambda: booted + 3_600.0)

    assert host.is_alive(os.getpid(), born_at)


def test_a_process_whose_name_looks_like_more_fields_is_read_right(tmp_path: Path) -> None:
    odd = tmp_path / "a) Z 1 (b"
    shutil.copy(str(shutil.which("cat")), odd)

    with running(str(odd)) as process:
        assert host.is_alive(process.pid, born(process.pid))


class Hidden:
    """A system that shows nothing of other users' processes."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, how: type[OSError], answer: OSError | None) -> None:
        def read(_path: Path) -> bytes:
            raise how

        def look(pid: int) -> None:
            raise psutil.AccessDenied(pid) if how is PermissionError else psutil.NoSuchProcess(pid)

        def kill(_pid: int, _number: int) -> None:
            if answer is not None:
                raise answer

        monkeypatch.setattr(Path, "read_bytes", read)
        monkeypatch.setattr(psutil, "Process", look)
        monkeypatch.setattr(os, "kill", kill)


@pytest.mark.parametrize("how", [FileNotFoundError, PermissionError], ids=["hidepid=2", "hidepid=1"])
def test_a_process_of_another_user_that_is_hidden_is_alive(monkeypatch: pytest.MonkeyPatch, how: type[OSError]) -> None:
    Hidden(monkeypatch, how, PermissionError())

    assert host.is_alive(4711, 1.0)
    assert not host.is_seen_dead(host.boot(), host.pid_space(), 4711, 1.0)


def test_without_proc_a_process_that_takes_signals_is_alive(monkeypatch: pytest.MonkeyPatch) -> None:
    Hidden(monkeypatch, FileNotFoundError, None)

    assert host.is_alive(4711, 1.0)


def test_where_processes_are_hidden_one_that_does_not_exist_is_dead(monkeypatch: pytest.MonkeyPatch) -> None:
    Hidden(monkeypatch, FileNotFoundError, ProcessLookupError())

    assert not host.is_alive(4711, 1.0)


def test_this_machine_is_the_same_each_time_it_is_asked() -> None:
    assert host.boot() == host.boot() != ""
    assert host.pid_space() == host.pid_space() != ""


def test_clones_of_a_machine_differ_by_their_network_cards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They share the boot id: each would look for the other's processes, find none, and declare them dead."""
    found: list[str] = []
    for machine, address in (("a", "52:54:00:00:00:01"), ("b", "52:54:00:00:00:02")):
        for card, is_device in (("eth0", True), ("veth0", False)):
            folder = tmp_path / machine / card
            folder.mkdir(parents=True)
            (folder / "address").write_text(f"{address if is_device else '00:00:00:00:00:00'}\n")
            if is_device:
                (folder / "device").mkdir()
        monkeypatch.setattr(host, "NETWORK", tmp_path / machine)
        found.append(host.boot())
    monkeypatch.setattr(host, "NETWORK", tmp_path / "none")

    assert [each.partition(" ")[2] for each in found] == ["52:54:00:00:00:01", "52:54:00:00:00:02"]
    assert host.boot() == found[0].partition(" ")[0]
    assert not host.is_seen_dead(found[0], host.pid_space(), *dead())
