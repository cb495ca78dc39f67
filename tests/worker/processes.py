"""Real processes for tests that are about who is alive."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress

from packhorse import host


@contextmanager
def running(
    *command: str, new_session: bool = False, env: Mapping[str, str] | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    """A process that lives until its standard input is closed, or it is killed."""
    process = subprocess.Popen(command or ("cat",), stdin=subprocess.PIPE, start_new_session=new_session, env=env)
    assert process.stdin is not None
    try:
        yield process
    finally:
        process.kill()
        if new_session:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        process.stdin.close()


def born(pid: int) -> float:
    found = host.born(pid)
    assert found is not None
    return found


def dead() -> tuple[int, float]:
    """Pid and start time of a process that was there."""
    with running() as process:
        return process.pid, born(process.pid)


def wait_without_reaping(pid: int) -> None:
    """Until it has ended; it stays a zombie."""
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
