"""`python -m bench.peers.setup`: one environment per library below `.packhorse/peers`, from locked requirements.

A library that cannot be had is named and left out, and the benchmark says so too: the others are worth measuring.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from bench.peers.contenders import CONTENDERS, ENVIRONMENTS, NODE, ROOT, SIDE

REQUIREMENTS = ROOT / "requirements"
UV = Path(sys.executable).with_name("uv")
MISSION = ("mission-celery", "mission-arq")
"""The stacks by hand of `python -m bench mission`."""
NEWER = {"oban": (3, 12)}
"""Libraries that need a Python of at least this version."""


class Unavailable(Exception):
    """Why an environment cannot be made."""


def main() -> None:
    for name in dict.fromkeys([*(each.environment for each in CONTENDERS if not each.is_ours), *MISSION]):
        try:
            print(f"{name}: {made(name)}", flush=True)
        except (Unavailable, subprocess.CalledProcessError) as error:
            print(f"{name}: left out, {error}", flush=True)


def made(name: str) -> str:
    folder = ENVIRONMENTS / name
    inputs = [SIDE / "package-lock.json"] if name == NODE else [_locked(name)]
    mark = hashlib.sha256(b"".join(path.read_bytes() for path in inputs)).hexdigest()
    ready = folder / "ready"
    if ready.exists() and ready.read_text() == mark:
        return "is there"
    shutil.rmtree(folder, ignore_errors=True)
    if name == NODE:
        _make_node(folder)
    else:
        _make_python(folder, name, _python(name))
    ready.write_text(mark)
    return "made"


def _make_python(folder: Path, name: str, python: str) -> None:
    _run(str(UV), "venv", "--quiet", "--python", python, str(folder))
    into = str(folder / "bin" / "python")
    _run(str(UV), "pip", "install", "--quiet", "--python", into, "--require-hashes", "-r", str(_locked(name)))


def _make_node(folder: Path) -> None:
    """Node itself comes from a wheel where the machine has none."""
    folder.mkdir(parents=True)
    if shutil.which("node") is None or shutil.which("npm") is None:
        _make_python(folder, NODE, sys.executable)
    for path in ("package.json", "package-lock.json"):
        shutil.copy(SIDE / path, folder)
    own = folder / "bin"
    path = f"{own}{os.pathsep}{os.environ.get('PATH', '')}"
    npm = shutil.which("npm", path=path)
    assert npm is not None
    # Not `npm ci`, which misses in the lock what is meant for other systems only. Checksums are compared all the same.
    options = ("--no-save", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error")
    _run(npm, "install", *options, cwd=folder, path=path)


def _locked(name: str) -> Path:
    return REQUIREMENTS / ("node.txt" if name == NODE else f"peers-{name}.txt")


def _python(name: str) -> str:
    least = NEWER.get(name)
    if least is None or sys.version_info >= least:
        return sys.executable
    for python in _pythons(least):
        if _is_at_least(python, least):
            return python
    raise Unavailable(f"it needs Python {least[0]}.{least[1]}, and there is none")


def _pythons(least: tuple[int, int]) -> Iterator[str]:
    """Those that may be new enough: on the path, or where pyenv keeps them."""
    for minor in range(least[1], least[1] + 5):
        yield f"python{least[0]}.{minor}"
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    yield from (str(path) for path in sorted(pyenv.glob("versions/*/bin/python3")))


def _is_at_least(python: str, version: tuple[int, int]) -> bool:
    """Whether it is one that runs: a shim of pyenv may stand for nothing."""
    question = f"import sys; sys.exit(sys.version_info < {version})"
    try:
        return subprocess.run([python, "-c", question], capture_output=True, check=False).returncode == 0
    except OSError:
        return False


def _run(*command: str, cwd: Path = ROOT, path: str | None = None) -> None:
    env = os.environ if path is None else {**os.environ, "PATH": path}
    subprocess.run(command, cwd=cwd, env=env, check=True)


if __name__ == "__main__":
    main()
