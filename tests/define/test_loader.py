"""Finding the app in a file or module of the user's, and saying where it is broken."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from packhorse.define.registry import load
from packhorse.errors import DefinitionError

ONE = 'from packhorse import App\napp = App("one")\n'
TWO = f'{ONE}other = App("two")\n'

Write = Callable[[str], Path]
_numbers = itertools.count(1)


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Write]:
    """Writes a file under a name that no module has; what loading it leaves in the interpreter is taken back."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    before = set(sys.modules)

    def written(text: str) -> Path:
        path = tmp_path / f"users_file_{next(_numbers)}.py"
        path.write_text(text)
        return path

    yield written
    for name in set(sys.modules) - before:
        del sys.modules[name]


def refusal(target: str) -> str:
    with pytest.raises(DefinitionError) as refused:
        load(target)
    return refused.value.message


# Found


def test_a_file_with_one_app_is_that_app(write: Write) -> None:
    assert load(str(write(ONE))).app == "one"


def test_a_module_with_one_app_is_that_app(write: Write) -> None:
    assert load(write(ONE).stem).app == "one"


def test_one_app_under_two_names_is_one(write: Write) -> None:
    assert load(str(write(f"{ONE}application = app\n"))).app == "one"


def test_an_attribute_names_one_of_several(write: Write) -> None:
    path = write(TWO)

    assert load(f"{path}:other").app == "two"
    assert load(f"{path.stem}:app").app == "one"


def test_a_file_finds_its_neighbours(write: Write) -> None:
    neighbour = write("NAME = 'beside'")

    path = write(f"from packhorse import App\nfrom {neighbour.stem} import NAME\napp = App(NAME)")

    assert load(str(path)).app == "beside"


# Not found


def test_a_file_that_is_no_python_file_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pipelines.txt").write_text("app")

    assert refusal("pipelines.txt") == "pipelines.txt is not a Python file. Give file.py or module:attribute."


def test_a_file_without_an_app_says_how_to_make_one(write: Write) -> None:
    assert 'App("name")' in refusal(str(write("x = 1")))


def test_a_file_with_two_apps_says_how_to_name_one(write: Write) -> None:
    path = write(TWO)

    assert f"2 apps; name one, as {path}:NAME" in refusal(str(path))


@pytest.mark.parametrize("name", ["nothing", "x"])
def test_an_attribute_that_is_no_app_is_told(write: Write, name: str) -> None:
    assert f"no app named {name!r}" in refusal(f"{write(f'{ONE}x = 1')}:{name}")


def test_a_file_that_is_not_there_is_told(write: Write, tmp_path: Path) -> None:
    assert "There is no file" in refusal(str(tmp_path / "nothing.py"))


def test_a_module_that_is_not_there_is_told(write: Write) -> None:
    assert "no_such_module_at_all" in refusal("no_such_module_at_all")


# Broken


@pytest.mark.parametrize(
    ("text", "said", "line"),
    [
        ("x = 1\nimport no_such_module", "No module named 'no_such_module'", 2),
        ("x = 1\n\nraise ValueError('half-written')", "ValueError: half-written", 3),
        ("import sys\nsys.exit('not today')", "SystemExit: not today", 2),
        ("x = 1\nthis is no Python", "SyntaxError", 2),
        ("import json\n\n\njson.loads('{')", "JSONDecodeError", 4),
    ],
    ids=["import", "raise", "exit", "syntax", "in a library"],
)
@pytest.mark.parametrize("way", ["file", "module"])
def test_a_file_that_cannot_be_loaded_is_told_with_its_error_and_place(
    write: Write, text: str, said: str, line: int, way: str
) -> None:
    path = write(text)

    message = refusal(str(path) if way == "file" else path.stem)

    assert said in message
    assert f"{path}:{line}" in message


def test_an_error_in_a_neighbour_is_told_with_the_neighbours_place(write: Write) -> None:
    neighbour = write("x = 1\n1 / 0")

    message = refusal(str(write(f"import {neighbour.stem}")))

    assert "ZeroDivisionError" in message
    assert f"{neighbour}:2" in message
