"""packhorse as a user has it: the wheel, installed by pip into an environment of its own. No index is asked.

What packhorse depends on is lent by the environment of the tests: a folder of links, without packhorse itself, so that
pip really has to install it and nothing is found in the clone by chance. So it is with pytest, which packhorse does not
bring: who is not told to install it has none.
"""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import tomllib
from importlib.metadata import distribution
from pathlib import Path
from zipfile import ZipFile

ROOT = Path(__file__).parents[2]
LIMIT = 180.0
MADE = {"INSTALLER", "REQUESTED", "direct_url.json"}
"""What an installer adds to a package."""
BACKEND = ("hatchling", "packaging", "pathspec", "pluggy", "tomlkit", "trove_classifiers")


def build_wheel(project: Path, into: Path) -> Path:
    """As `pip wheel` does it, with the build backend that is here."""
    name = tomllib.loads((project / "pyproject.toml").read_text())["project"]["name"].replace("-", "_")
    built = subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(into)],
        cwd=project,
        capture_output=True,
        text=True,
        timeout=LIMIT,
    )
    assert built.returncode == 0, built.stdout + built.stderr
    [wheel] = into.glob(f"{name}-*.whl")
    return wheel


def pack(name: str, into: Path) -> Path:
    """A package of the environment of the tests, as the wheel that it came from."""
    found = distribution(name)
    wheel = into / f"{name}-{found.version}-py3-none-any.whl"
    with ZipFile(wheel, "w") as file:
        for each in found.files or ():
            if ".." not in each.parts and each.suffix != ".pyc" and each.name not in MADE:
                file.write(str(each.locate()), str(each))
    return wheel


def lend(environment: Path, links: Path) -> None:
    """Let the environment see the packages of the tests, but for packhorse, pytest and pip."""
    links.mkdir()
    for path in Path(sysconfig.get_path("purelib")).iterdir():
        name = path.name.lstrip("_")
        if not name.startswith(("packhorse", "editable_impl_packhorse", "pip", "pytest-")) and name != "pytest":
            (links / path.name).symlink_to(path)
    [site] = environment.glob("lib/python*/site-packages")
    (site / "lent.pth").write_text(f"{links}\n")


class Installed:
    """An environment with packhorse in it, and whatever else the docs call by name."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.wheels = folder / "wheels"
        self.environment = folder / "environment"
        self.bin = self.environment / "bin"
        build_wheel(ROOT, self.wheels)
        subprocess.run([sys.executable, "-m", "venv", self.environment], check=True, timeout=LIMIT)
        lend(self.environment, folder / "lent")
        pack("pytest", self.wheels)
        self._command("uvicorn")

    @property
    def env(self) -> dict[str, str]:
        """Of a newcomer: nothing is set, and pip knows the wheel."""
        kept = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("PACKHORSE_", "PYTEST_", "PIP_", "PYTHON", "AWS_", "VIRTUAL_ENV"))
        }
        pip = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(self.wheels), "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
        return kept | pip | {"PATH": f"{self.bin}:{os.environ['PATH']}", "PYTHONDONTWRITEBYTECODE": "1"}

    def install(self) -> None:
        """packhorse, and nothing that a page must have its reader install."""
        self.run("pip", "uninstall", "--quiet", "--yes", "pytest")
        self.run("pip", "install", "--quiet", "packhorse")

    def uninstall(self) -> None:
        self.run("pip", "uninstall", "--quiet", "--yes", "packhorse")

    def offer_build_backend(self) -> None:
        """Let pip find what it needs to install from a clone."""
        for name in BACKEND:
            pack(name, self.wheels)

    def run(self, *words: str, cwd: Path | None = None) -> str:
        ended = subprocess.run(
            words, cwd=cwd or self.folder, env=self.env, capture_output=True, text=True, timeout=LIMIT
        )
        assert ended.returncode == 0, ended.stdout + ended.stderr
        return ended.stdout

    def _command(self, module: str) -> None:
        path = self.bin / module
        path.write_text(f'#!/bin/sh\nexec "{self.bin}/python" -m {module} "$@"\n')
        path.chmod(0o755)
