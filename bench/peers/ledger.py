"""Reads what jobs of all contenders have written: lines of ``id kind CLOCK_MONOTONIC``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

Times = dict[int, list[int]]
"""By job, in nanoseconds, in the order they were written."""


class Ledger:
    """Reads on where it stopped: whoever looks often must not take the time of those who are measured."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._at = 0
        self._times: dict[str, Times] = {}

    def times(self, kind: str, jobs: Iterable[int]) -> Times:
        """Of those jobs that have such a line."""
        self._read()
        found = self._times.get(kind, {})
        return {job: found[job] for job in jobs if job in found}

    def _read(self) -> None:
        if not self._path.exists():
            return
        with self._path.open("rb") as file:
            file.seek(self._at)
            data = file.read()
        self._at += data.rfind(b"\n") + 1
        for job, kind, at in parsed(data):
            self._times.setdefault(kind, {}).setdefault(job, []).append(at)


def parsed(data: bytes) -> Iterator[tuple[int, str, int]]:
    """Job, kind and time of each whole line."""
    for line in data[: data.rfind(b"\n") + 1].splitlines():
        job, kind, at = line.split()
        yield int(job), kind.decode(), int(at)


def rate(times: Times) -> float:
    """Jobs per second from the first line to the last."""
    all_of_them = [at for each in times.values() for at in each]
    return (len(all_of_them) - 1) / ((max(all_of_them) - min(all_of_them)) / 1e9)


def repeated(times: Times) -> int:
    """Jobs with more than one line."""
    return sum(len(each) > 1 for each in times.values())
