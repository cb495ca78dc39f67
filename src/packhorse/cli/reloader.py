"""Notices which files of the user's code have changed, by looking at them now and then."""

from __future__ import annotations

import ast
import sysconfig
from collections.abc import Iterable, Iterator
from pathlib import Path

NOT_THEIRS = ("site-packages", "dist-packages")
STANDARD = Path(sysconfig.get_path("stdlib")).resolve()


class Watched:
    """The file of an app, and the files in its folder and below that it imports.

    A test or a script beside the app, or a virtual environment, is not the app's: a change there restarts nothing.
    """

    def __init__(self, app: str, loaded: Iterable[str] | None = None) -> None:
        self._file = _file_of(app)
        self._imported: set[Path] | None = None
        self._seen: Seen = {}
        self.knows(loaded)
        self._seen = self._look()

    def knows(self, loaded: Iterable[str] | None) -> None:
        """The files of all modules that were loaded with the app; None if it cannot be loaded at present.

        As long as it cannot, any file below may be the one that needs a fix.
        """
        if loaded is None or self._file is None:
            self._imported = None
        else:
            folder = self._file.parent.resolve()
            self._imported = _with_imports({self._file.resolve(), *_own(loaded, folder)}, folder)
        known, self._seen = self._seen, self._look()
        self._seen.update((path, state) for path, state in known.items() if path in self._seen)

    def find_changes(self) -> list[str]:
        """The files that were changed, added or removed since the last call, as seen from the current folder."""
        found = self._look()
        changed = {path for path in {*found, *self._seen} if found.get(path) != self._seen.get(path)}
        self._seen = found
        here = Path.cwd().resolve()
        return sorted(str(path.relative_to(here) if path.is_relative_to(here) else path) for path in changed)

    def _look(self) -> Seen:
        found = {}
        for path in self._sources():
            try:
                stat = path.stat()
            except FileNotFoundError:  # gone between listing and looking
                continue
            found[path] = (stat.st_mtime_ns, stat.st_size)
        return found

    def _sources(self) -> Iterable[Path]:
        if self._file is None:
            return ()
        return _package_files(self._file.parent.resolve()) if self._imported is None else self._imported


Seen = dict[Path, tuple[int, int]]


def _file_of(app: str) -> Path | None:
    """None for a module that is installed somewhere: it does not change while we run."""
    where = app.partition(":")[0]
    path = Path(where) if where.endswith(".py") else Path(*where.split("."))
    if path.is_dir():
        return path / "__init__.py"
    return path.with_suffix(".py") if path.with_suffix(".py").is_file() else None


def _own(loaded: Iterable[str], folder: Path) -> set[Path]:
    """Those in the folder or below it that were not installed there."""
    files = (Path(name).resolve() for name in loaded)
    below = (path for path in files if path.is_relative_to(folder) and not path.is_relative_to(STANDARD))
    return {
        path
        for path in below
        if not any(part in NOT_THEIRS or part.startswith(".") for part in path.relative_to(folder).parts[:-1])
    }


def _with_imports(files: set[Path], folder: Path) -> set[Path]:
    """Also the files that a function of these imports only when it is called."""
    found, new = set(files), list(files)
    while new:
        for path in _imports(new.pop(), folder):
            if path not in found:
                found.add(path)
                new.append(path)
    return found


def _imports(file: Path, folder: Path) -> Iterator[Path]:
    try:
        tree = ast.parse(file.read_bytes())
    except (OSError, SyntaxError, ValueError):  # gone, or being written
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for each in node.names:
                yield from _files_of(folder, each.name)
        elif isinstance(node, ast.ImportFrom):
            base = file.parents[node.level - 1] if node.level else folder
            for each in node.names:
                yield from _files_of(base, ".".join(filter(None, [node.module, each.name])))


def _files_of(base: Path, name: str) -> Iterator[Path]:
    """The files of this module and of the packages that contain it, if they are below ``base``."""
    for part in name.split("."):
        base = base / part
        yield from filter(Path.is_file, (base / "__init__.py", base.with_suffix(".py")))


def _package_files(folder: Path) -> Iterator[Path]:
    yield from folder.glob("*.py")
    for package in folder.glob("*/__init__.py"):
        yield from _package_files(package.parent)
