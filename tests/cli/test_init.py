"""`packhorse init`: what it writes runs as it stands, and it spoils nothing."""

from __future__ import annotations

import asyncio
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from packhorse.cli.commands.installation import NAMES
from packhorse.cli.options import SAMPLE
from packhorse.client import Client
from packhorse.errors import Unreachable
from packhorse.worker.pool import describe
from tests.cli.conftest import Tell
from tests.cli.house import LONGEST, House, until


def answers(url: str) -> bool:
    try:
        with Client(url) as client:
            return [each["name"] for each in client.pipelines()] == ["count"]
    except Unreachable:
        return False


def commands(said: str) -> list[list[str]]:
    """The commands it recommends, as words, without the way to the folder."""
    lines = [line.strip().removeprefix("cd words && ") for line in said.splitlines() if line.startswith("  ")]
    return [shlex.split(line) for line in lines]


def test_the_commands_it_tells_run_what_it_wrote(tmp_path: Path) -> None:
    outside, house = House(tmp_path), House(tmp_path / "words")
    try:
        said = outside.run("init", "words")
        [[_, *dev], [_, *submit]] = commands(said.err)
        house.start(*dev, env={"PACKHORSE_PORT": str(house.port)})
        until(lambda: answers(house.url))

        submitted = house.run(*submit, env={"PACKHORSE_URL": house.url})

        words = (house.folder / "README.md").read_text().split()
        assert (said.code, submitted.code) == (0, 0), submitted.err
        result = house.folder / submitted.out.strip()
        assert result.read_text().startswith(f"{len(words)} words in ")
    finally:
        house.end()


def test_what_people_read_above_the_form_is_about_what_it_does(tell: Tell) -> None:
    tell("init", "words")

    [written] = asyncio.run(describe("words/pipelines.py")).definitions
    sample = {each.pipeline: each.description for each in asyncio.run(describe(SAMPLE)).definitions}

    assert written.description.startswith("Counts the words of a text, line by line")
    assert sample["report"].startswith("Counts the words of a text, section by section.")
    assert sample["words"] == "Lists the most frequent words of a text, and how often each occurs."


def test_its_own_tests_pass_and_fail_when_the_code_is_wrong(house: House) -> None:
    house.run("init")
    code = house.folder / "pipelines.py"
    pytest_ = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-p", "no:schemathesis"]
    env = {name: value for name, value in house.env.items() if not name.startswith("PYTEST_")}

    right = subprocess.run(pytest_, cwd=house.folder, env=env, capture_output=True, text=True, timeout=3 * LONGEST)
    code.write_text(code.read_text().replace("sum(counts)", "max(counts)"))
    wrong = subprocess.run(pytest_, cwd=house.folder, env=env, capture_output=True, text=True, timeout=3 * LONGEST)

    assert (right.returncode, wrong.returncode) == (0, 1), right.stdout + wrong.stdout
    assert "2 passed" in right.stdout
    assert "1 failed, 1 passed" in wrong.stdout


@pytest.mark.parametrize("name", NAMES)
def test_a_file_that_is_there_keeps_all_from_being_written(tell: Tell, name: str) -> None:
    there = Path("words", name)
    there.parent.mkdir()
    there.write_text("mine")

    said = tell("init", "words")

    assert said.code == 3
    assert said.err.startswith(f"words/{name} already exists")
    assert [path.name for path in there.parent.iterdir()] == [name]
    assert there.read_text() == "mine"


def test_a_link_that_leads_nowhere_is_not_written_through(tell: Tell, tmp_path: Path) -> None:
    Path("pipelines.py").symlink_to(tmp_path / "elsewhere")

    said = tell("init")

    assert said.code == 3
    assert [path.name for path in tmp_path.iterdir()] == ["pipelines.py"]


def test_a_place_that_takes_no_files_is_told_in_a_sentence(tell: Tell) -> None:
    Path("taken").write_text("")

    said = tell("init", "taken")

    assert (said.code, said.err.splitlines()[0]) == (3, "Cannot write to taken: File exists.")


@pytest.mark.parametrize(("folder", "name"), [("My Project!", "my-project"), ("数据", "jobs"), ("a" * 80, "a" * 63)])
def test_the_project_is_called_what_a_package_may_be_called(tell: Tell, folder: str, name: str) -> None:
    tell("init", folder)

    assert f'name = "{name}"' in Path(folder, "pyproject.toml").read_text()
    assert f'App("{name}")' in Path(folder, "pipelines.py").read_text()
