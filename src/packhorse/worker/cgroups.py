"""Memory limits of whole process trees: a cgroup (version 2) per child, where the system lets this worker make them.

A worker under systemd may with `Delegate=yes`, one in a container if `/sys/fs/cgroup` is writable there. Elsewhere the
limit per process in `worker/child/memory.py` has to do.
"""

from __future__ import annotations

import contextlib
import itertools
import os
from pathlib import Path

MIN_MARGIN = 16 * 1024**2
"""Bytes above a stage's limit at which the kernel kills it: it counts page tables and buffers as well."""
NO_LIMIT = "max"


class MemoryGroup:
    """The cgroup of one child and of every process it starts."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._limit: int | None = None
        self._kills = self._count_kills()

    def limit(self, memory: int | None) -> None:
        if memory == self._limit:
            return
        most = NO_LIMIT if memory is None else str(memory + max(memory // 16, MIN_MARGIN))
        with contextlib.suppress(OSError):  # swap may not be counted here
            (self._folder / "memory.swap.max").write_text(NO_LIMIT if memory is None else "0")
        with contextlib.suppress(OSError):  # the other limits still hold
            (self._folder / "memory.max").write_text(most)
            self._limit = memory

    def has_killed(self) -> bool:
        """Whether the kernel has ended processes because they were over the limit."""
        return self._count_kills() > self._kills

    def remove(self) -> None:
        with contextlib.suppress(OSError):
            self._folder.rmdir()

    def _count_kills(self) -> int:
        with contextlib.suppress(OSError):
            counts = dict(line.split() for line in (self._folder / "memory.events").read_text().splitlines())
            return int(counts.get("oom_kill", 0))
        return 0


class MemoryGroups:
    def __init__(self, base: Path) -> None:
        self._base = base
        self._numbers = itertools.count(1)

    @classmethod
    def open(cls, own: Path | None = None) -> MemoryGroups | None:
        """None if this process cannot make cgroups with a memory limit. ``own`` is the cgroup of this process."""
        own = own or _own_group()
        if own is None:
            return None
        for base in (own, own.parent):
            with contextlib.suppress(OSError):
                _enable_memory(base, own)
                groups = cls(base)
                groups._try()
                return groups
        return None

    def add(self, pid: int) -> MemoryGroup | None:
        """A group for a process that has just been started. None if there can be no more."""
        folder = self._folder()
        try:
            folder.mkdir()
            (folder / "memory.oom.group").write_text("1")  # half a stage is of no use
            (folder / "cgroup.procs").write_text(str(pid))
        except OSError:
            with contextlib.suppress(OSError):
                folder.rmdir()
            return None
        return MemoryGroup(folder)

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


def _enable_memory(base: Path, own: Path) -> None:
    """Let groups below ``base`` limit memory. The kernel refuses that while the group has processes itself."""
    if "memory" not in (base / "cgroup.controllers").read_text().split():
        raise OSError("the memory of this cgroup is not ours to divide")
    switch = base / "cgroup.subtree_control"
    if "memory" in switch.read_text().split():
        return
    if base == own:
        here = {int(pid) for pid in (base / "cgroup.procs").read_text().split()}
        if here != {os.getpid()}:
            raise OSError("this cgroup has other processes, which are not ours to move")
        inner = base / f"packhorse-{os.getpid()}"
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
