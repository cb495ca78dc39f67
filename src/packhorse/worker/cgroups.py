"""Memory limits of whole process trees: a cgroup (version 2) per child, where the system lets this worker make them.

A worker under systemd may with `Delegate=yes`, one in a container if `/sys/fs/cgroup` is writable there. Elsewhere the
limit per process in `worker/child/memory.py` has to do.
"""

from __future__ import annotations

import contextlib
import itertools
import os
from pathlib import Path

import psutil

MIN_MARGIN = 16 * 1024**2
"""Bytes above a stage's limit at which the kernel kills it: it counts page tables and buffers as well."""
NO_LIMIT = "max"


class MemoryGroup:
    """The cgroup of one child and of every process it starts."""

    def __init__(self, folder: Path, ended: list[Path] | None = None) -> None:
        self._folder = folder
        self._ended = [] if ended is None else ended
        self._memory: int | None = None
        self._limit: int | None = None
        self._before = self._count()

    def limit(self, memory: int | None) -> None:
        """Set the limit of the stage that starts now."""
        self._memory = memory
        if memory is not None:
            self._before = self._count()
        if memory == self._limit:
            return
        most = NO_LIMIT if memory is None else str(memory + max(memory // 16, MIN_MARGIN))
        with contextlib.suppress(OSError):  # swap may not be counted here
            (self._folder / "memory.swap.max").write_text(NO_LIMIT if memory is None else "0")
        with contextlib.suppress(OSError):  # the other limits still hold
            (self._folder / "memory.max").write_text(most)
            self._limit = memory

    def is_over(self) -> bool:
        """Whether the kernel has ended processes because the stage reached its own limit.

        The kernel counts kills by the OOM killer of the host or of a group above as well, but not as `oom` of this one.
        """
        if self._memory is None or self._memory != self._limit:
            return False
        return all(now > before for now, before in zip(self._count(), self._before, strict=True))

    def remove(self) -> None:
        """Remove the group now, or with a later one if processes in it have not ended yet."""
        self._ended.append(self._folder)
        _remove(self._ended)

    def _count(self) -> tuple[int, int]:
        """How often the group reached its limit, and how many of its processes an OOM killer has ended."""
        for name in ("memory.events.local", "memory.events"):
            with contextlib.suppress(OSError):
                counts = dict(line.split() for line in (self._folder / name).read_text().splitlines())
                return int(counts.get("oom", 0)), int(counts.get("oom_kill", 0))
        return 0, 0


class MemoryGroups:
    def __init__(self, base: Path) -> None:
        self._base = base
        self._numbers = itertools.count(1)
        self._ended: list[Path] = []
        """Groups that could not be removed yet."""

    @classmethod
    def open(cls, own: Path | None = None) -> MemoryGroups | None:
        """None if this process cannot make cgroups with a memory limit. ``own`` is the cgroup of this process.

        Groups are made only below it: its limits hold for stages too, and stopping it stops them.
        """
        own = own or _own_group()
        if own is None:
            return None
        with contextlib.suppress(OSError):
            _remove(_stale(own))
            _enable_memory(own)
            groups = cls(own)
            groups._try()
            return groups
        return None

    def add(self, pid: int) -> MemoryGroup | None:
        """A group for a process that has just been started. None if there can be no more."""
        _remove(self._ended)
        folder = self._folder()
        try:
            folder.mkdir()
            (folder / "memory.oom.group").write_text("1")  # half a stage is of no use
            (folder / "cgroup.procs").write_text(str(pid))
        except OSError:
            with contextlib.suppress(OSError):
                folder.rmdir()
            return None
        return MemoryGroup(folder, self._ended)

    def _try(self) -> None:
        """Raises OSError if a group here cannot have a limit."""
        folder = self._folder()
        folder.mkdir()
        try:
            (folder / "memory.max").write_text(NO_LIMIT)
        finally:
            with contextlib.suppress(OSError):
                folder.rmdir()

    def _folder(self) -> Path:
        return self._base / f"packhorse-{os.getpid()}-{next(self._numbers)}"


def _remove(folders: list[Path]) -> None:
    """Remove these groups. Those that still have processes stay in the list."""
    for folder in list(folders):
        try:
            folder.rmdir()
        except FileNotFoundError:
            pass
        except OSError:
            continue
        folders.remove(folder)


def _stale(base: Path) -> list[Path]:
    """Groups of workers that have ended without removing them. One of them may have had the pid of this process."""
    found = ((folder, folder.name.split("-")[1]) for folder in base.glob("packhorse-*"))
    return [
        folder
        for folder, pid in found
        if pid.isdecimal() and (int(pid) == os.getpid() or not psutil.pid_exists(int(pid)))
    ]


def _enable_memory(own: Path) -> None:
    """Let groups below ``own`` limit memory. The kernel refuses that while the group has processes itself."""
    if "memory" not in (own / "cgroup.controllers").read_text().split():
        raise OSError("the memory of this cgroup is not ours to divide")
    switch = own / "cgroup.subtree_control"
    if "memory" in switch.read_text().split():
        return
    here = {int(pid) for pid in (own / "cgroup.procs").read_text().split()}
    if here != {os.getpid()}:
        raise OSError("this cgroup has other processes, which are not ours to move")
    inner = own / f"packhorse-{os.getpid()}"
    inner.mkdir()
    (inner / "cgroup.procs").write_text(str(os.getpid()))
    switch.write_text("+memory")


def _own_group() -> Path | None:
    try:
        mounts = [line.split() for line in Path("/proc/self/mountinfo").read_text().splitlines()]
        mount = next(fields[4] for fields in mounts if fields[fields.index("-") + 1] == "cgroup2")
        groups = Path("/proc/self/cgroup").read_text().splitlines()
        name = next(line.removeprefix("0::/") for line in groups if line.startswith("0::/"))
    except (OSError, StopIteration, ValueError):
        return None
    return Path(mount) / name
