"""`make release`: build the five packages into dist/, try them in an empty environment, write an SBOM and notes.

Nothing is uploaded. Every step stops the release when it fails:

1. An sdist and a wheel of packhorse and of each app. Each sdist must build the same wheel.
2. An environment with nothing but the locked dependencies and the wheels, in which `packhorse init`, `packhorse dev`
   and one job must work.
3. dist/sbom.json: what that environment holds, and what the wheel carries of npm, as CycloneDX.
4. dist/notes.md: the section of CHANGELOG.md for this version.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from zipfile import ZipFile

from packhorse.host import free_port

ROOT = Path(__file__).parents[1]
DIST = ROOT / "dist"
UV = ROOT / ".venv/bin/uv"
PROJECTS = (ROOT, *sorted(path.parent for path in ROOT.glob("apps/*/pyproject.toml")))
APPS = tuple(project.name for project in PROJECTS[1:])
STARTING = 120.0
"""Seconds in which `packhorse dev` has to answer."""


def main() -> None:
    shutil.rmtree(DIST, ignore_errors=True)
    version = _version(ROOT)
    notes = release_notes((ROOT / "CHANGELOG.md").read_text(), version)
    for project in PROJECTS:
        if _version(project) != version:
            raise SystemExit(f"{project.name} has version {_version(project)}, packhorse has {version}")
        _run(sys.executable, "-m", "hatchling", "build", "-d", DIST, cwd=project)
    for sdist in sorted(DIST.glob("*.tar.gz")):
        check_sdist(sdist)
    with tempfile.TemporaryDirectory(prefix="packhorse-release-") as name:
        environment = Environment(Path(name))
        environment.install()
        environment.try_out()
        (DIST / "sbom.json").write_text(environment.bill_of_materials())
    (DIST / "notes.md").write_text(notes)
    for path in sorted(DIST.iterdir()):
        print(f"{path.stat().st_size:>10,}  {path.relative_to(ROOT)}")


def release_notes(changelog: str, version: str) -> str:
    """The section about the version. A development version has that of the release it leads to."""
    release = re.sub(r"\.dev\d+$", "", version)
    found = re.search(rf"^## {re.escape(release)}\b.*?(?=^## |\Z)", changelog, re.DOTALL | re.MULTILINE)
    if found is None:
        raise SystemExit(f"CHANGELOG.md has no section ## {release}")
    return found[0].strip() + "\n"


def check_sdist(sdist: Path) -> None:
    """Build a wheel from the sdist alone, and compare it with the one beside it."""
    [wheel] = sdist.parent.glob(f"{sdist.name.removesuffix('.tar.gz')}-*.whl")
    with tempfile.TemporaryDirectory(prefix="packhorse-sdist-") as name:
        _run("tar", "-xzf", sdist, "-C", name)
        [source] = Path(name).iterdir()
        _run(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", Path(name) / "dist", cwd=source)
        [built] = Path(name).glob("dist/*.whl")
        different = {name for name, _ in _files(wheel) ^ _files(built)}
    if different:
        raise SystemExit(f"{sdist.name} builds another wheel: {', '.join(sorted(different))}")


def _files(wheel: Path) -> set[tuple[str, int]]:
    """Names and checksums."""
    with ZipFile(wheel) as file:
        return {(each.filename, each.CRC) for each in file.infolist()}


class Environment:
    """A virtual environment outside the clone, and a project in it as a new user makes one."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._bin = folder / "environment/bin"
        self._project = folder / "demo"

    def install(self) -> None:
        """Dependencies by their hashes; the five packages from dist/, without asking an index for them."""
        _run(UV, "venv", "--quiet", self._folder / "environment")
        python = self._bin / "python"
        install = (UV, "pip", "install", "--quiet", "--python", python)
        _run(*install, "--require-hashes", "-r", ROOT / "requirements/image.txt")
        names = ("packhorse", *(f"packhorse-{app}" for app in APPS))
        _run(*install, "--no-deps", "--no-index", "--find-links", DIST, "--prerelease", "allow", *names)

    def try_out(self) -> None:
        """Make a project, start it, and run one job to its result."""
        self._packhorse("init", self._project)
        with self._running_dev() as url:
            result = self._folder / "result"
            options = ("--url", url, "--wait", "--output", result)
            self._packhorse("submit", "count", "text=@README.md", *options, cwd=self._project)
        if not result.is_file() or not result.read_bytes():
            raise SystemExit("The job of the new project has no result")
        print(f"The job of a new project ran in an empty environment: {result.read_text().strip()[:80]}")

    @contextmanager
    def _running_dev(self) -> Iterator[str]:
        port = free_port()
        url = f"http://127.0.0.1:{port}"
        dev = subprocess.Popen(
            [self._bin / "packhorse", "dev", "--port", str(port)], cwd=self._project, env=self._variables
        )
        try:
            _wait_for(f"{url}/readyz", dev)
            yield url
        finally:
            dev.send_signal(signal.SIGINT)
            dev.wait(STARTING)

    def bill_of_materials(self) -> str:
        listed = _run(UV, "pip", "list", "--format", "json", "--python", self._bin / "python")
        return json.dumps(_cyclonedx(json.loads(listed)), indent=2) + "\n"

    def _packhorse(self, *words: object, cwd: Path | None = None) -> str:
        return _run(self._bin / "packhorse", *words, cwd=cwd or self._folder, env=self._variables)

    @property
    def _variables(self) -> dict[str, str]:
        """Of a new user: no setting of packhorse, and no other environment."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("PACKHORSE_", "PYTHON"))}
        return kept | {"PATH": f"{self._bin}:{os.environ['PATH']}"}


def _cyclonedx(packages: list[dict[str, str]]) -> dict[str, object]:
    python = sorted(packages, key=lambda each: each["name"].lower())
    named = [(each["name"], each["version"], f"pypi/{each['name'].lower().replace('_', '-')}") for each in python]
    locked = json.loads((ROOT / "package-lock.json").read_text())["packages"]
    npm = locked[""]["dependencies"]
    named += [(name, locked[f"node_modules/{name}"]["version"], f"npm/{name}") for name in npm]
    components = [
        {"type": "library", "name": name, "version": version, "purl": f"pkg:{place}@{version}"}
        for name, version, place in named
    ]
    return {"bomFormat": "CycloneDX", "specVersion": "1.6", "version": 1, "components": components}


def _version(project: Path) -> str:
    version: str = tomllib.loads((project / "pyproject.toml").read_text())["project"]["version"]
    return version


def _wait_for(url: str, process: subprocess.Popen[bytes]) -> None:
    end = time.monotonic() + STARTING
    while time.monotonic() < end:
        if process.poll() is not None:
            raise SystemExit(f"packhorse dev ended with {process.returncode}")
        try:
            with urllib.request.urlopen(url, timeout=5):  # noqa: S310 (our own loopback address)
                return
        except OSError:
            time.sleep(0.2)
    raise SystemExit(f"packhorse dev did not answer within {STARTING:.0f} s")


def _run(*words: object, cwd: Path = ROOT, env: dict[str, str] | None = None) -> str:
    ended = subprocess.run([str(word) for word in words], cwd=cwd, env=env, capture_output=True, text=True)
    if ended.returncode != 0:
        raise SystemExit(f"{' '.join(map(str, words))}\n{ended.stdout}{ended.stderr}")
    return ended.stdout


if __name__ == "__main__":
    main()
