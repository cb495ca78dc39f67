"""Power cuts: what processes did to a folder is logged, and replayed up to any point as a disk may have kept it.

A sync keeps what was written to that file, or the names that were made in that folder, before it. Of everything else a
power cut keeps nothing, all of it, or some: single sectors of a write, and the first few changes of a folder.
"""

from __future__ import annotations

import contextlib
import os
import random
import stat
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

HEAD = struct.Struct("<cQQII")
"""As in disk.c: kind, inode, number, length of the path, length of the data."""
SECTOR = 4096
KEEPS = (0.0, 0.5, 1.0)
"""How much of what is not synced a cut keeps: nothing, some of it, everything."""


@dataclass(frozen=True)
class Record:
    kind: str
    inode: int
    number: int
    path: str
    data: bytes


def mark(log: Path, kind: str, text: str, data: bytes = b"") -> None:
    """Note in the same log that a caller was told something: ``A`` for accepted, ``E`` for ended."""
    raw = text.encode()
    fd = os.open(log, os.O_WRONLY | os.O_APPEND)
    try:
        os.write(fd, HEAD.pack(kind.encode(), 0, 0, len(raw), len(data)) + raw + data)
    finally:
        os.close(fd)


def read(log: Path) -> list[Record]:
    raw, at, found = log.read_bytes(), 0, []
    while at + HEAD.size <= len(raw):
        kind, inode, number, path, data = HEAD.unpack_from(raw, at)
        at += HEAD.size
        if at + path + data > len(raw):
            break  # the last one, cut off by the kill
        found.append(
            Record(kind.decode(), inode, number, raw[at : at + path].decode(), raw[at + path : at + path + data])
        )
        at += path + data
    return found


@dataclass
class Node:
    """A file or a folder: what is durable, and what was done since."""

    is_folder: bool
    mode: int
    durable_mode: int
    data: bytearray = field(default_factory=bytearray)
    names: dict[str, Node] = field(default_factory=dict)
    writes: list[tuple[int, bytes | None]] = field(default_factory=list)
    """Where, and what; None cuts the file off there."""
    changes: list[tuple[str, Node | None]] = field(default_factory=list)
    """A name, and what it stands for from then on."""

    synced: tuple[int, int] = (0, 0)
    """How many writes and changes are durable, and no longer in these lists."""
    begun: dict[int, tuple[int, int]] = field(default_factory=dict)
    """What there was when a thread began to sync."""

    def begin_sync(self, thread: int) -> None:
        self.begun[thread] = (self.synced[0] + len(self.writes), self.synced[1] + len(self.changes))

    def end_sync(self, thread: int) -> None:
        """What was done since it began may have missed it."""
        writes, changes = (
            max(0, count - before) for count, before in zip(self.begun.pop(thread), self.synced, strict=True)
        )
        for at, data in self.writes[:writes]:
            _write(self.data, at, data)
        for name, node in self.changes[:changes]:
            _rename(self.names, name, node)
        del self.writes[:writes], self.changes[:changes]
        self.synced = (self.synced[0] + writes, self.synced[1] + changes)
        self.durable_mode = self.mode


class Disk:
    """The folder at one point of the log."""

    def __init__(self, root: str) -> None:
        self._root = Node(is_folder=True, mode=0o755, durable_mode=0o755)
        self._at = {root: self._root}
        self._inodes: dict[int, Node] = {}
        self._root_path = root

    def apply(self, record: Record) -> None:
        if record.kind == "m" and record.path in self._at:
            self._inodes[record.inode] = self._at[record.path]
        elif record.kind in "cm":
            node = Node(record.kind == "m", record.number, record.number)
            self._inodes[record.inode] = node
            self._name(record.path, node)
        elif record.kind == "l":
            self._name(record.path, self._inodes[record.inode])
        elif record.kind == "u":
            self._name(record.path, None)
        elif record.kind in "wtpbs":
            node = self._root if record.path == self._root_path else self._inodes[record.inode]
            if record.kind == "b":
                node.begin_sync(record.number)
            elif record.kind == "s":
                node.end_sync(record.number)
            elif record.kind == "p":
                node.mode = record.number
            else:
                node.writes.append((record.number, record.data if record.kind == "w" else None))

    def _name(self, path: str, node: Node | None) -> None:
        above, _, name = path.rpartition("/")
        if above not in self._at:  # another process made it, and is about to write so into the log
            self._name(above, Node(is_folder=True, mode=0o755, durable_mode=0o755))
        self._at[above].changes.append((name, node))
        if node is None:
            self._at.pop(path, None)
        else:
            self._at[path] = node

    def cut(self, to: Path, keep: float, chance: random.Random) -> None:
        """Write to a folder what a power cut at this point leaves."""
        _leave(self._root, to, keep, chance, {})


def cuts(records: list[Record], root: str, count: int, to: Path, chance: random.Random) -> Iterator[tuple[int, float]]:
    """Leave the folder as it is after so many cuts, one after the other: how many records each comes after."""
    first = next((at for at, record in enumerate(records) if record.kind == "A"), 0)
    points = sorted(chance.randrange(first, len(records) + 1) for _ in range(count))
    disk, done = Disk(root), 0
    for point in points:
        while done < point:
            disk.apply(records[done])
            done += 1
        keep = chance.choice(KEEPS)
        disk.cut(to, keep, chance)
        yield point, keep


def _leave(node: Node, to: Path, keep: float, chance: random.Random, made: dict[int, Path]) -> None:
    if id(node) in made:  # a hard link
        os.link(made[id(node)], to)
        return
    made[id(node)] = to
    if not node.is_folder:
        data = bytearray(node.data)
        for at, part in node.writes:
            for offset, piece in _sectors(at, part):
                if chance.random() < keep:
                    _write(data, offset, piece)
        to.write_bytes(data)
    else:
        names = dict(node.names)
        kept = len(node.changes) if keep == 1.0 else chance.randrange(len(node.changes) + 1) if keep else 0
        for name, other in node.changes[:kept]:
            _rename(names, name, other)
        to.mkdir(exist_ok=True)
        for name, other in names.items():
            _leave(other, to / name, keep, chance, made)
    to.chmod(stat.S_IMODE(node.mode if chance.random() < keep else node.durable_mode) | stat.S_IRUSR)


def _sectors(at: int, data: bytes | None) -> Iterator[tuple[int, bytes | None]]:
    if data is None:
        yield at, None
        return
    start = 0
    while start < len(data):
        end = min(len(data), ((at + start) // SECTOR + 1) * SECTOR - at)
        yield at + start, data[start:end]
        start = end


def _write(data: bytearray, at: int, part: bytes | None) -> None:
    if part is None:
        del data[at:]
    if len(data) < at:
        data.extend(bytes(at - len(data)))
    if part is not None:
        data[at : at + len(part)] = part


def _rename(names: dict[str, Node], name: str, node: Node | None) -> None:
    if node is None:
        names.pop(name, None)
    else:
        names[name] = node


def remove(folder: Path) -> None:
    """Files and folders of a cut may be read-only."""
    for path in sorted(folder.rglob("*"), reverse=True):
        with contextlib.suppress(OSError):
            if path.is_dir():
                path.rmdir()
            else:
                path.unlink()
    folder.rmdir()
