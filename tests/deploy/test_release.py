"""What `make release` takes from the changelog, and that one version is everywhere."""

from __future__ import annotations

import importlib.util
import json
import sys
import tomllib
from pathlib import Path
from types import ModuleType

import pytest

from packhorse.version import VERSION
from tests.deploy.installed import ROOT

VENDOR = ROOT / "src/packhorse/web/static/vendor"
MODULES = ROOT / "node_modules"

CHANGELOG = """# Changelog

## 0.2.0 (unreleased)

- Newer.

## 0.1.0

- Older.
"""


@pytest.fixture(scope="module")
def release() -> ModuleType:
    spec = importlib.util.spec_from_file_location("release", ROOT / "deploy/release.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("version", ["0.2.0", "0.2.0.dev0"])
def test_the_notes_are_the_section_of_the_version(release: ModuleType, version: str) -> None:
    assert release.release_notes(CHANGELOG, version) == "## 0.2.0 (unreleased)\n\n- Newer.\n"


def test_the_last_section_ends_with_the_file(release: ModuleType) -> None:
    assert release.release_notes(CHANGELOG, "0.1.0") == "## 0.1.0\n\n- Older.\n"


def test_a_version_without_a_section_stops_the_release(release: ModuleType) -> None:
    with pytest.raises(SystemExit, match=r"no section ## 0\.3\.0"):
        release.release_notes(CHANGELOG, "0.3.0")


def test_the_changelog_has_a_section_for_this_version(release: ModuleType) -> None:
    assert release.release_notes((ROOT / "CHANGELOG.md").read_text(), VERSION).count("\n- ") >= 1


def test_the_five_packages_have_one_version(release: ModuleType) -> None:
    versions = {tomllib.loads((each / "pyproject.toml").read_text())["project"]["version"] for each in release.PROJECTS}

    assert len(release.PROJECTS) == 5
    assert versions == {VERSION}


def test_the_bill_of_materials_names_each_package_once(release: ModuleType) -> None:
    bill = release._cyclonedx([{"name": "msgspec", "version": "1.0"}, {"name": "Jinja2", "version": "3.1"}])

    assert json.loads(json.dumps(bill))["bomFormat"] == "CycloneDX"
    python = [each["purl"] for each in bill["components"] if each["purl"].startswith("pkg:pypi/")]
    assert python == ["pkg:pypi/jinja2@3.1", "pkg:pypi/msgspec@1.0"]


def test_the_bill_of_materials_names_what_the_wheel_carries_of_npm(release: ModuleType) -> None:
    bill = release._cyclonedx([])

    origin = {path.read_bytes(): name for name in fetched() for path in (MODULES / name).rglob("*") if path.is_file()}
    carried = {path.name: origin.get(path.read_bytes()) for path in VENDOR.iterdir()}
    assert [name for name, package in carried.items() if package is None] == []
    assert {each["name"] for each in bill["components"]} == set(carried.values())
    assert all(each["purl"] == f"pkg:npm/{each['name']}@{each['version']}" for each in bill["components"])


def test_the_wheel_carries_the_licence_of_each_npm_package_in_the_bill_of_materials(release: ModuleType) -> None:
    names = [each["name"] for each in release._cyclonedx([])["components"]]

    assert {path.name for path in VENDOR.glob("LICENSE-*")} == {f"LICENSE-{Path(name).name}.txt" for name in names}
    for name in names:
        assert (VENDOR / f"LICENSE-{Path(name).name}.txt").read_bytes() == (MODULES / name / "LICENSE").read_bytes()


def fetched() -> list[str]:
    """Every npm package that `make setup` puts into the clone, for the page or for tests."""
    locked = json.loads((ROOT / "package-lock.json").read_text())["packages"]
    return [place.removeprefix("node_modules/") for place in locked if place]


def test_an_sdist_that_does_not_build_the_same_wheel_stops_the_release(release: ModuleType, tmp_path: Path) -> None:
    project = tmp_path / "project"
    (project / "small").mkdir(parents=True)
    (project / "small" / "__init__.py").touch()
    (project / "small" / "data.txt").touch()
    (project / "pyproject.toml").write_text(SMALL)
    release._run(sys.executable, "-m", "hatchling", "build", "-d", tmp_path / "dist", cwd=project)
    [sdist] = (tmp_path / "dist").glob("*.tar.gz")

    release.check_sdist(sdist)
    (project / "pyproject.toml").write_text(SMALL + '[tool.hatch.build.targets.sdist]\nexclude = ["data.txt"]\n')
    release._run(sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-d", tmp_path / "dist", cwd=project)

    with pytest.raises(SystemExit, match=r"small-1\.tar\.gz builds another wheel.*small/data\.txt"):
        release.check_sdist(sdist)


SMALL = """
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"
[project]
name = "small"
version = "1"
"""
