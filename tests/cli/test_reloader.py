"""Which changes of the user's files are noticed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from packhorse.cli.reloader import Watched


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file, a package beside it, and a folder that is none, such as a virtual environment."""
    monkeypatch.chdir(tmp_path)
    for name in ("app.py", "pack/__init__.py", "pack/inner/__init__.py", "pack/inner/deep.py", "venv/lib.py", "x.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("1")
    return tmp_path


CHANGES: list[tuple[str, Callable[[], object], bool]] = [
    ("nothing", lambda: None, False),
    ("the file", lambda: Path("app.py").write_text("22"), True),
    ("a neighbour", lambda: Path("other.py").write_text("1"), True),
    ("a file that goes", lambda: Path("app.py").unlink(), True),
    ("a package", lambda: Path("pack/inner/deep.py").write_text("22"), True),
    ("a folder that is no package", lambda: Path("venv/lib.py").write_text("22"), False),
    ("what is not Python", lambda: Path("x.txt").write_text("22"), False),
]


@pytest.mark.parametrize(("what", "change", "is_noticed"), CHANGES, ids=[what for what, _, _ in CHANGES])
def test_python_files_of_the_folder_and_its_packages_are_watched(
    what: str, change: Callable[[], object], is_noticed: bool
) -> None:
    watched = Watched("app.py")

    change()

    assert bool(watched.find_changes()) is is_noticed
    assert not watched.find_changes()


IMPORTED = ["app.py", "pack/__init__.py", "pack/inner/__init__.py", "venv/site-packages/lib/__init__.py", ".venv/x.py"]


@pytest.mark.parametrize(
    ("path", "is_noticed"),
    [
        ("app.py", True),
        ("other.py", False),
        ("test_app.py", False),
        ("pack/new.py", False),
        ("pack/inner/deep.py", False),
        ("pack/inner/__init__.py", True),
        ("late.py", True),
        ("pack/sub/helper.py", True),
        ("tests/__init__.py", False),
        ("tests/test_app.py", False),
        ("venv/site-packages/lib/new.py", False),
        (".venv/new.py", False),
    ],
)
def test_only_files_that_the_app_imports_are_watched(project: Path, path: str, is_noticed: bool) -> None:
    for name in (*IMPORTED, "tests/__init__.py", "late.py", "pack/sub/helper.py"):
        (project / name).parent.mkdir(parents=True, exist_ok=True)
        (project / name).write_text("1")
    (project / "app.py").write_text("def stage():\n    import late\n")
    (project / "pack/inner/__init__.py").write_text("def stage():\n    from ..sub import helper\n")
    watched = Watched("app.py", [str(project / name) for name in IMPORTED])

    (project / path).write_text("22")

    assert bool(watched.find_changes()) is is_noticed


def test_as_long_as_it_cannot_be_loaded_any_package_may_be_the_one_to_mend() -> None:
    watched = Watched("app.py", [])

    watched.knows(None)
    before = watched.find_changes()
    Path("pack/inner/deep.py").write_text("22")

    assert not before
    assert watched.find_changes()


def test_a_change_made_while_the_app_was_being_loaded_is_not_missed(project: Path) -> None:
    watched = Watched("app.py", [])

    Path("app.py").write_text("22")
    watched.knows([str(project / "app.py")])

    assert watched.find_changes()


@pytest.mark.parametrize("app", ["app", "app:attribute", "pack", "pack.inner.deep:app", "pack/inner/deep.py:app"])
def test_a_module_is_watched_where_it_lies(app: str) -> None:
    watched = Watched(app)

    Path("app.py").write_text("22")
    Path("pack/inner/deep.py").write_text("22")

    assert watched.find_changes()


def test_a_change_is_named(project: Path) -> None:
    watched = Watched("app.py", [str(project / "app.py"), str(project / "pack/__init__.py")])

    (project / "app.py").write_text("22")
    (project / "pack/__init__.py").unlink()

    assert watched.find_changes() == ["app.py", "pack/__init__.py"]


def test_a_module_that_is_installed_does_not_change() -> None:
    assert not Watched("packhorse.sample").find_changes()
