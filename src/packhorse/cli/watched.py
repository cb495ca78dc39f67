"""Notices that the user's code has changed, by looking at its files now and then."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path


class Watched:
    """The Python files in the folder of an app, and in the packages below it."""

    def __init__(self, app: str) -> None:
        self._folder = _folder_of(app)
        self._seen = self._look()

    def has_changed(self) -> bool:
        """Whether any file was changed, added or removed since the last call."""
        found = self._look()
        changed, self._seen = found != self._seen, found
        return changed

    def _look(self) -> dict[Path, tuple[int, int]]:
        found = {}
        for path in _sources(self._folder) if self._folder is not None else ():
            try:
                stat = path.stat()
            except FileNotFoundError:  # gone between listing and looking
                continue
            found[path] = (stat.st_mtime_ns, stat.st_size)
        return found


def _folder_of(app: str) -> Path | None:
    """None for a module that is installed somewhere: it does not change while we run."""
    where = app.partition(":")[0]
    path = Path(where) if where.endswith(".py") else Path(*where.split("."))
    if path.is_dir():
        return path
    return path.parent if path.with_suffix(".py").is_file() else None


def _sources(folder: Path) -> Iterator[Path]:
    yield from folder.glob("*.py")
    for package in folder.glob("*/__init__.py"):
        yield from _sources(package.parent)
