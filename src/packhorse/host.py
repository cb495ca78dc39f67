"""This machine: its identity, its processes and whether they are alive, and its free ports."""

from __future__ import annotations

import errno
import os
import socket
import time
from pathlib import Path

import psutil

from packhorse.errors import PortTaken, SettingError

MARK = "UNDER_PACKHORSE"
"""Variable that says who started a process. Without the PACKHORSE_ prefix: a stage may start packhorse itself."""


def boot() -> str:
    """An id that changes with every boot."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return f"{socket.gethostname()}-{psutil.boot_time():.0f}"


def pid_space() -> str:
    """The pid namespace of this process: containers on one host have different ones."""
    try:
        return str(os.stat("/proc/self/ns/pid").st_ino)
    except OSError:
        return "host"


def born(pid: int, *, or_zombie: bool = False) -> float | None:
    """When the process started, None if there is none. A zombie has ended; its parent has not read its status yet.

    In seconds since boot, where the system tells it: the time of day jumps when the clock is set, and then every
    process would look like a new one that reuses the pid of a dead one.
    """
    stat = _stat(pid)
    if stat is None:
        return _born_by_the_clock(pid, or_zombie)
    if not stat:
        return None
    state, *fields = stat.rpartition(b")")[2].split()  # the name before it may contain spaces and brackets
    return None if state in (b"Z", b"X") and not or_zombie else int(fields[18]) / os.sysconf("SC_CLK_TCK")


def _stat(pid: int) -> bytes | None:
    """What the system shows of a process: empty if it has just ended, None if nothing is shown."""
    try:
        return Path(f"/proc/{pid}/stat").read_bytes()
    except ProcessLookupError:
        return b""
    except OSError:
        return None


def _born_by_the_clock(pid: int, or_zombie: bool) -> float | None:
    try:
        process = psutil.Process(pid)
        if process.status() == psutil.STATUS_ZOMBIE and not or_zombie:
            return None
        return process.create_time()
    except psutil.Error:
        return None


def clock() -> float:
    """Now, by the clock of `born`."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.time()


def is_seen_dead(boot_id: str, space: str, pid: int, born_at: float) -> bool:
    """Whether this process can tell that it is dead. For another machine or container it cannot."""
    return (boot_id, space) == (boot(), pid_space()) and not is_alive(pid, born_at)


def is_alive(pid: int, born_at: float) -> bool:
    """Compares the start time too, because the system reuses pids.

    A process whose start time is hidden counts as alive, as those of other users are under ``hidepid=2``.
    """
    found = born(pid)
    return _is_hidden(pid) if found is None else abs(found - born_at) < 0.05


def _is_hidden(pid: int) -> bool:
    """Whether there is a process of which the system shows nothing."""
    if _stat(pid) is not None:
        return False
    try:
        if psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:  # a system without /proc
            return False
    except psutil.AccessDenied:
        return True
    except psutil.Error:
        pass  # with /proc, psutil cannot tell a hidden process from one that has ended
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def child_environment(mark: str) -> dict[str, str]:
    """The user's environment without packhorse's settings: a stage must not reach the store.

    With a mark of its own, a process that the supervisor started is not taken for one that a stage left behind.
    """
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PACKHORSE_")}
    return kept | {"PYTHONUNBUFFERED": "1", "PACKHORSE_CHILD_OF": str(os.getpid()), MARK: mark}


def require_free_port(host: str, port: int) -> None:
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # else a port just left counts as taken
        try:
            probe.bind((host, port))
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise PortTaken(host=host, port=port) from error
            raise SettingError(f"Nothing can listen on {host}:{port}: {error.strerror}.", name="host") from error


def free_port(host: str = "127.0.0.1") -> int:
    with socket.socket() as probe:
        probe.bind((host, 0))
        port: int = probe.getsockname()[1]
        return port
