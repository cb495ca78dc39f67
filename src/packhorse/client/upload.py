"""Files on their way to the server: read while they are sent, never held."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from packhorse.errors import InvalidInput

Part = tuple[str, tuple[str, Any]]


def fields(asked: Mapping[str, Any]) -> dict[str, str]:
    """Each value as a part of its own: text as it is, anything else as JSON."""
    return {
        name: value if isinstance(value, str) else msgspec.json.encode(value).decode() for name, value in asked.items()
    }


def parts(
    files: Mapping[str, Path | Sequence[Path]], opened: ExitStack, tell: Callable[[int, int], None] | None
) -> list[Part]:
    """One part per file, a list of files under one name as several. Raises InvalidInput for what cannot be read."""
    named = [(name, path) for name, given in files.items() for path in _several(given)]
    found = [(name, path, _opened(name, path, opened)) for name, path in named]
    tally = _Tally(sum(path.stat().st_size for _, path, _ in found), tell)
    return [(name, (path.name, _Counted(file, tally))) for name, path, file in found]


def _several(given: Path | Sequence[Path]) -> Sequence[Path]:
    return [given] if isinstance(given, Path) else given


def _opened(name: str, path: Path, opened: ExitStack) -> BinaryIO:
    if not path.is_file():
        raise InvalidInput(f"There is no file {path}.", field=name)
    try:
        return opened.enter_context(path.open("rb"))
    except OSError as error:
        raise InvalidInput(f"{path} cannot be read: {error.strerror}.", field=name) from error


class _Tally:
    def __init__(self, total: int, tell: Callable[[int, int], None] | None) -> None:
        self.total = total
        self.sent = 0
        self._tell = tell

    def add(self, count: int) -> None:
        self.sent += count
        if count and self._tell is not None:
            self._tell(self.sent, self.total)


class _Counted:
    """As much of a file as it takes to be sent, counting what was read."""

    def __init__(self, file: BinaryIO, tally: _Tally) -> None:
        self._file = file
        self._tally = tally

    def read(self, size: int = -1) -> bytes:
        data = self._file.read(size)
        self._tally.add(len(data))
        return data

    def fileno(self) -> int:
        return self._file.fileno()
