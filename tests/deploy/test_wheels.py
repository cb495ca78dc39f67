"""The five wheels of this repository: what is in each, and that an app installs beside packhorse without an index."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tomllib
from email.message import Message
from email.parser import Parser
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import pytest

from packhorse.version import VERSION
from tests.deploy.installed import ROOT, Installed, build_wheel

APPS = ("converter", "fetch", "speech", "video")


def project(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = tomllib.loads((folder / "pyproject.toml").read_text())["project"]
    return found


def metadata(wheel: Path) -> Message:
    with ZipFile(wheel) as file:
        [name] = [name for name in file.namelist() if name.endswith(".dist-info/METADATA")]
        return Parser().parsestr(file.read(name).decode())


def content(wheel: Path) -> set[str]:
    """The files in the wheel, without those that describe it."""
    with ZipFile(wheel) as file:
        return {name for name in file.namelist() if ".dist-info/" not in name}


def source(folder: Path) -> set[str]:
    """The files of a package in this clone."""
    files = (path for path in folder.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    return {str(path.relative_to(folder.parent)) for path in files}


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the wheels of packhorse and of all apps."""
    folder = tmp_path_factory.mktemp("wheels")
    for project in (ROOT, *(ROOT / "apps" / app for app in APPS)):
        build_wheel(project, folder)
    return folder


@pytest.fixture
def installed(tmp_path: Path, wheels: Path) -> Installed:
    """An environment without packhorse, and all wheels for its pip."""
    installed = Installed(tmp_path)
    for wheel in wheels.glob("packhorse_*.whl"):
        shutil.copy(wheel, installed.wheels)
    return installed


def test_the_wheel_of_packhorse_contains_packhorse_and_nothing_else(wheels: Path) -> None:
    [wheel] = wheels.glob("packhorse-*.whl")

    assert content(wheel) == source(ROOT / "src" / "packhorse")
    assert {"packhorse/sample.py", "packhorse/web/static/vendor/idiomorph.esm.js"} <= content(wheel)


@pytest.mark.parametrize("kind", ["wheel", "sdist"])
def test_a_clone_without_the_libraries_of_the_pages_builds_nothing_and_says_what_to_run(
    tmp_path: Path, kind: str
) -> None:
    shutil.copytree(ROOT / "src", tmp_path / "src", ignore=shutil.ignore_patterns("vendor", "__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE", "hatch_build.py"):
        shutil.copy(ROOT / name, tmp_path)

    built = subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", kind], cwd=tmp_path, capture_output=True, text=True
    )

    assert built.returncode != 0
    assert "idiomorph.esm.js" in built.stderr
    assert "Run `make setup` in the clone" in built.stderr
    assert "Traceback" not in built.stderr
    assert list(tmp_path.glob("dist/*")) == []


@pytest.mark.parametrize("app", APPS)
def test_the_wheel_of_an_app_contains_its_code_and_its_data(wheels: Path, app: str) -> None:
    [wheel] = wheels.glob(f"packhorse_{app}-*.whl")

    assert content(wheel) == source(ROOT / "apps" / app / f"packhorse_{app}")
    if app == "video":
        assert {"packhorse_video/pins.toml", "packhorse_video/coco.txt"} <= content(wheel)


@pytest.mark.parametrize("app", APPS)
def test_an_app_has_the_version_of_packhorse_and_depends_on_it(wheels: Path, app: str) -> None:
    [core] = wheels.glob("packhorse-*.whl")
    [wheel] = wheels.glob(f"packhorse_{app}-*.whl")

    assert metadata(core)["Version"] == metadata(wheel)["Version"] == VERSION
    assert f"packhorse=={VERSION}" in (metadata(wheel).get_all("Requires-Dist") or [])
    assert f"packhorse-{app}=={VERSION}; extra == '{app}'" in (metadata(core).get_all("Requires-Dist") or [])


@pytest.mark.parametrize("app", APPS)
def test_an_app_comes_with_the_licence_of_packhorse(app: str) -> None:
    assert (ROOT / "apps" / app / "LICENSE").read_text() == (ROOT / "LICENSE").read_text()


def test_every_app_is_a_project_of_its_own() -> None:
    assert {path.name for path in (ROOT / "apps").iterdir() if (path / "pyproject.toml").is_file()} == set(APPS)
    assert {project(ROOT / "apps" / app)["name"] for app in APPS} == {f"packhorse-{app}" for app in APPS}


@pytest.mark.release  # builds and installs five wheels
def test_packhorse_alone_brings_no_app_and_the_extras_bring_theirs(installed: Installed) -> None:
    modules = "import pkgutil; print([each.name for each in pkgutil.iter_modules() if 'packhorse' in each.name])"
    places = "; ".join(
        f"import packhorse_{app}; print(packhorse_{app}.app.name, packhorse_{app}.__file__)" for app in APPS
    )
    installed.run("pip", "install", "--quiet", "packhorse")

    alone = installed.run("python", "-c", modules)
    installed.run("pip", "install", "--quiet", f"packhorse[{','.join(APPS)}]")
    together = installed.run("python", "-c", places)

    assert alone.strip() == "['packhorse']"
    assert "worker" in installed.run("packhorse", "--help")
    assert together.count(f"{installed.environment}/lib") == len(APPS)
