"""This machine: its identity, its processes, whether they are alive and what they may see, and its free ports."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import pwd
import socket
import sys
import time
from collections.abc import Collection
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import psutil

from packhorse.errors import PortTaken, SettingError

MARK = "UNDER_PACKHORSE"
"""Variable that says who started a process. Without the PACKHORSE_ prefix: a stage may start packhorse itself."""


SETTINGS = "PACKHORSE_"
"""Prefix of our settings in the environment."""
STARTED_WITH = frozenset(os.environ)
"""Names of the variables that this process was started with. `hide_settings` removes some."""
PR_GET_DUMPABLE, PR_SET_DUMPABLE = 3, 4
ENV_START, ENV_END = 47, 48
"""Places in /proc/self/stat after the name: where the environment begins and ends in memory."""
NETWORK = Path("/sys/class/net")


def boot() -> str:
    """An id that changes with every boot, and differs between machines that were cloned while they ran.

    Clones share the kernel's id, but not the address of their network card. Without that, each would look for the
    other's processes, find none, and declare them dead.
    """
    try:
        id = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        id = f"{socket.gethostname()}-{psutil.boot_time():.0f}"
    return f"{id} {_network_card(NETWORK)}".strip()


@cache
def _network_card(folder: Path) -> str:
    """The hardware address of the first card that is a device, because virtual ones come and go; empty if none is."""
    addresses: list[str] = []
    with suppress(OSError):
        for card in folder.iterdir():
            with suppress(OSError):
                if (card / "device").exists():
                    addresses.append((card / "address").read_text().strip())
    return min(filter(None, addresses), default="")


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
    """Now, on the same clock as `born`."""
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
    """Whether the process exists, but the system hides it."""
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

    With a mark of its own, a process that the supervisor started is not mistaken for one that a stage left behind.
    """
    kept = {name: value for name, value in os.environ.items() if not name.startswith(SETTINGS)}
    return kept | {"PYTHONUNBUFFERED": "1", "PACKHORSE_CHILD_OF": str(os.getpid()), MARK: mark}


class StageUser(NamedTuple):
    """The user that stages run as, instead of ours."""

    name: str
    uid: int
    gid: int
    home: str

    @classmethod
    def find(cls, name: str) -> StageUser | None:
        """None for an empty name. Raises SettingError if there is no such user or we cannot become it."""
        if not name:
            return None
        try:
            found = pwd.getpwnam(name)
        except KeyError:
            raise SettingError(f"There is no user {name!r} to run stages as.", name="stage_user", value=name) from None
        if os.geteuid() != 0:
            message = f"Only root can run stages as another user, {name!r}. Start the worker as root."
            raise SettingError(message, name="stage_user", value=name)
        if found.pw_uid == 0:
            message = "Stages cannot run as root: that protects nothing. Name a user without rights."
            raise SettingError(message, name="stage_user", value=name)
        return cls(name, found.pw_uid, found.pw_gid, found.pw_dir)

    def popen(self) -> dict[str, Any]:
        """Arguments of Popen. Without our groups: one of them might open what is ours."""
        return {"user": self.uid, "group": self.gid, "extra_groups": os.getgrouplist(self.name, self.gid)}

    def environment(self) -> dict[str, str]:
        return {"HOME": self.home, "USER": self.name, "LOGNAME": self.name}


def hide_settings(borrowed: Collection[str] = ()) -> None:
    """Hide settings from other processes of our user, which may run stages. Call it once they are read.

    ``borrowed``: variables with other names that settings were read from. A stage does not get them either.

    Nobody but root can read our memory or environment then, or trace us. Their values are also overwritten where the
    system shows the environment that a process was started with, because Python only forgets them.
    """
    names = {os.fsencode(name) for name in os.environ if name.startswith(SETTINGS) or name in borrowed}
    for name in names:
        os.environ.pop(os.fsdecode(name), None)
    if sys.platform != "linux":
        return
    with contextlib.suppress(OSError, ValueError, IndexError):
        stat = _stat(os.getpid()) or b""
        fields = stat.rpartition(b")")[2].split()
        _overwrite(int(fields[ENV_START]), int(fields[ENV_END]), names)
    ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)


def hides_memory() -> bool:
    """Whether the system keeps other processes of our user from reading our memory."""
    return sys.platform == "linux" and bool(ctypes.CDLL(None).prctl(PR_GET_DUMPABLE, 0, 0, 0, 0) == 0)


def _overwrite(start: int, end: int, names: set[bytes]) -> None:
    if not 0 < start < end:
        return
    at = start
    for entry in ctypes.string_at(start, end - start).split(b"\0"):
        name, _, value = entry.partition(b"=")
        if name in names and value:
            ctypes.memset(at + len(entry) - len(value), 0, len(value))
        at += len(entry) + 1


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
