"""The guard outlives a supervisor that was killed, for as long as it takes to end what that left behind."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from packhorse import host
from packhorse.worker.child import guard
from tests.store.blocked import until
from tests.worker.processes import running

LIMIT = 10.0


@pytest.fixture
def guarding() -> Iterator[subprocess.Popen[bytes]]:
    with running(sys.executable, "-ISE", guard.__file__, new_session=True) as process:
        yield process


def tell(process: subprocess.Popen[bytes], *lines: str) -> None:
    assert process.stdin is not None
    process.stdin.write("".join(f"{line}\n" for line in lines).encode())
    process.stdin.flush()


def hang_up(process: subprocess.Popen[bytes]) -> None:
    """As the kernel does for a supervisor that is gone."""
    assert process.stdin is not None
    process.stdin.close()
    assert process.wait(LIMIT) == 0


def filled(folder: Path) -> Path:
    (folder / "deep" / "er").mkdir(parents=True)
    (folder / "deep" / "er" / "left.bin").write_bytes(b"over")
    return folder


async def test_groups_and_folders_are_gone_once_the_supervisor_is(
    guarding: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    folder = filled(tmp_path / "scratch")
    note = tmp_path / "grandchild"
    with running("sh", "-c", f"sleep 600 & echo $! > {note}; cat", new_session=True) as leader:
        await until(lambda: note.exists() and note.read_text().endswith("\n"))
        tell(guarding, f"+{leader.pid}", str(folder))

        hang_up(guarding)

        assert leader.wait(LIMIT) == -signal.SIGKILL
        await until(lambda: host.born(int(note.read_text())) is None)
        assert not folder.exists()


def test_a_group_that_was_taken_back_is_spared(guarding: subprocess.Popen[bytes]) -> None:
    with running(new_session=True) as spared, running(new_session=True) as ended:
        tell(guarding, f"+{spared.pid}", f"+{ended.pid}", f"-{spared.pid}")

        hang_up(guarding)

        assert ended.wait(LIMIT) == -signal.SIGKILL
        assert spared.poll() is None


def test_a_group_that_is_gone_already_keeps_no_other_alive(guarding: subprocess.Popen[bytes], tmp_path: Path) -> None:
    folder = filled(tmp_path / "scratch")
    with running(new_session=True) as gone:
        pass
    with running(new_session=True) as left:
        tell(guarding, f"+{gone.pid}", f"+{left.pid}", "/no/such/folder", str(folder))

        hang_up(guarding)

        assert left.wait(LIMIT) == -signal.SIGKILL
        assert not folder.exists()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_the_guard_does_not_let_itself_be_sent_away(
    guarding: subprocess.Popen[bytes], number: signal.Signals
) -> None:
    with running(new_session=True) as child:
        tell(guarding, f"+{child.pid}")
        await until(lambda: ignores(guarding.pid, number))

        guarding.send_signal(number)
        hang_up(guarding)

        assert child.wait(LIMIT) == -signal.SIGKILL


def ignores(pid: int, number: signal.Signals) -> bool:
    """Whether the process has come so far as to ask the kernel not to pass the signal on."""
    status = Path(f"/proc/{pid}/status").read_text()
    ignored = next(line.split()[1] for line in status.splitlines() if line.startswith("SigIgn"))
    return bool(int(ignored, 16) & 1 << (number - 1))
