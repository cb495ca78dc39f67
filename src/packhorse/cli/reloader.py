"""Notices that the user's code has changed, by looking at its files now and then."""

from __future__ import annotations

import sysconfig
from collections.abc import Iterable, Iterator
from pathlib import Path

NOT_THEIRS = ("site-packages", "dist-packages")
STANDARD = Path(sysconfig.get_path("stdlib")).resolve()


class Watched:
    """The Python files in the folder of an app, and in the folders below it that the app has imported from.

    A test beside the app, or a virtual environment, is not the app's: a change there is no reason to restart anything.
    """

    def __init__(self, app: str, loaded: Iterable[str] | None = None) -> None:
        self._folder = _folder_of(app)
        self._imported: set[Path] | None = None
        self._seen: Seen = {}
        self.knows(loaded)
        self._seen = self._look()

    def knows(self, loaded: Iterable[str] | None) -> None:
        """The files of all modules that were loaded with the app; None if it cannot be loaded at present.

        As long as it cannot, any file below may be the one that has to be mended.
        """
        self._imported = None if loaded is None or self._folder is None else _folders(loaded, self._folder.resolve())
        known, self._seen = self._seen, self._look()
        self._seen.update((path, state) for path, state in known.items() if path in self._seen)

    def has_changed(self) -> bool:
        """Whether any file was changed, added or removed since the last call."""
        found = self._look()
        changed, self._seen = found != self._seen, found
        return changed

    def _look(self) -> Seen:
        found = {}
        for path in self._sources():
            try:
                stat = path.stat()
            except FileNotFoundError:  # gone between listing and looking
                continue
            found[path] = (stat.st_mtime_ns, stat.st_size)
        return found

    def _sources(self) -> Iterator[Path]:
        if self._folder is None:
            return
        folder = self._folder.resolve()
        if self._imported is None:
            yield from _package_files(folder)
            return
        for each in {folder, *self._imported}:
            yield from each.glob("*.py")


Seen = dict[Path, tuple[int, int]]


def _folder_of(app: str) -> Path | None:
    """None for a module that is installed somewhere: it does not change while we run."""
    where = app.partition(":")[0]
    path = Path(where) if where.endswith(".py") else Path(*where.split("."))
    if path.is_dir():
        return path
    return path.parent if path.with_suffix(".py").is_file() else None


def _folders(loaded: Iterable[str], folder: Path) -> set[Path]:
    """Where the modules lie that are below the folder and were not installed there."""
    files = (Path(name).resolve() for name in loaded)
    below = (path for path in files if path.is_relative_to(folder) and not path.is_relative_to(STANDARD))
    return {
        path.parent
        for path in below
        if not any(part in NOT_THEIRS or part.startswith(".") for part in path.relative_to(folder).parts[:-1])
    }


def _package_files(folder: Path) -> Iterator[Path]:
    yield from folder.glob("*.py")
    for package in folder.glob("*/__init__.py"):
        yield from _package_files(package.parent)
