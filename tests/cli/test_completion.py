"""Completion: asked the way bash itself asks, by the function that it was told about."""

from __future__ import annotations

import re
import shlex
import subprocess
from pathlib import Path

import pytest

from packhorse.cli.commands import COMMANDS
from tests.cli.conftest import Tell
from tests.cli.house import House

ASK = """
eval "$(cat {script})"
set -u
COMP_WORDS=({words}); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1)); COMPREPLY=()
$(complete -p packhorse | sed -E 's/.*-F ([^ ]+) .*/\\1/') packhorse "${{COMP_WORDS[-1]}}" "${{COMP_WORDS[-2]}}"
printf '%s\\n' "${{COMPREPLY[@]}}"
"""


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> Path:
    house = House(tmp_path_factory.mktemp("completion"))
    path = house.folder / "packhorse.bash"
    path.write_text(house.run("completion", "bash").out)
    return path


def completed(script: Path, *words: str) -> set[str]:
    asked = ASK.format(script=script, words=" ".join(map(shlex.quote, ["packhorse", *words])))
    told = subprocess.run(["bash", "--norc", "-c", asked], capture_output=True, text=True, check=True)
    assert told.stderr == ""
    return set(filter(None, told.stdout.splitlines()))


def test_bash_completes_every_command(script: Path) -> None:
    assert completed(script, "") == {name for _, name, _, _ in COMMANDS}


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        (["sub"], ["submit"]),
        (["schedules", "p"], ["pause", "preview", "put"]),
        (["tokens", ""], ["create", "list", "revoke"]),
        (["jobs", "--st"], ["--status"]),
        (["jobs", "--status", "c"], ["cancelled", "completed"]),
        (["completion", ""], ["bash", "fish", "zsh"]),
        (["nothing", "--st"], []),
    ],
    ids=" ".join,
)
def test_bash_completes_commands_options_and_values(script: Path, words: list[str], offered: list[str]) -> None:
    assert sorted(completed(script, *words)) == offered


def test_where_nothing_is_known_bash_offers_files(script: Path) -> None:
    told = subprocess.run(
        ["bash", "--norc", "-c", f"source {script}; complete -p packhorse"], capture_output=True, text=True, check=True
    )

    assert "-o default" in told.stdout
    assert completed(script, "dev", "") == set()


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells_are_told_every_command(tell: Tell, shell: str) -> None:
    said = tell("completion", shell)

    assert said.code == 0
    for _, name, _, meaning in COMMANDS:
        assert name in said.out
        assert re.split("[:']", meaning)[0] in said.out  # what comes next is quoted as that shell does


def test_a_shell_we_do_not_know_is_a_mistake_in_usage(tell: Tell) -> None:
    said = tell("completion", "tcsh")

    assert said.code == 2
    assert said.last_line == "See how it is used: packhorse completion --help"
