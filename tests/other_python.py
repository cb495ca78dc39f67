"""Run the tests on the newest other CPython of this machine: `make test-all` calls it after the run on its own Python.

    python -m tests.other_python --tier all -n 4

Everything on the command line goes to pytest. The environment is .venv-3.13 or the like, from the same lock.
"""

from __future__ import annotations

import glob
import os
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
UV = ROOT / ".venv/bin/uv"
OLDEST = (3, 11)
"""What `requires-python` says."""
ASK = "import sys; print(sys.implementation.name, *sys.version_info[:3], sys.version_info.releaselevel)"


class Interpreter(NamedTuple):
    version: tuple[int, int, int]
    path: Path

    @property
    def minor(self) -> tuple[int, int]:
        return self.version[:2]


def main() -> int:
    found = newest(look_at(candidates()), sys.version_info[:2])
    if found is None:
        wanted = f"CPython newer or older than {sys.version_info.major}.{sys.version_info.minor}"
        print(f"There is no {wanted} here (3.11 is the oldest that packhorse supports). Install one.", file=sys.stderr)
        return 1
    name = ".".join(map(str, found.version))
    environment = ROOT / f".venv-{found.minor[0]}.{found.minor[1]}"
    print(f"On CPython {name} ({found.path})", flush=True)
    prepare(environment, found.path)
    return subprocess.run([environment / "bin/python", "-m", "pytest", *sys.argv[1:]], cwd=ROOT).returncode


def newest(interpreters: Iterable[Interpreter], own: tuple[int, int]) -> Interpreter | None:
    """The newest that is not of our own minor version."""
    others = [each for each in interpreters if each.minor != own and each.minor >= OLDEST]
    return max(others, default=None)


def candidates() -> Iterator[Path]:
    """Programs on the path, and what pyenv and uv keep outside of it."""
    home = Path.home()
    pyenv = Path(os.environ.get("PYENV_ROOT", home / ".pyenv"))
    folders = [*map(Path, os.get_exec_path()), *map(Path, glob.glob(f"{pyenv}/versions/*/bin"))]
    folders += map(Path, glob.glob(f"{home}/.local/share/uv/python/*/bin"))
    for folder in dict.fromkeys(folders):
        yield from sorted(folder.glob("python3.[0-9]*"))


def look_at(paths: Iterable[Path]) -> Iterator[Interpreter]:
    """Those that start and are a release of CPython."""
    for path in paths:
        if not path.name.removeprefix("python3.").isdigit():
            continue
        ended = subprocess.run([path, "-c", ASK], capture_output=True, text=True)
        words = ended.stdout.split()
        if ended.returncode == 0 and words[0] == "cpython" and words[4] == "final":
            yield Interpreter((int(words[1]), int(words[2]), int(words[3])), path)


def prepare(environment: Path, python: Path) -> None:
    """Make the environment from the lock; quick if it is there already."""
    projects = [ROOT, *sorted(path.parent for path in ROOT.glob("apps/*/pyproject.toml"))]
    install: list[str | Path] = [UV, "pip", "install", "--quiet", "--python", environment / "bin/python"]
    local: list[str | Path] = [word for project in projects for word in ("-e", project)]
    if not environment.exists():
        subprocess.run([python, "-m", "venv", environment], check=True)
    subprocess.run([*install, "--require-hashes", "-r", ROOT / "requirements/dev.txt"], check=True)
    subprocess.run([*install, "--offline", "--no-deps", "--no-build-isolation", *local], check=True)


if __name__ == "__main__":
    sys.exit(main())
